"""Append staged data to a target branch whose arrays other writers have extended in the meantime.

The staged commits become a single commit on top of the target branch. References to the staged data are moved
behind the rows of the other writers, so no file is read again. The ledger is not merged like data: the new
rows are added to the target's ledger, with the regions where their data ends up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe._internal.amounts import counted
from icefloe._internal.ids import SnapshotId
from icefloe._internal.paths import LEDGERS, is_within
from icefloe.core.changeset import ChangeSet
from icefloe.core.commit.flush import OWN_METADATA
from icefloe.core.dimensions import find_axis, find_coordinate_group
from icefloe.core.merge.state_changes import State, Touched, find_changes, find_touched
from icefloe.errors import RebaseFailedError
from icefloe.feeds.append_solver import AppendSolver
from icefloe.format.snapshot import ArrayNodeData
from icefloe.ingest.ledger import Ledger, LedgerRow, encode_region, write_ledger
from icefloe.ingest.options import Options
from icefloe.ingest.records import LOGGER, join_path
from icefloe.ingest.write.batch import METADATA
from icefloe.repository import Repository
from icefloe.session import Session


class NotAppendedError(Exception):
    """Error raised when staged data cannot be appended, and must be combined with the target again."""


@dataclass(frozen=True, slots=True)
class AppendedRows:
    """The result of appending staged data: the new snapshot and its new ledger rows."""

    snapshot_id: str
    rows: tuple[LedgerRow, ...]


def append_staged(repo: Repository, base: str, tip: str, branch: str, options: Options) -> AppendedRows:
    """Commit the data that was staged between two snapshots to a branch that contains the first snapshot.

    Raise NotAppendedError if the staged data does more than extend one dimension, or cannot be placed. With
    the order "strict", raise AppendConflictError instead.
    """
    session = repo.writable_session_at(branch, base)
    staged = repo.readonly_session(snapshot_id=tip)
    before, ours = (
        Ledger.read(each, options.group) for each in (repo.readonly_session(snapshot_id=base), staged)
    )
    target = repo.readonly_session(branch=branch)
    theirs = Ledger.read(target, options.group)
    if list(ours.rows[: len(before.rows)]) != list(before.rows):
        raise NotAppendedError("regions of earlier files changed")
    changes = _find_staged_changes(session, SnapshotId.parse(tip))
    solver = AppendSolver(_find_grown_dimension(session, changes), order=options.append_order or "sorted")
    with session.workspace.editing():
        session.workspace.rebase(session.workspace.base, changes)
    try:
        session.rebase(solver)
    except RebaseFailedError as error:
        if options.append_order == "strict":
            raise
        raise NotAppendedError(str(error)) from error
    known = {(row.source, row.target_group) for row in theirs.rows}
    new = [row for row in ours.rows[len(before.rows) :] if (row.source, row.target_group) not in known]
    moved = _Moves(staged, session, solver.dim, options.group, True).move(new)
    kept = _Moves(target, session, solver.dim, options.group, False).move(theirs.rows)
    write_ledger(session, options.group, [*kept, *moved], theirs.rows)
    metadata = _combine_metadata(repo, base, tip)
    made = session.commit(options.message or "Append what was ingested", metadata, allow_empty=True)
    for done in solver.appended:
        LOGGER.info(
            "appended %s after those of other writers: %s moved, %s rewritten",
            counted(done.num_rows, "row"),
            counted(done.num_moved, "reference"),
            counted(done.num_rewritten, "chunk"),
        )
    return AppendedRows(made, tuple(moved))


def _find_staged_changes(session: Session, tip: SnapshotId) -> ChangeSet:
    """Return the changes that were staged since the base of a session, except changes to the ledger."""
    assets, base = session.workspace.assets, session.workspace.base
    before, after = (State(each, assets) for each in (base, assets.snapshot(tip)))
    touched = find_touched(session._refs, assets, base.id, tip, session.executor)
    changes = find_changes(before, after, touched or Touched.of_all(before, after))
    for kept in (changes.created, changes.updated, changes.deleted):
        for path in [path for path in kept if is_within(path, LEDGERS)]:
            del kept[path]
    for id in [id for id, delta in changes.chunks.items() if is_within(delta.path, LEDGERS)]:
        del changes.chunks[id]
    return changes


def _find_grown_dimension(session: Session, changes: ChangeSet) -> str:
    """Return the dimension along which the staged data extends the arrays."""
    grown: set[str] = set()
    for path, node in changes.updated.items():
        old = session.workspace.node(path)
        if old is None or not isinstance(node.node_data, ArrayNodeData):
            continue
        was, now = (json.loads(each.user_data)["shape"] for each in (old, node))
        names = node.node_data.dimension_names or (None,) * len(now)
        if len(was) != len(now):
            raise NotAppendedError(f"{path} has other dimensions")
        grown |= {str(names[axis]) for axis in range(len(now)) if now[axis] > was[axis]}
    if len(grown) != 1 or changes.deleted:
        raise NotAppendedError("it is not an extension along one dimension")
    return grown.pop()


@dataclass(frozen=True, slots=True)
class _Moves:
    """The new positions of ledger regions along the dimension of an append."""

    origin: Session
    final: Session
    dim: str
    group: str
    are_new: bool
    """True if the rows come after those of the target. This is used only for arrays without labels."""

    def move(self, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
        """Return the ledger rows with their regions in the final arrays."""
        places: dict[str, NDArray[Any]] = {}
        moved = []
        for row in rows:
            if self.dim not in row.box:
                moved.append(row)
                continue
            if row.target_group not in places:
                places[row.target_group] = self._find_places(row)
            start, stop = row.box[self.dim]
            mine = places[row.target_group][start:stop]
            if len(mine) and ((mine < 0).any() or (np.diff(mine) != 1).any()):
                raise NotAppendedError(f"the rows of {row.source} are not adjacent any more")
            first = int(mine[0]) if len(mine) else start
            if first == start:
                moved.append(row)
                continue
            region: Mapping[str, Sequence[int]] = {**row.box, self.dim: (first, first + stop - start)}
            moved.append(replace(row, region=encode_region(region)))
        return moved

    def _find_places(self, row: LedgerRow) -> NDArray[Any]:
        """Return the final position of each index along the dimension; -1 if there is none."""
        name = row.names[0] if row.names else self.dim
        path = "/" + join_path(join_path(self.group, row.target_group), name)
        home = find_coordinate_group(self.origin.workspace.node, path, self.dim)
        if home is None:
            lengths = [_get_length(each, path, self.dim) for each in (self.origin, self.final)]
            return np.arange(lengths[0]) + (lengths[1] - lengths[0] if self.are_new else 0)
        ours, final = (_read_labels(each, f"{home}/{self.dim}") for each in (self.origin, self.final))
        order = np.argsort(final, kind="stable")
        found = order[np.minimum(final[order].searchsorted(ours), len(final) - 1)]
        return np.where(final[found] == ours, found, -1)


def _get_length(session: Session, path: str, dim: str) -> int:
    node = session.workspace.array(path)
    return int(json.loads(node.user_data)["shape"][find_axis(node, dim) or 0])


def _read_labels(session: Session, path: str) -> NDArray[Any]:
    """Read the stored labels of a coordinate. The append has already checked that their encodings match."""
    array: Any = zarr.open_array(session.store, path=path.strip("/"), mode="r")
    return np.asarray(array[...])


def _combine_metadata(repo: Repository, base: str, tip: str) -> dict[str, Any]:
    """Combine the metadata of several staged commits into the metadata of one commit."""
    infos = [*takewhile(lambda info: info.id != base, repo.ancestry(snapshot_id=tip))]
    metadata = {name: value for name, value in infos[0].metadata.items() if name != OWN_METADATA}
    notes = [note for info in reversed(infos) if isinstance(note := info.metadata.get(METADATA), dict)]
    files = {note.get("batch"): note.get("files", 0) for note in notes}
    if notes:
        metadata[METADATA] = {**notes[-1], "files": sum(files.values())}
    if len(files) > 1:
        metadata[METADATA]["batches"] = list(files)
    return metadata
