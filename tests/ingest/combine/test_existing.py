"""New files that overlap stored data: nothing is replaced silently."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe import InvalidInputError, Repository
from icefloe.ingest.bad_files import ProblemsError
from icefloe.ingest.job import ingest
from icefloe.ingest.ledger import read_ledger
from icefloe.ingest.options import make_options
from tests.support.ingest.files import (
    OUTER,
    Travelling,
    archive,
    assert_same,
    days,
    expected,
    listening,
    new_repo,
    read,
    run,
    write,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def by_hand(repo: Repository, dataset: xr.Dataset, **options: Any) -> None:
    """Write a dataset with xarray, without a ledger."""
    session = repo.writable_session("main")
    dataset.to_zarr(session.store, consolidated=False, zarr_format=3, **options)
    session.commit("by hand")


def refused(repo: Repository, sources: Any, **options: Any) -> str:
    before = repo.lookup_branch("main")
    with pytest.raises(ProblemsError) as caught:
        run(repo, sources, **options)
    assert repo.lookup_branch("main") == before
    assert repo.list_branches() == {"main"}
    return str(caught.value)


OVERLAPS = {"end": (2, 3), "same begin": (0, 6), "part": (1, 1), "before": (-2, 3), "same": (0, 4)}


@pytest.mark.parametrize("case", [*OVERLAPS, "end, along time"])
def test_ingest_rejects_or_replaces_data_of_unknown_origin(tmp_path: Path, case: str) -> None:
    """They are refused, or replace the data on request, and the report says so."""
    options: dict[str, Any] = {"concat_dim": "time"} if case.endswith("along time") else {}
    first, count = OVERLAPS[case.partition(",")[0]]
    repo = new_repo(tmp_path)
    by_hand(repo, days(0, 4))
    file = write(tmp_path / "new.nc", days(first, count) + 1000)

    sentence = refused(repo, file, **options)
    report = run(repo, file, on_change="ingest", **options)

    assert 'on_change="ingest"' in sentence
    assert any("is replaced" in each.text for each in report.findings)
    old = days(0, 4)
    new = days(first, count) + 1000
    wanted = xr.concat([old.drop_sel(time=new.time.values, errors="ignore"), new], "time").sortby("time")
    assert read(repo)["time"].equals(wanted["time"])
    assert read(repo)["t2m"].equals(wanted["t2m"])
    assert [row.box["time"][1] for row in read_ledger(repo.readonly_session("main"), "")] == [
        int(np.flatnonzero(wanted.time == new.time[-1])[0]) + 1
    ]


def test_data_written_by_other_programs_is_kept(tmp_path: Path) -> None:
    """Before the first ingest, and between two, along the dimension or as a separate array."""
    files = archive(tmp_path, (3, 3, 3, 3))
    repo = new_repo(tmp_path)
    by_hand(repo, days(0, 3))

    run(repo, files[1])
    by_hand(repo, days(6, 3), append_dim="time")
    mask = xr.Dataset({"mask": (("lat", "lon"), np.ones((5, 4), "i4"))})
    by_hand(repo, mask, mode="a")
    run(repo, files[3], chunks={"lat": 5})

    assert read(repo)["t2m"].equals(days(0, 12)["t2m"])
    assert read(repo)["mask"].values.tolist() == mask["mask"].values.tolist()


def test_stored_variables_missing_from_files_are_kept(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    old = days(0, 4)
    by_hand(repo, old.assign(p=old.t2m * 2))
    file = write(tmp_path / "new.nc", days(2, 3) + 1000)

    run(repo, file, on_change="ingest", **OUTER)

    assert read(repo)["p"].isel(time=slice(4)).equals(old.t2m * 2)
    assert read(repo)["t2m"].values.max() > 1000


@pytest.mark.parametrize("count", [2, 5])
def test_two_files_with_the_same_first_label_are_refused(tmp_path: Path, count: int) -> None:
    """xarray would silently use the last one."""
    files = [*archive(tmp_path, (3, 3)), write(tmp_path / "other.nc", days(3, count))]

    sentence = refused(new_repo(tmp_path), files)

    assert "the files overlap" in sentence
    assert files[1] in sentence
    assert files[2] in sentence


def test_renamed_and_touched_files_are_treated_as_new_overlapping_files(tmp_path: Path) -> None:
    """With other names and modification times, files are new, and their times overlap."""
    files = archive(tmp_path / "old", (3, 3))
    repo = new_repo(tmp_path)
    run(repo, files)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    for file in (tmp_path / "new").iterdir():
        os.utime(file, (1, 1))

    sentence = refused(repo, str(tmp_path / "new" / "*.nc"))

    assert "the files overlap" in sentence


def test_overlapping_files_are_named(tmp_path: Path) -> None:
    files = [*archive(tmp_path, (3, 3)), write(tmp_path / "other.nc", days(4, 5))]

    sentence = refused(new_repo(tmp_path), files)

    assert f"{files[2]}: time: begins at 2024-01-05" in sentence
    assert files[1] in sentence


def test_every_ingest_problem_names_a_remedy(tmp_path: Path) -> None:
    """Files that overlap, repeat others, or cannot be opened."""
    files = [*archive(tmp_path, (3, 3, 3)), write(tmp_path / "copy.nc", days(3, 3))]
    files += [write(tmp_path / "late.nc", days(8, 4))]
    (tmp_path / "junk.nc").write_bytes(b"junk" * 10)

    with pytest.raises(ProblemsError) as caught:
        run(new_repo(tmp_path), [*files, str(tmp_path / "junk.nc")])

    rows = {Path(row["file"]).name: row for row in caught.value.problems.rows()}
    assert len(rows) == 3
    assert all(row["remedy"] for row in rows.values())
    assert rows["junk.nc"]["remedy"] == "repair or remove the file"
    assert "pass the format" not in rows["junk.nc"]["problem"]
    assert rows["late.nc"]["problem"].startswith("begins at 2024-01-09 00:00:00, but ")
    assert rows["late.nc"]["remedy"].startswith("leave one of them out")


def test_file_changed_after_staging_is_ingested_again(tmp_path: Path) -> None:
    files = archive(tmp_path, (3, 3, 3))
    repo = new_repo(tmp_path)

    def stop(sentence: str) -> None:
        if sentence.startswith("commit"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), listening(stop):
        ingest(repo, files, make_options(commit_every=1), Travelling())
    write(Path(files[0]), days(0, 3) + 1000)
    os.utime(files[0], (1, 1))
    report = run(repo, files, commit_every=1)

    assert report.ok
    assert_same(read(repo), expected(files))
    assert len(read_ledger(repo.readonly_session("main"), "")) == 3


def test_ledger_regions_move_when_files_are_inserted(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "0.nc", days(0, 2).isel(lat=[0, 2, 4])),
        write(tmp_path / "1.nc", days(2, 2)),
    ]
    repo = new_repo(tmp_path)

    run(repo, files[0])
    run(repo, files, **OUTER)

    rows = {Path(row.source).name: row.box for row in read_ledger(repo.readonly_session("main"), "")}
    assert rows["0.nc"] == {"time": (0, 2), "lat": (0, 5), "lon": (0, 4)}
    assert_same(read(repo), expected(files, **OUTER))


def test_unknown_concat_dim_is_created_and_reported(tmp_path: Path) -> None:
    files = archive(tmp_path)

    with pytest.raises(InvalidInputError, match="did you mean time"):
        run(new_repo(tmp_path), files, concat_dim="tmie")
    same = [write(tmp_path / f"{n}" / "run.nc", days(0, 2)) for n in range(2)]
    repo = new_repo(tmp_path)
    report = run(repo, same, concat_dim="experiment")

    assert read(repo).sizes["experiment"] == 2
    assert [each.text.split(":")[0] for each in report.findings] == [
        "is not in any file (they have lat, lon, time)"
    ]
