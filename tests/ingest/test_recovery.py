"""Lost chunks are restored from the files in the ledger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe import Repository
from icefloe.ingest import LedgerChunks
from tests.support.ingest.files import aged, archive, assert_same, days, expected, read, run, write

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def new_repo(folder: Path) -> Repository:
    """An empty one, whose chunks all are objects."""
    storage = icefloe.storage_from_url(str(folder / "repo"), sync=False)
    return Repository.create(storage, icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0))


def ledger_of(repo: Repository) -> LedgerChunks:
    return LedgerChunks(repo.readonly_session("main"))


@pytest.mark.parametrize(("chunk", "packed"), [(2, True), (5, False)])
def test_all_chunks_of_arrays_are_restored(tmp_path: Path, chunk: int, packed: bool) -> None:
    """Packed or not, from files that begin and end anywhere in a chunk, including coordinates."""
    encoding: dict[str, Any] = (
        {"t2m": {"dtype": "i2", "scale_factor": 0.125, "_FillValue": -9999}} if packed else {}
    )
    files = [
        write(tmp_path / f"{number}.nc", days(first, count), encoding)
        for number, (first, count) in enumerate(((0, 3), (3, 4), (7, 2)))
    ]
    repo = new_repo(tmp_path)
    run(repo, files[1], chunks={"time": chunk, "lat": 3})
    run(repo, [files[2], files[0]])
    before = read(repo)
    ledger = ledger_of(repo)
    arrays = [key for key in repo.readonly_session("main")._workspace.paths() if "_icefloe" not in key]
    assert len(arrays) >= 4
    lost = forget_chunks(repo, arrays)
    assert lost
    assert not repo.verify("objects").ok

    report = repo.repair(sources=ledger)

    assert report.complete, ledger.unusable
    assert repo.verify("objects", branch="main", history=False).ok
    assert_same(read(repo), before)
    assert_same(read(repo), expected(files))


def test_chunks_of_groups_are_restored(tmp_path: Path) -> None:
    files = []
    for first in (0, 2):
        path = tmp_path / f"{first}.nc"
        days(first, 2).to_netcdf(path, group="air/surface", engine="h5netcdf")
        files.append(str(aged(path)))
    repo = new_repo(tmp_path)
    run(repo, files, group="archive")
    before = read(repo, "archive/air/surface")
    ledger = ledger_of(repo)
    paths = repo.readonly_session("main")._workspace.paths()
    assert forget_chunks(repo, [path for path in paths if "_icefloe" not in path])

    report = repo.repair(sources=ledger)

    assert report.complete, ledger.unusable
    assert_same(read(repo, "archive/air/surface"), before)


def forget_chunks(repo: Repository, paths: list[str]) -> int:
    """Delete the chunk objects of some arrays of main; how many."""
    workspace = repo.readonly_session("main")._workspace
    keys = []
    for path in paths:
        node = workspace.node(path)
        for ref in getattr(node.node_data, "manifests", ()) if node else ():
            refs = workspace.manifest_refs(node, ref)  # type: ignore[arg-type]
            keys += [f"chunks/{refs.ref(row).chunk_id}" for row in range(len(refs))]  # type: ignore[union-attr]
    repo.storage.delete(keys)
    return len(keys)


def test_changed_or_missing_file_restores_nothing(tmp_path: Path) -> None:
    files = archive(tmp_path, (2, 3, 2))
    repo = new_repo(tmp_path)
    run(repo, files, chunks={"time": 2})
    write(Path(files[1]), days(2, 3) + 1000)
    os.utime(files[1], (1, 1))
    os.remove(files[2])
    ledger = ledger_of(repo)
    forget_chunks(repo, ["/t2m"])

    report = repo.repair(sources=ledger)

    actions = {str(row["object"]): row["action"] for row in report.table().rows()}
    assert actions["/t2m [0, 0, 0]"] == "restored"
    assert set(actions.values()) == {"restored", "left unchanged"}
    assert not report.complete
    assert ledger.unusable[files[1]] == "it has changed since it was ingested"
    assert "no such file" in ledger.unusable[files[2]]


def test_touched_source_file_is_treated_as_unchanged_by_repair(tmp_path: Path) -> None:
    files = archive(tmp_path, (2, 3))
    repo = new_repo(tmp_path)
    run(repo, files, chunks={"time": 2})
    before = read(repo)
    for file in files:
        os.utime(file, (1, 1))
    ledger = ledger_of(repo)
    forget_chunks(repo, ["/t2m"])

    assert repo.repair(sources=ledger).complete

    assert_same(read(repo), before)


def test_chunks_without_a_source_are_not_restored(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    run(repo, archive(tmp_path))
    ledger = ledger_of(repo)

    assert ledger("/elsewhere/x", (0,)) is None
    assert np.asarray(ledger("/t2m", (0, 0, 0))).dtype == np.float32
