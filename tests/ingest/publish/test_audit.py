"""Checks of staged data: each can fail, names the position, and covers all new data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import InvalidInputError, Repository, in_memory_storage
from icefloe.ingest import make_options
from icefloe.ingest.job import ingest
from icefloe.ingest.options import Check
from icefloe.ingest.publish.audit import _join_boxes, _split_box
from tests.support.ingest.files import (
    Travelling,
    archive,
    days,
    expected,
    listening,
    new_repo,
    read,
    read_all,
    run,
    write,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

ALL = (
    Check("monotone"),
    Check("source"),
    Check("gaps"),
    Check("range", "t2m", low=0, high=5000),
    Check("nulls", "t2m"),
    Check("python", call="tests.ingest.publish.test_audit:has_values"),
)


def has_values(dataset: xr.Dataset) -> bool:
    """A check of a user's own that passes."""
    return bool(dataset["t2m"].notnull().all())


def says_no(dataset: xr.Dataset) -> bool:
    """One that does not."""
    return bool(dataset["t2m"].isnull().all())


def breaks(dataset: xr.Dataset) -> None:
    """One that is wrong itself."""
    raise ZeroDivisionError("oops")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three files of two days each."""
    return archive(tmp_path_factory.mktemp("archive"), (2, 2, 2))


@pytest.fixture(scope="module")
def odd_files(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two of them, and one with a gap before it, high values and one that is missing."""
    odd = days(9, 2)
    odd["t2m"][1, 2, 3] = np.nan
    return [*files[:2], write(tmp_path_factory.mktemp("odd") / "odd.nc", odd)]


@pytest.mark.parametrize("mode", ["native", "virtual", "hybrid"])
def test_all_checks_pass_on_good_data(files: list[str], tmp_path: Path, mode: str) -> None:
    repo = new_repo(tmp_path)

    report = run(repo, files, mode=mode, checks=ALL)

    assert [(each.passed, each.text) for each in report.checks] == [(True, "no problems found")] * len(ALL)
    assert report.published == repo.lookup_branch("main")


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_failed_checks_name_the_position(odd_files: list[str], tmp_path: Path, mode: str) -> None:
    """Also for referenced data, and in the metadata of the branch that keeps failed data."""
    failing = {
        Check("range", "t2m", low=0, high=50): "t2m is 130.375 at time=2024-01-11 00:00:00, lat=60.0",
        Check("range", "lat", high=50): "lat is 60 at lat=60.0, outside of -inf to 50",
        Check("nulls", "t2m", most=0.001): (
            "0.83% of t2m are missing, more than 0.10%, for example at time=2024-01-11"
        ),
        Check("gaps"): "time has 1 gap, the first between 2024-01-04 00:00:00 and 2024-01-10 00:00:00",
        Check(
            "python", call="tests.ingest.publish.test_audit:says_no"
        ): "tests.ingest.publish.test_audit:says_no returned a false value",
    }
    repo = new_repo(tmp_path)

    report = run(repo, odd_files, mode=mode, checks=(*failing, Check("monotone")))

    assert [each.passed for each in report.checks] == [False] * len(failing) + [True]
    for said, result in zip(failing.values(), report.checks, strict=False):
        assert said in result.text
    assert (report.ok, report.published, report.failed_branch) == (False, None, "main.ingest-failed")
    assert len(list(repo.ancestry(branch="main"))) == 1
    tip = next(iter(repo.ancestry(branch="main.ingest-failed")))
    assert tip.metadata["icefloe_ingest"]["checks"][:-1] == [
        {"name": check.title, "passed": False, "text": result.text}
        for check, result in zip(failing, report.checks, strict=False)
    ]


@pytest.mark.parametrize("check", [Check("range", "t2m", high=50), Check("monotone"), Check("source")])
def test_data_staged_by_an_interrupted_run_is_checked(tmp_path: Path, check: Check) -> None:
    """The last run has nothing to write, but checks all staged data."""
    staged = [days(9, 2), days(0, 2)] if check.name == "range" else [days(0, 2), days(2, 2)]
    files = [write(tmp_path / f"{n}.nc", each) for n, each in enumerate(staged)]
    repo = new_repo(tmp_path)
    given: dict[str, Any] = {"concat_dim": "time", "commit_every": 1}

    def told(sentence: str) -> None:
        if sentence.startswith("check"):
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError), listening(told):
        ingest(repo, files, make_options(**given), Travelling())
    if check.name != "range":
        (staging,) = repo.list_branches() - {"main"}
        spoil = repo.writable_session(staging)
        array = zarr.open_array(spoil.store, path="t2m" if check.name == "source" else "time", mode="r+")
        array[...] = np.asarray(array[...])[[0, 2, 1, 3]]
        spoil.commit("something went wrong")

    report = run(repo, files, checks=(check,), **given)

    assert not report.ok
    assert report.checks[0].text
    assert len(list(repo.ancestry(branch="main"))) == 1


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (Check("range", "t3m", low=0), "requires 't3m', which is not a variable; did you mean t2m"),
        (Check("python", call="no_such_module:f"), "cannot be loaded: No module named 'no_such_module'"),
        (Check("python", call="tests.ingest.publish.test_audit:nothing"), "cannot be loaded"),
    ],
)
def test_unrunnable_checks_are_refused_before_writing(
    files: list[str], tmp_path: Path, check: Check, said: str
) -> None:
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=said):
        run(repo, files, checks=(check,))

    assert repo.list_branches() == {"main"}


