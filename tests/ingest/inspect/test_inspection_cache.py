"""All problems are reported at once, and the next run does not inspect good files again."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe import Repository
from icefloe.cli.main import main
from icefloe.ingest.bad_files import ProblemsError
from icefloe.ingest.inspect import inspect_files as tasks
from tests.support.ingest.files import (
    archive,
    assert_same,
    days,
    expected,
    new_repo,
    read_all,
    run,
    write,
)
from tests.support.ingest.modes import modes_in_turn

COLUMNS = ["file", "variable", "problem", "remedy"]


def bad_archive(folder: Path) -> list[str]:
    """Four good files; one damaged, one in other units, one with a time twice, and a copy that overlaps."""
    files = archive(folder, (2, 2, 2, 2))
    (folder / "damaged.nc").write_bytes(b"no NetCDF")
    celsius = days(8, 2)
    celsius["t2m"].attrs["units"] = "degC"
    twice = xr.concat([days(10, 2), days(11, 1)], "time", data_vars="minimal")
    return [
        *files,
        str(folder / "damaged.nc"),
        write(folder / "celsius.nc", celsius),
        write(folder / "twice.nc", twice),
        write(folder / "copy.nc", days(1, 2)),
    ]


def chunk_objects(repo: Repository) -> int:
    return len(list(repo.storage.list_prefix("chunks")))


class Inspected:
    """Counts the files that are opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        usual: Any = vars(tasks)["inspect_file"]

        def watched(source: Any, reading: Any) -> Any:
            self.names.append(Path(source.url).name)
            return usual(source, reading)

        monkeypatch.setattr(tasks, "inspect_file", watched)


@modes_in_turn("batch", [None, 2])
def test_all_problems_are_reported_at_once(tmp_path: Path, mode: str, batch: int | None) -> None:
    files = bad_archive(tmp_path)
    repo = new_repo(tmp_path)

    with pytest.raises(ProblemsError) as caught:
        run(repo, files, mode=mode, commit_every=batch)
    report = run(repo, files, mode=mode, on_bad_file="skip", commit_every=batch)

    problems = {Path(row["file"]).name: row for row in caught.value.problems.rows()}
    assert set(problems) == {"damaged.nc", "celsius.nc", "twice.nc", "copy.nc"}
    assert problems["celsius.nc"]["variable"] == "t2m"
    assert "2024-01-12 00:00:00 appears twice" in problems["twice.nc"]["problem"]
    assert "concat_dim" in problems["twice.nc"]["remedy"]
    assert "overlap" in problems["copy.nc"]["problem"]
    assert caught.value.headline == "4 files cannot be ingested"
    assert {Path(each.source.url).name for each in report.bad} == set(problems)
    assert_same(read_all(repo), expected(files[:4]))


def test_ingest_command_prints_problems_as_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ingest", *bad_archive(tmp_path), str(tmp_path / "repo"), "--executor", "threads"]

    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert main([*words, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)

    header = next(
        number
        for number, line in enumerate(lines)
        if line.split() == ["file", "variable", "problem", "remedy"]
    )
    assert "4 files cannot be ingested" in lines[header - 1]
    assert {Path(line.split()[0]).name for line in lines[header + 1 : header + 5]} == {
        *("damaged.nc", "celsius.nc", "twice.nc", "copy.nc")
    }
    assert "--on-bad-file skip" in lines[-1]
    assert {tuple(row) for row in document["problems"]} == {tuple(COLUMNS)}


@pytest.mark.parametrize("mode", ["native", "hybrid"])
def test_good_files_are_not_inspected_again(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = bad_archive(tmp_path)
    label = ("time", np.array(["x", "y"], object))
    flag = ((), np.int16(3), {"flag_values": np.array([1, 3], "i2")})
    files.append(write(tmp_path / "labels.nc", days(20, 2, label=label, flag=flag)))
    repo = new_repo(tmp_path)
    with pytest.raises(ProblemsError):
        run(repo, files, mode=mode, join="outer")
    assert chunk_objects(repo) == 1
    monkeypatch.setattr(tasks, "describe_plain_file", lambda *_: None)
    inspected = Inspected(monkeypatch)
    write(Path(files[1]), days(2, 2) + 1)
    os.utime(files[1], (1, 1))

    report = run(repo, files, mode=mode, on_bad_file="skip", join="outer")

    assert set(inspected.names) == {"001.nc", "damaged.nc"}
    assert report.published
    wanted = expected([*files[:4], files[-1]], join="outer")
    assert_same(read_all(repo)[["t2m", "flag"]], wanted[["t2m", "flag"]])


def test_the_inspection_is_deleted_on_success_and_by_gc(tmp_path: Path) -> None:
    files = bad_archive(tmp_path)
    repo, other = new_repo(tmp_path), new_repo(tmp_path)
    for each in (repo, other):
        with pytest.raises(ProblemsError):
            run(each, files)
        assert chunk_objects(each) == 1

    other.garbage_collect(datetime.now(UTC) + timedelta(hours=1))
    run(repo, files[:4])

    assert chunk_objects(other) == 0
    before = chunk_objects(repo)
    repo.garbage_collect(datetime.now(UTC) + timedelta(hours=1))
    assert chunk_objects(repo) == before


def test_damaged_inspection_is_ignored(tmp_path: Path) -> None:
    files = bad_archive(tmp_path)
    repo = new_repo(tmp_path)
    with pytest.raises(ProblemsError):
        run(repo, files)
    (stored,) = list(repo.storage.list_prefix("chunks"))
    for data in (b"", b"no zstd", b"\x28\xb5\x2f\xfd"):
        repo.storage.put(f"chunks/{stored.key.rpartition('/')[2]}", data)

        with pytest.raises(ProblemsError):
            run(repo, files)

    run(repo, files[:4])
    assert_same(read_all(repo), expected(files[:4]))
