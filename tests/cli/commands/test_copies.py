"""The commands clone and export."""

from __future__ import annotations

from pathlib import Path

import h5netcdf
import numpy as np
import pytest
import zarr

from icefloe import Repository
from icefloe.cli import errors as faults
from icefloe.storage import local_filesystem_storage
from tests.support.terminal import Terminal


def test_clone_copies_only_new_objects_the_second_time(typed: Terminal, tmp_path: Path) -> None:
    target = str(tmp_path / "copy")

    planned = typed.json("clone", target, "--dry-run")
    assert "snapshots" in typed("clone", target, "--read-back")
    again = typed.json("clone", target)

    assert planned["snapshots"] == 3
    assert again["snapshots"] == again["bytes_copied"] == 0
    copied = Repository.open(local_filesystem_storage(target))
    assert copied.verify("chunks").ok
    assert copied.list_tags() == {"v1"}


def test_clone_copies_selected_branches_and_depth(typed: Terminal, tmp_path: Path) -> None:
    typed("clone", str(tmp_path / "copy"), "--depth", "1", "--no-tags")

    copied = Repository.open(local_filesystem_storage(str(tmp_path / "copy")))
    messages = [info.message for info in copied.ancestry(branch="main")]
    assert messages == ["correct t2m", "Repository initialized"]
    assert copied.list_tags() == set()


def test_clone_to_a_nonempty_location_is_rejected(typed: Terminal, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "notes").write_text("mine")

    typed("clone", str(tmp_path / "copy"), code=faults.USAGE)

    assert "notes" in typed.errors


def test_export_writes_plain_zarr_of_a_revision(typed: Terminal, tmp_path: Path) -> None:
    told = typed.json("export", str(tmp_path / "plain"), "-r", "v1")

    assert told["chunks_copied"] == 3
    assert zarr.open_array(str(tmp_path / "plain"), path="air/t2m", mode="r")[0, 0] == 0


def test_export_command_writes_only_the_selected_region(typed: Terminal, tmp_path: Path) -> None:
    target = str(tmp_path / "plain")
    words = ("--group", "air", "--variables", "t2m", "--isel", "time=1:", "--isel", "x=2")

    assert "would write 1 array and 1 group" in typed("export", target, *words, "--dry-run")
    typed("export", target, *words)

    found = zarr.open_array(target, path="t2m", mode="r")
    assert np.asarray(found[:]).tolist() == [[6.0], [10.0]]


def test_export_variables_may_be_separate_options(typed: Terminal, tmp_path: Path) -> None:
    words = ("--group", "air", "--variables", "wind", "--variables", "t2m")

    typed("export", str(tmp_path / "plain"), *words, code=faults.NOT_FOUND)

    assert "wind" in typed.errors


def test_export_command_writes_netcdf(typed: Terminal, tmp_path: Path) -> None:
    typed("export", str(tmp_path / "out.nc"), "--group", "air")

    with h5netcdf.File(tmp_path / "out.nc") as file:
        assert file["t2m"].shape == (3, 4)


@pytest.mark.needs("pyarrow", "sqlglot")
@pytest.mark.parametrize("words", [(), ("--format", "parquet", "--executor", "processes:1")])
def test_export_command_writes_parquet(typed: Terminal, tmp_path: Path, words: tuple[str, ...]) -> None:
    target = str(tmp_path / ("rows" if words else "rows.parquet"))

    assert "would write 12 rows with the columns" in typed(
        "export", target, "--group", "air", "--dry-run", *words
    )
    report = typed.json("export", target, "--group", "air", *words)

    assert (report["rows"], report["files"]) == (12, 1)
    assert len(list(Path(target).glob("part-*.parquet"))) == 1


@pytest.mark.needs("pyiceberg", "sqlglot")
def test_export_command_writes_an_iceberg_table(typed: Terminal, tmp_path: Path) -> None:
    catalog = ("--format", "iceberg", "--catalog", f"sqlite:///{tmp_path}/catalog.db")

    assert "wrote 12 rows" in typed("export", "air.t2m", "--group", "air", *catalog)
    typed("export", "air.t2m", "--group", "air", *catalog, code=faults.CONFLICT)
    assert "or replace its rows with --overwrite" in typed.errors
    assert "wrote 4 rows" in typed(
        "export", "air.t2m", "--group", "air", "--isel", "time=0", *catalog, "--overwrite"
    )


def test_export_options_of_other_formats_are_rejected(typed: Terminal, tmp_path: Path) -> None:
    for words in (("--format", "iceberg"), ("--catalog", "sqlite:///c.db"), ("--partition-by", "time")):
        typed("export", str(tmp_path / "plain"), *words, code=faults.USAGE)

    assert not (tmp_path / "plain").exists()


def test_export_rejects_invalid_selections(typed: Terminal, tmp_path: Path) -> None:
    for words in (("--isel", "time"), ("--isel", "time=a:b"), ("--sel", "=3"), ("--isel", "z=1")):
        typed("export", str(tmp_path / "plain"), *words, code=faults.USAGE)

    typed("export", str(tmp_path / "plain"), "--variables", "nope", code=faults.NOT_FOUND)
    assert not (tmp_path / "plain").exists()
