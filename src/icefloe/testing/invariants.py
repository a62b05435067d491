"""What holds in every repository, to be asserted by tests.

The names are those of `icechunk.testing.invariants`.
"""

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
    """Assert that an ancestry, newest first, goes back in time, names no snapshot twice and ends at a root.

    With `known_commits` every snapshot must be one of them. The root is the initial snapshot, unless
    `must_contain_initial` is false: after an expiration any snapshot may have become one.
    """
    _hold(bool(ancestry), "the ancestry is empty")
    ids = [snapshot.id for snapshot in ancestry]
    _hold(len(set(ids)) == len(ids), f"a snapshot is its own ancestor: {ids}")
    for newer, older in pairwise(ancestry):
        _hold(newer.written_at > older.written_at, f"{newer.id} is not younger than its ancestor {older.id}")
        _hold(newer.parent_id is not None, f"{newer.id} has no parent, but {older.id} is listed as one")
    if known_commits is not None:
        _hold(known_commits.issuperset(ids), f"nobody made {sorted(set(ids) - known_commits)}")
    root = ancestry[-1]
    _hold(root.parent_id is None, f"the ancestry ends at {root.id}, which has the parent {root.parent_id}")
    if must_contain_initial:
        initial = str(INITIAL_SNAPSHOT_ID)
        _hold(root.id == initial, f"the ancestry ends at {root.id}, not at the initial snapshot")


def assert_moves_sorted_by_final_path(moved_nodes: list[tuple[str, str]]) -> None:
    """Assert that moves stand in the order of where they lead to, compared segment by segment."""
    targets = [target.split("/") for _, target in moved_nodes]
    _hold(targets == sorted(targets), f"moves are not in the order of their new paths: {moved_nodes}")


def assert_list_dir_equal(path: str, expected: list[str], actual: list[str]) -> None:
    """Assert that two listings of a folder are alike, but for the folder `c` of an array without chunks."""
    without_chunks = [[name for name in names if name != "c"] for names in (expected, actual)]
    _hold(without_chunks[0] == without_chunks[1], f"list_dir({path!r}) gives {actual}, not {expected}")


async def compare_list_dir(model: ModelStore, store: IcechunkStore, paths: Iterable[str]) -> None:
    """Assert that a store lists these folders as its model does."""
    for path in paths:
        expected = sorted([name async for name in model.list_dir(path)])
        actual = sorted([name async for name in store.list_dir(path)])
        assert_list_dir_equal(path, expected, actual)


def _hold(condition: bool, words: str) -> None:
    if not condition:
        raise AssertionError(words)
