"""Appends and windows of icefloe in repositories that the official library uses, too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
import zarr

import icefloe
from tests.support.feed_rows import ENCODING, rows, stored

pytestmark = pytest.mark.compat

icechunk: Any = pytest.importorskip("icechunk")


@pytest.fixture
def both(tmp_path: Path) -> tuple[icefloe.Repository, Any]:
    """Create a repository with twelve rows, and open it with both libraries."""
    ours = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)), spec_version=1)
    icefloe.append(rows(0, 12), ours, encoding=ENCODING)
    return ours, icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))


def test_append_follows_a_commit_of_the_official_library(both: tuple[icefloe.Repository, Any]) -> None:
    repo, official = both
    session = repo.writable_session("main")
    icefloe.xarray.to_icechunk(rows(14, 2), session, append_dim="time", mode="a-")
    theirs = official.writable_session("main")
    rows(12, 2).to_zarr(theirs.store, append_dim="time", mode="a-", consolidated=False)
    theirs.commit("official append")

    session.commit("ours", rebase_with=icefloe.AppendSolver("time"))

    read = xr.open_zarr(official.readonly_session("main").store, consolidated=False).load()
    xr.testing.assert_equal(read, rows(0, 16))


def test_official_session_can_rebase_over_an_append(both: tuple[icefloe.Repository, Any]) -> None:
    repo, official = both
    theirs = official.writable_session("main")
    zarr.open_group(theirs.store).attrs["note"] = "x"
    icefloe.append(rows(12), repo)

    theirs.commit("note", rebase_with=icechunk.ConflictDetector())

    xr.testing.assert_equal(stored(repo).drop_attrs(), rows(0, 13))


@pytest.mark.parametrize("keeps_ours", [True, False])
def test_official_session_conflicts_with_a_moved_window(
    both: tuple[icefloe.Repository, Any], keeps_ours: bool
) -> None:
    repo, official = both
    theirs = official.writable_session("main")
    array: Any = zarr.open_group(theirs.store)["t"]
    array[11] = 5.0
    repo.keep_window(timedelta(hours=5))
    selection = icechunk.VersionSelection
    chosen = selection.UseOurs if keeps_ours else selection.UseTheirs

    with pytest.raises(icechunk.RebaseFailedError):
        theirs.commit("late", rebase_with=icechunk.BasicConflictSolver(on_chunk_conflict=chosen))

    xr.testing.assert_equal(stored(repo), rows(6, 6))