def test_check_that_raises_leaves_the_branch_unchanged(files: list[str], tmp_path: Path) -> None:
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=r"test_audit:breaks cannot be run: ZeroDivisionError: oops"):
        run(repo, files, checks=(Check("python", call="tests.ingest.publish.test_audit:breaks"),))
    with pytest.raises(
        InvalidInputError, match="the check range requires numbers, but 'time' has another type"
    ):
        run(repo, files, checks=(Check("range", "time", low=0),))

    assert len(list(repo.ancestry(branch="main"))) == 1


def test_checks_with_invalid_bounds_are_refused() -> None:
    wrong: tuple[dict[str, Any], ...] = ({"low": 3, "high": 2}, {"most": 2}, {"low": "deep"})
    for given in wrong:
        with pytest.raises(InvalidInputError, match="the check range: "):
            Check("range", "t2m", **given)


def test_data_is_published_to_a_version_1_repository(files: list[str]) -> None:
    """They cannot amend: the results of the checks are in a separate commit."""
    repo = Repository.create(in_memory_storage(), spec_version=1)

    report = run(repo, files)

    tip = next(iter(repo.ancestry(branch="main")))
    assert tip.id == report.published
    assert [each["passed"] for each in tip.metadata["icefloe_ingest"]["checks"]] == [True, True]
    assert repo.list_branches() == {"main"}


def test_audited_boxes_are_merged_and_split_at_chunk_boundaries() -> None:
    assert _join_boxes([((0, 2), (0, 9)), ((2, 4), (0, 9)), ((7, 8), (0, 9))]) == [
        ((0, 4), (0, 9)),
        ((7, 8), (0, 9)),
    ]
    assert _join_boxes([]) == []
    assert list(_split_box(((3, 21), (0, 99)), (4, 99), 400)) == [
        ((start, stop), (0, 99)) for start, stop in ((3, 4), (4, 8), (8, 12), (12, 16), (16, 20), (20, 21))
    ]
    assert list(_split_box(((3, 21), (0, 6)), (4, 6), 999)) == [((3, 21), (0, 6))]
    assert list(_split_box(((3, 3), (0, 6)), (4, 6), 999)) == []


@pytest.mark.parametrize("labels", [[5, 9, 7], ["b", "a", "c"]])
def test_labels_of_other_dimensions_may_be_unsorted(tmp_path: Path, labels: list[Any]) -> None:
    """For example stations: only coordinates along which files are concatenated must be monotonic."""
    files = []
    for first in (0, 2):
        data = {"v": (("time", "station"), np.arange(6.0).reshape(2, 3))}
        coords = {"time": np.arange(first, first + 2), "station": labels}
        files.append(write(tmp_path / f"{first}.nc", xr.Dataset(data, coords)))

    for some in (files, files[:1]):
        assert run(new_repo(tmp_path), some, checks=(Check("monotone"), Check("gaps"))).ok


def test_text_labels_of_the_concat_dim_may_be_unsorted(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{number}.nc", xr.Dataset({"v": ("model", [1.0, 2.0])}, {"model": names}))
        for number, names in enumerate((["a", "d"], ["c", "b"]))
    ]
    repo = new_repo(tmp_path)

    assert run(repo, files, concat_dim="model", checks=(Check("monotone"), Check("gaps"))).ok

    assert read(repo).model.values.tolist() == ["a", "d", "c", "b"]


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_source_check_skips_overridden_variables(tmp_path: Path, mode: str) -> None:
    """The first file provides static fields, and other files may differ."""
    files = [
        write(tmp_path / f"{first}.nc", days(first, 2, height=("lat", np.arange(5.0) + first)))
        for first in (0, 2, 4)
    ]
    how: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    repo = new_repo(tmp_path)

    for some in (files[:2], files):
        assert run(repo, some, mode=mode, **how).ok

    xr.testing.assert_identical(read_all(repo), expected(files, **how))
