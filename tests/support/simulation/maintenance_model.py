"""The allowed effects of maintenance: which snapshots are removed, and which objects may be deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.support.simulation.audit import Stored, Violation


def after_expiration(
    stored: Stored, flushed_at: Callable[[str], int], cutoff_us: int
) -> tuple[Mapping[str, str | None], Mapping[str, tuple[str, ...]]]:
    """Return the parents and inherited logs of the snapshots that an expiration keeps.

    Snapshots that were flushed before the time are removed, except first snapshots and tips. A kept snapshot
    whose parent is removed gets the first snapshot as parent, and inherits the logs of all in between.
    """
    named = {*stored.refs.branches.values(), *stored.refs.tags.values()}
    gone = {
        id
        for id, parent in stored.parents.items()
        if parent is not None and id not in named and flushed_at(id) < cutoff_us
    }
    parents: dict[str, str | None] = {}
    inherited: dict[str, tuple[str, ...]] = {}
    for id, parent in stored.parents.items():
        if id in gone:
            continue
        parents[id], inherited[id] = parent, stored.inherited[id]
        if parent in gone:
            line = ancestors(stored.parents, id)
            parents[id] = line[-1]
            inherited[id] = (*_logs(stored, line[-2::-1]), *stored.inherited[id])
    return parents, inherited


def check_collection(
    before: Stored, after: Stored, written_at_us: Callable[[str], int], cutoff_us: int
) -> None:
    """Check that a collection removed only old unreachable snapshots, and adjusted the parents of others."""
    reached = {
        id
        for tip in {*before.refs.branches.values(), *before.refs.tags.values()}
        for id in (tip, *ancestors(before.parents, tip))
    }
    gone = before.parents.keys() - after.parents.keys()
    if gone & reached:
        raise Violation(f"collected {gone & reached}, to which refs lead")
    young = {id for id in gone if written_at_us(id) >= cutoff_us}
    if young:
        raise Violation(f"collected {young}, which are not old enough")
    for id, parent in after.parents.items():
        line = ancestors(before.parents, id)
        left = [each for each in line if each not in gone]
        if parent != (left[0] if left else None):
            raise Violation(f"after a collection the parent of {id} is {parent}, of {line}")
        skipped = line[: line.index(left[0])] if left else line
        if after.inherited[id] != (*_logs(before, skipped[::-1]), *before.inherited[id]):
            raise Violation(f"after a collection {id} inherits {after.inherited[id]}")


def ancestors(parents: Mapping[str, str | None], id: str) -> list[str]:
    """Return the ancestors of a snapshot, from the nearest to the first."""
    found = []
    at = parents[id]
    while at is not None:
        found.append(at)
        at = parents[at]
    return found


def _logs(stored: Stored, oldest_first: list[str]) -> list[str]:
    return [log for id in oldest_first for log in (*stored.inherited[id], id)]
