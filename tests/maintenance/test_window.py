"""Moving windows: which rows are dropped, and what moves or is rewritten."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.cli import main as app
from icefloe.maintenance import window
from tests.support.feed_rows import ENCODING, rows, stored


@pytest.fixture
def repo(tmp_path: Any) -> icefloe.Repository:
    """Create a repository with twelve hours, in chunks of one and three rows."""
    repo = icefloe.Repository.create(icefloe.storage_from_url(str(tmp_path / "repo"), sync=False))
    icefloe.append(rows(0, 12), repo, encoding=ENCODING)
    return repo


@pytest.fixture
def no_small_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arrays of a few hundred bytes count as large."""
    monkeypatch.setattr(window, "SMALL_ARRAY_BYTES", 200)


@pytest.mark.usefixtures("no_small_arrays")
def test_window_begins_at_a_chunk_of_every_large_array(repo: icefloe.Repository) -> None:
    report = repo.keep_window(timedelta(hours=7))

    # Row 4 is seven hours before the last one; chunks of u start at rows 3 and 6.
    assert (report.dropped, report.kept) == ({"/": 3}, {"/": 9})
    xr.testing.assert_equal(stored(repo), rows(3, 9))


def test_window_of_small_arrays_may_start_inside_a_chunk(repo: icefloe.Repository) -> None:
    report = repo.keep_window(timedelta(hours=7))

    assert report.dropped == {"/": 4}
    assert report.rewritten_bytes > 0
    xr.testing.assert_equal(stored(repo), rows(4, 8))


@pytest.mark.usefixtures("no_small_arrays")
def test_exact_window_rewrites_the_chunks_it_splits(repo: icefloe.Repository) -> None:
    planned = repo.keep_window(timedelta(hours=7), exact=True, dry_run=True)
    assert planned.snapshot_id is None
    assert len(stored(repo).time) == 12

    report = repo.keep_window(timedelta(hours=7), exact=True)

    assert report.rewritten_bytes == planned.rewritten_bytes
    xr.testing.assert_equal(stored(repo), rows(4, 8))


@pytest.mark.parametrize("hours", [3, 4])
def test_dropped_rows_do_not_reappear_after_an_append(repo: icefloe.Repository, hours: int) -> None:
    repo.keep_window(timedelta(hours=hours))
    with repo.transaction("main", message="grow") as store:
        group = zarr.open_group(store)
        for name in ("t", "u", "time"):
            array: Any = group[name]
            array.resize((array.shape[0] + 3, *array.shape[1:]))

    found = zarr.open_group(repo.readonly_session("main").store, mode="r")

    for name in ("t", "u"):
        tail: Any = found[name]
        assert np.isnan(tail[-3:]).all()


@pytest.mark.usefixtures("no_small_arrays")
def test_window_without_a_common_boundary_is_refused(repo: icefloe.Repository) -> None:
    tip = repo.lookup_branch("main")

    with pytest.raises(icefloe.InvalidInputError, match="no chunk of /u starts before it"):
        repo.keep_window(timedelta(hours=10))

    assert repo.lookup_branch("main") == tip


@pytest.mark.usefixtures("no_small_arrays")
def test_window_with_chunk_boundaries_that_never_coincide_is_refused() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="chunks of 7 and 11 rows") as store:
        group = zarr.create_group(store)
        for name, size in (("a", 7), ("b", 11), ("time", 60)):
            data = np.arange(60.0)
            group.create_array(name, data=data, chunks=(size,), dimension_names=["time"])

    with pytest.raises(
        icefloe.InvalidInputError, match="no row starts a chunk in both /b and the other arrays"
    ):
        repo.keep_window(5.0)


def test_window_that_keeps_everything_makes_no_commit(repo: icefloe.Repository) -> None:
    tip = repo.lookup_branch("main")

    report = repo.keep_window(timedelta(days=3))

    assert report.snapshot_id is None
    assert repo.lookup_branch("main") == tip


@pytest.mark.parametrize(
    ("keep", "dim", "message"),
    [
        (3.0, "time", "must be a duration"),
        (timedelta(1), "x", "must be a number"),
        (1.0, "y", "no group has"),
        (timedelta(hours=-1), "time", "would drop every label"),
        (float("nan"), "x", "would drop every label"),
    ],
)
def test_window_in_units_that_do_not_fit_the_labels_is_rejected(
    repo: icefloe.Repository, keep: Any, dim: str, message: str
) -> None:
    with pytest.raises(icefloe.InvalidInputError, match=message):
        repo.keep_window(keep, dim)


def test_window_of_unsorted_labels_is_rejected(repo: icefloe.Repository) -> None:
    icefloe.append(rows(20), repo)
    icefloe.append(rows(15), repo)

    with pytest.raises(icefloe.InvalidInputError, match="not strictly ascending"):
        repo.keep_window(timedelta(hours=1))


def test_session_that_writes_old_rows_conflicts(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    array: Any = zarr.open_group(session.store)["t"]
    array[5] = 0.0
    repo.keep_window(timedelta(hours=7))

    with pytest.raises(icefloe.RebaseFailedError):
        session.commit("write", rebase_with=icefloe.BasicConflictSolver())


def test_window_command_drops_rows(repo: icefloe.Repository, tmp_path: Any, capsys: Any) -> None:
    assert app.main(["window", str(tmp_path / "repo"), "--keep", "7h"]) == 0

    assert "/: 4 rows of time dropped, 8 kept" in capsys.readouterr().out
    assert app.main(["window", str(tmp_path / "repo"), "--keep", "soon"]) == 2
    assert "'soon' is neither a duration such as 12h or 3d, nor a number" in capsys.readouterr().err
