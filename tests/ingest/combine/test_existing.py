"""Times that are there already: whoever wrote them, nothing is lost without a word."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe import InvalidInputError, Repository
from icefloe.ingest.job import ingest
from icefloe.ingest.ledger import read_ledger
from icefloe.ingest.options import make_options
from icefloe.ingest.records import ProblemsError
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
    """What a user of xarray does, who knows nothing of ledgers."""
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
def test_over_arrays_without_a_ledger(tmp_path: Path, case: str) -> None:
    """They are refused, or replaced where that is asked for, and the report says so."""
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
    assert [row.box()["time"][1] for row in read_ledger(repo.readonly_session("main"), "")] == [
        int(np.flatnonzero(wanted.time == new.time[-1])[0]) + 1
    ]


def test_what_others_wrote_stays(tmp_path: Path) -> None:
    """Before the first ingest, and between two, along the dimension or as an array of their own."""
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


def test_variables_that_files_lack_stay(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    old = days(0, 4)
    by_hand(repo, old.assign(p=old.t2m * 2))
    file = write(tmp_path / "new.nc", days(2, 3) + 1000)

    run(repo, file, on_change="ingest", **OUTER)

    assert read(repo)["p"].isel(time=slice(4)).equals(old.t2m * 2)
    assert read(repo)["t2m"].values.max() > 1000


@pytest.mark.parametrize("count", [2, 5])
def test_two_files_that_begin_alike(tmp_path: Path, count: int) -> None:
    """xarray would take the last one, and not tell."""
    files = [*archive(tmp_path, (3, 3)), write(tmp_path / "other.nc", days(3, count))]

    sentence = refused(new_repo(tmp_path), files)

    assert "they overlap" in sentence
    assert files[1] in sentence
    assert files[2] in sentence


def test_files_that_were_moved(tmp_path: Path) -> None:
    """Under other names, and with other times of change, they are new, and their times are there."""
    files = archive(tmp_path / "old", (3, 3))
    repo = new_repo(tmp_path)
    run(repo, files)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    for file in (tmp_path / "new").iterdir():
        os.utime(file, (1, 1))

    sentence = refused(repo, str(tmp_path / "new" / "*.nc"))

    assert "they overlap" in sentence


def test_files_that_overlap_are_named(tmp_path: Path) -> None:
    files = [*archive(tmp_path, (3, 3)), write(tmp_path / "other.nc", days(4, 5))]

    sentence = refused(new_repo(tmp_path), files)

    assert f"{files[2]}: time: begins at 2024-01-05" in sentence
    assert files[1] in sentence


def test_a_file_that_changed_since_it_was_staged_comes_anew(tmp_path: Path) -> None:
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


def test_the_ledger_follows_rows_that_others_come_between(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "0.nc", days(0, 2).isel(lat=[0, 2, 4])),
        write(tmp_path / "1.nc", days(2, 2)),
    ]
    repo = new_repo(tmp_path)

    run(repo, files[0])
    run(repo, files, **OUTER)

    rows = {Path(row.source).name: row.box() for row in read_ledger(repo.readonly_session("main"), "")}
    assert rows["0.nc"] == {"time": (0, 2), "lat": (0, 5), "lon": (0, 4)}
    assert_same(read(repo), expected(files, **OUTER))


def test_a_dimension_that_no_file_has(tmp_path: Path) -> None:
    files = archive(tmp_path)

    with pytest.raises(InvalidInputError, match="did you mean time"):
        run(new_repo(tmp_path), files, concat_dim="tmie")
    same = [write(tmp_path / f"{n}" / "run.nc", days(0, 2)) for n in range(2)]
    repo = new_repo(tmp_path)
    report = run(repo, same, concat_dim="experiment")

    assert read(repo).sizes["experiment"] == 2
    assert [each.text.split(":")[0] for each in report.findings] == [
        "is in no file, which have lat, lon, time"
    ]
