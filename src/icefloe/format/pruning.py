"""Remove snapshots from the history, and reconnect the remaining ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import Ragged, expand_ranges, to_splits
from icefloe.encoding.flatbuffers.records import Records
from icefloe.encoding.flatbuffers.schema import Vector
from icefloe.encoding.flatbuffers.tables import Tables
from icefloe.format.repo_info import NO_PARENT, SnapshotInfos
from icefloe.format.schema import SNAPSHOT_INFO

_LOGS = "pruned_ancestor_tx_logs"


def list_ancestors(parents: Sequence[int], row: int) -> list[int]:
    """Return the rows of the ancestors of a snapshot, nearest first."""
    found = []
    while (row := parents[row]) != NO_PARENT:
        found.append(row)
    return found


def shorten_history(snapshots: SnapshotInfos, keep: NDArray[np.bool_]) -> SnapshotInfos:
    """Prune a history to the given snapshots. Each gets its nearest kept ancestor as parent, and inherits the
    transaction logs of the snapshots removed in between.
    """
    parents = snapshots.parents.tolist()
    onto: dict[int, int] = {}
    skipped: dict[int, list[int]] = {}
    for row in np.flatnonzero(keep).tolist():
        above, between = parents[row], []
        while above != NO_PARENT and not keep[above]:
            between.append(above)
            above = parents[above]
        if between:
            onto[row], skipped[row] = above, between
    return prune_snapshots(snapshots, keep, onto, skipped)


def get_inherited_logs(snapshots: SnapshotInfos, rows: Any = slice(None)) -> NDArray[np.uint8]:
    """Return the ids of all transaction logs inherited from pruned snapshots, of shape (n, 12), unsorted."""
    if _LOGS not in snapshots.columns.columns:
        return snapshots.ids[:0]
    logs: NDArray[np.uint8] = snapshots.columns[_LOGS].take(rows).items.view(np.uint8)
    return logs.reshape(-1, snapshots.ids.shape[1])


def prune_snapshots(
    snapshots: SnapshotInfos,
    keep: NDArray[np.bool_],
    parents: Mapping[int, int],
    skipped: Mapping[int, Sequence[int]],
) -> SnapshotInfos:
    """Prune a history to the given snapshots, with given new parents.

    `parents` contains the new parent of each kept snapshot, `skipped` the pruned snapshots whose transaction
    logs it inherits.

    Skipped rows are listed nearest first. Each also passes on the logs that it inherited itself.
    """
    columns = snapshots.columns
    onto = np.array(snapshots.parents, np.int64)
    for row, parent in parents.items():
        onto[row] = parent
    places = np.append(np.cumsum(keep) - 1, NO_PARENT)  # NO_PARENT (-1) selects the last element
    changed = {**columns.columns, "parent_offset": places[onto].astype(np.int32)}
    present = dict(columns.present)
    if skipped:
        changed[_LOGS], present[_LOGS] = _inherit_logs(snapshots, skipped)
    kept = Tables(len(columns), changed, present).take(np.flatnonzero(keep))
    return SnapshotInfos(Records(SNAPSHOT_INFO, "repo", columns=kept))


def _inherit_logs(
    snapshots: SnapshotInfos, skipped: Mapping[int, Sequence[int]]
) -> tuple[Ragged, NDArray[np.bool_]]:
    """Return the logs that each snapshot inherits, oldest first, and a mask of the snapshots that inherit
    any.
    """
    field = SNAPSHOT_INFO.fields[_LOGS]
    if not isinstance(field, Vector):
        raise TypeError(f"{_LOGS} is not a vector of ids")
    ids = np.ascontiguousarray(snapshots.ids).reshape(-1).view(field.dtype)
    known = Ragged(ids[:0], np.zeros(len(ids) + 1, np.int64))
    if _LOGS in snapshots.columns.columns:
        known = snapshots.columns[_LOGS]
    lengths = known.lengths.copy()
    parts, taken = [], 0
    for row in sorted(skipped):
        new = _logs_of(ids, known, np.array(skipped[row][::-1], np.int64))
        parts += [known.items[taken : known.splits[row]], new]
        taken = known.splits[row]
        lengths[row] += len(new)
    return Ragged(np.concatenate([*parts, known.items[taken:]]), to_splits(lengths)), lengths > 0


def _logs_of(ids: NDArray[Any], known: Ragged, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return the logs of some snapshots in order, each preceded by the logs that it inherited."""
    lengths = known.lengths[rows]
    own = np.cumsum(lengths + 1) - 1
    logs = np.empty(len(rows) + int(lengths.sum()), ids.dtype)
    logs[own] = ids[rows]
    older = np.ones(len(logs), np.bool_)
    older[own] = False
    logs[older] = known.items[expand_ranges(known.splits[rows], lengths)]
    return logs
