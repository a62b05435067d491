"""Assertions that hold for every repository; same names as in `icechunk.testing.invariants`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID
from icefloe.snapshots import SnapshotInfo
from icefloe.store import IcechunkStore
from icefloe.testing.models import ModelStore

__all__ = [
    "assert_ancestry_invariants",
    "assert_list_dir_equal",
    "assert_moves_sorted_by_final_path",
    "compare_list_dir",
]


def assert_ancestry_invariants(
    ancestry: list[SnapshotInfo],
    known_commits: set[str] | None = None,
    *,
    must_contain_initial: bool = True,
) -> None:
    """Assert that an ancestry, newest first, goes back in time, has no duplicates and ends at a root.

    Parameters
    ----------
    ancestry
        The snapshots.
    known_commits
        If given, the ids that may occur.
    must_contain_initial
        If False, the root need not be the initial snapshot, as after an expiration.
    """
    _require(bool(ancestry), "the ancestry is empty")
    ids = [snapshot.id for snapshot in ancestry]
    _require(len(set(ids)) == len(ids), f"a snapshot occurs twice: {ids}")
    for newer, older in pairwise(ancestry):
        _require(newer.written_at > older.written_at, f"{newer.id} is not newer than its ancestor {older.id}")
        _require(newer.parent_id is not None, f"{newer.id} has no parent, but {older.id} is listed as one")
    if known_commits is not None:
        _require(known_commits.issuperset(ids), f"unknown snapshots: {sorted(set(ids) - known_commits)}")
    root = ancestry[-1]
    _require(root.parent_id is None, f"the ancestry ends at {root.id}, which has the parent {root.parent_id}")
    if must_contain_initial:
        initial = str(INITIAL_SNAPSHOT_ID)
        _require(root.id == initial, f"the ancestry ends at {root.id}, not at the initial snapshot")


def assert_moves_sorted_by_final_path(moved_nodes: list[tuple[str, str]]) -> None:
    """Assert that moves are sorted by their new paths, segment by segment.

    Parameters
    ----------
    moved_nodes
        Pairs of old and new paths.
    """
    targets = [target.split("/") for _, target in moved_nodes]
    _require(targets == sorted(targets), f"moves are not sorted by their new paths: {moved_nodes}")


def assert_list_dir_equal(path: str, expected: list[str], actual: list[str]) -> None:
    """Assert that two listings of a directory are equal, ignoring the chunk directory `c`.

    Parameters
    ----------
    path
        The path of the directory.
    expected, actual
        The sorted listings.
    """
    without_chunks = [[name for name in names if name != "c"] for names in (expected, actual)]
    _require(
        without_chunks[0] == without_chunks[1], f"list_dir({path!r}) returned {actual}, expected {expected}"
    )


async def compare_list_dir(model: ModelStore, store: IcechunkStore, paths: Iterable[str]) -> None:
    """Assert that a store and its model list the same names in the given directories.

    Parameters
    ----------
    model, store
        The stores to compare.
    paths
        The paths of the directories.
    """
    for path in paths:
        expected = sorted([name async for name in model.list_dir(path)])
        actual = sorted([name async for name in store.list_dir(path)])
        assert_list_dir_equal(path, expected, actual)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
