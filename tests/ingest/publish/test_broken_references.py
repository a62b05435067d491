"""Virtual references to missing or changed files are reported, also if the ledger does not list the files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from tests.support.ingest.files import aged, archive, days, new_repo, run, write


def write_kerchunk(folder: Path) -> tuple[str, Path]:
    """Write a kerchunk file that refers to a file with plain numbers."""
    data = folder / "numbers.bin"
    np.arange(4.0).tofile(data)
    array = {"shape": [4], "chunks": [4], "dtype": "<f8", "order": "C", "zarr_format": 2}
    array |= {"compressor": None, "filters": None, "fill_value": None}
    refs = {
        ".zgroup": json.dumps({"zarr_format": 2}),
        "t/.zarray": json.dumps(array),
        "t/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["x"]}),
        "t/0": [str(aged(data)), 0, 32],
    }
    (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    return str(aged(folder / "refs.json")), data


@pytest.mark.parametrize("change", ["missing", "touched", "short"])
def test_files_behind_kerchunk_references_are_checked(tmp_path: Path, change: str) -> None:
    source, data = write_kerchunk(tmp_path)
    repo = new_repo(tmp_path)
    assert run(repo, source, mode="virtual").ok
    modified_ns = data.stat().st_mtime_ns
    if change == "missing":
        data.unlink()
    elif change == "touched":
        os.utime(data)
    else:
        os.truncate(data, 24)
        os.utime(data, ns=(modified_ns, modified_ns))

    report = run(repo, source, mode="virtual")

    assert [each.url for each in report.broken] == [str(data)]
    assert bool(report.missing) == (change == "missing")


def test_changed_kerchunk_file_breaks_no_reference(tmp_path: Path) -> None:
    source, _ = write_kerchunk(tmp_path)
    repo = new_repo(tmp_path)
    run(repo, source, mode="virtual")
    os.utime(source)

    report = run(repo, source, mode="virtual")

    assert report.ok
    assert len(report.outcome.sources.changed) == 1


def test_files_in_a_renamed_folder_are_missing(tmp_path: Path) -> None:
    files = archive(tmp_path / "data", (2, 2))
    repo = new_repo(tmp_path)
    run(repo, files, mode="virtual")
    (tmp_path / "data").rename(tmp_path / "data.old")
    (tmp_path / "data").write_text("a file")

    report = run(repo, write(tmp_path / "new.nc", days(4, 2)), mode="virtual", dry_run=True)

    assert [each.url for each in report.missing] == files


def test_collected_chunks_of_a_source_repository_are_missing(tmp_path: Path) -> None:
    archive_repo = tmp_path / "archive"
    source = icefloe.Repository.create(icefloe.storage_from_url(str(archive_repo), sync=False))
    session = source.writable_session("main")
    data = np.random.default_rng(0).random(1000)
    zarr.create_array(session.store, name="t", data=data, chunks=(500,), dimension_names=["x"])
    session.commit("data")
    repo = new_repo(tmp_path)
    run(repo, str(archive_repo), mode="virtual")
    assert run(repo, str(archive_repo), mode="virtual").ok
    for chunk in (archive_repo / "chunks").iterdir():
        chunk.unlink()

    report = run(repo, str(archive_repo), mode="virtual")

    assert [each.url for each in report.missing] == [str(archive_repo)]
