"""Find the commit that wrote each chunk of an array, by comparing references along the history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import NodeId, SnapshotId
from icefloe._internal.report import Report
from icefloe._internal.table import Table
from icefloe.comparison.array_references import find_array, to_coordinate_columns
from icefloe.comparison.versions import read_differing_references
from icefloe.core.changeset import count_dimensions
from icefloe.core.merge.lineage import get_merged_tips
from icefloe.core.merge.state_changes import State
from icefloe.errors import SnapshotNotFoundError
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL, ArrayManifest
from icefloe.format.repo_info import SnapshotInfo as StoredInfo
from icefloe.format.snapshot import NodeSnapshot
from icefloe.history.snapshots import to_public_snapshot
from icefloe.repository import Repository
from icefloe.snapshots import SnapshotInfo
from icefloe.storage.base import ObjectNotFoundError

__all__ = ["Blame", "blame"]

Rows: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
OLDER: Final = -1
"""The writer index of chunks that were written before the known part of the history."""


@dataclass(frozen=True, slots=True, eq=False)
class Blame(Report):
    """The commit that wrote each chunk of an array, as a table with one row per chunk."""

    path: str
    """Path of the array."""
    snapshot_id: str
    """The snapshot that contains the chunks."""
    coords: NDArray[np.uint32]
    """The chunk coordinates, of shape `(rows, dimensions)`."""
    commits: tuple[SnapshotInfo, ...]
    """The commits that `writers` and `merges` refer to, newest first."""
    writers: NDArray[np.int64]
    """The index into `commits` of the commit that wrote each chunk; -1 if this commit has expired or lies
    beyond the limit.
    """
    merges: NDArray[np.int64]
    """The index into `commits` of the last merge that brought each chunk to this branch; -1 if it was not
    merged.
    """

    def __len__(self) -> int:
        return len(self.coords)

    def table(self) -> Table:
        """Return a table with one row per chunk and the commit that wrote it.

        Returns
        -------
        Table
            The columns `chunk_0`, `chunk_1`, ... (coordinates), `snapshot_id`, `written_at`, `message` and
            `merged_by`. For older chunks `snapshot_id` is "older", and time and message are null.
        """
        ids = np.array([*(each.id for each in self.commits), "older"], object)
        times = [np.datetime64(each.written_at.replace(tzinfo=None), "us") for each in self.commits]
        messages = np.array([*(each.message for each in self.commits), None], object)
        columns: dict[str, Any] = to_coordinate_columns(self.coords)
        columns |= {
            "snapshot_id": ids[self.writers],
            "written_at": np.array([*times, np.datetime64("NaT", "us")], "M8[us]")[self.writers],
            "message": messages[self.writers],
            "merged_by": np.array([*ids[:-1], None], object)[self.merges],
        }
        return Table(columns)

    def to_dict(self) -> dict[str, Any]:
        # docstring inherited
        return {"path": self.path, "snapshot_id": self.snapshot_id, "chunks": list(self.table().rows())}


def blame(
    repo: Repository,
    path: str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    limit: int | None = None,
) -> Blame:
    """Find the commit that last wrote each chunk of an array.

    References are compared along the first-parent history. Moving a chunk by reference, with its array or
    inside the chunk grid, does not change its writer. A chunk that was merged is attributed to the commit on
    the merged branch that wrote it.

    Parameters
    ----------
    repo
        The repository.
    path
        Path of the array in this version.
    branch, tag, snapshot_id
        The version, `main` by default.
    limit
        The maximum number of commits to search. Chunks that are older have no writer. All by default.

    Returns
    -------
    Blame
        One row per chunk that exists.

    Raises
    ------
    NodeNotFoundError
        There is no array at the path.

    Examples
    --------
    >>> import numpy as np, zarr, icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="data") as store:
    ...     _ = zarr.create_array(store, name="a", data=np.arange(1, 5), chunks=2)
    >>> with repo.transaction("main", message="correct") as store:
    ...     zarr.open_array(store, path="a")[3] = 7
    >>> [row["message"] for row in icefloe.blame(repo, "a").table().rows()]
    ['data', 'correct']
    """
    version = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id}
    given = {name: value for name, value in version.items() if value is not None}
    session = repo.readonly_session(**(given or {"branch": "main"}))  # type: ignore[arg-type]
    node = find_array(session._workspace, path)
    walk = _Walk(repo, node.id, session._workspace.refs(node).coords, limit)
    walk.run(SnapshotId.parse(session.snapshot_id))
    return walk.result(node.path, session.snapshot_id)


@dataclass(frozen=True, slots=True)
class _PendingChunks:
    """Chunks whose commit must still be found in the history of a snapshot."""

    tip: SnapshotId
    rows: Rows
    """The row of each chunk in the final result."""
    at: Coords
    """The coordinates of each chunk in this snapshot."""
    merge: SnapshotId | None = None

    def take(self, which: Mask) -> _PendingChunks:
        return _PendingChunks(self.tip, self.rows[which], self.at[which], self.merge)


class _Walk:
    """A walk through the history to find the commit that wrote each chunk."""

    def __init__(self, repo: Repository, node: NodeId, coords: Coords, limit: int | None) -> None:
        self._refs, self._assets = repo._refs, repo._assets
        self._node, self._coords = node, coords
        self._left = limit
        self._writers = np.full(len(coords), OLDER)
        self._merges = np.full(len(coords), OLDER)
        self._infos: dict[SnapshotId, StoredInfo] = {}
        """The visited commits. Writers and merges are numbered in the order of insertion."""
        self._states: dict[SnapshotId, State] = {}

    def run(self, tip: SnapshotId) -> None:
        waiting = [_PendingChunks(tip, np.arange(len(self._coords)), self._coords)]
        while waiting:
            waiting += self._assign_commits(waiting.pop())

    def result(self, path: str, snapshot_id: str) -> Blame:
        infos = list(self._infos.values())
        named = np.unique(np.concatenate([self._writers, self._merges]))
        newest_first = sorted(named[named >= 0].tolist(), key=lambda code: -infos[code].flushed_at_us)
        codes = np.full(len(infos) + 1, OLDER)
        codes[newest_first] = np.arange(len(newest_first))
        commits = tuple(to_public_snapshot(infos[code]) for code in newest_first)
        return Blame(path, snapshot_id, self._coords, commits, codes[self._writers], codes[self._merges])

    def _assign_commits(self, pending: _PendingChunks) -> Iterator[_PendingChunks]:
        """Assign chunks to commits along the first parents of a tip. Yield the chunks that came from
        merges.
        """
        for info in self._ancestry(pending.tip):
            if not len(pending.rows) or self._left == 0:
                return
            self._left = None if self._left is None else self._left - 1
            self._infos.setdefault(info.id, info)
            parent = None if info.parent_id is None else self._load_state(info.parent_id)
            if parent is None and info.parent_id is not None:
                return  # the commit has expired
            changed, at = self._find_changed(pending, self._load_snapshot(info.id), parent)
            new = pending.take(changed)
            pending = _PendingChunks(pending.tip, pending.rows[~changed], at[~changed], pending.merge)
            if len(new.rows):
                yield from self._credit_commit(info, new)

    def _ancestry(self, tip: SnapshotId) -> Iterator[StoredInfo]:
        try:
            yield from self._refs.ancestry(tip)
        except SnapshotNotFoundError:
            return

    def _load_state(self, id: SnapshotId) -> State | None:
        try:
            return self._load_snapshot(id)
        except (ObjectNotFoundError, SnapshotNotFoundError):
            return None

    def _load_snapshot(self, id: SnapshotId) -> State:
        if id not in self._states:
            if len(self._states) > 2:  # a commit and its parent are enough
                self._states.pop(next(iter(self._states)))
            self._states[id] = State(self._assets.snapshot(id), self._assets)
        return self._states[id]

    def _find_changed(
        self, pending: _PendingChunks, after: State, before: State | None
    ) -> tuple[Mask, Coords]:
        """Return a mask of the chunks that a commit wrote, and the previous coordinates of the unchanged
        chunks.
        """
        new = after.node(self._node)
        old = None if before is None else before.node(self._node)
        if before is None or old is None or new is None or count_dimensions(old) != count_dimensions(new):
            return np.ones(len(pending.rows), np.bool_), pending.at
        olds, news = read_differing_references(before.workspace, after.workspace, old, new)
        moves = _find_origins(olds, news)
        return _apply_moves(pending.at, news.coords, olds.coords, moves)

    def _credit_commit(self, info: StoredInfo, new: _PendingChunks) -> Iterator[_PendingChunks]:
        """Assign a commit's new chunks to the commit itself, to a merged branch, or to no commit."""
        merge = info.id if new.merge is None else new.merge
        is_unknown = False
        for tip in get_merged_tips(info):
            state = self._load_state(tip)
            node = None if state is None else state.node(self._node)
            if state is None:
                is_unknown = True
            elif node is not None:
                came = self._is_equal_in(state, node, self._load_snapshot(info.id), new.at)
                yield _PendingChunks(tip, new.rows[came], new.at[came], merge)
                new = new.take(~came)
        own = self._is_own(info, new.at)
        if not is_unknown:
            numbers = list(self._infos)
            self._writers[new.rows[own]] = numbers.index(info.id)
            self._merges[new.rows[own]] = OLDER if new.merge is None else numbers.index(new.merge)

    def _is_equal_in(self, tip: State, node: NodeSnapshot, state: State, at: Coords) -> Mask:
        """Return a mask of the chunks of a merge commit that are identical in the merged tip."""
        own = state.node(self._node)
        if own is None or not len(at):
            return np.zeros(len(at), np.bool_)
        order = np.lexsort(at.T[::-1]) if at.shape[1] else np.arange(len(at))
        here, there = state.refs_at(own, at[order]), tip.refs_at(node, at[order])
        kept = coordinates.contains(here.coords, there.coords)
        still = coordinates.contains(there.coords, here.coords)
        both = here.take(kept)
        equal = both.coords[both.equal_rows(there.take(still))]
        return np.isin(_encode_coordinates(at), _encode_coordinates(equal))

    def _is_own(self, info: StoredInfo, at: Coords) -> Mask:
        """Return a mask of the chunks that the commit itself wrote, as opposed to an expired commit before
        it.
        """
        pruned = bool(info.pruned_ancestor_tx_logs)
        if not pruned and not self._is_after_first(info):
            return np.ones(len(at), np.bool_)
        try:
            log = self._assets.transaction_log(info.id)
        except ObjectNotFoundError:
            return np.full(len(at), not pruned)
        if any(row.tobytes() == bytes(self._node) for row in log.new_arrays):
            return np.ones(len(at), np.bool_)
        named = [coords for node, coords in log.updated_chunks if node == self._node]
        keys = [_encode_coordinates(each) for each in named if each.shape[1] == at.shape[1]]
        return np.isin(_encode_coordinates(at), np.concatenate(keys)) if keys else np.zeros(len(at), np.bool_)

    def _is_after_first(self, info: StoredInfo) -> bool:
        """Return True if the parent is the first snapshot. V1 does not list expired snapshots."""
        if info.parent_id is None:
            return True
        return self._refs.snapshot(info.parent_id).parent_id is None


def _find_origins(olds: ArrayManifest, news: ArrayManifest) -> Rows:
    """For each later reference, find the earlier row that it comes from; -1 if it was newly written."""
    origins = np.full(len(news), -1, np.int64)
    if not len(olds) or not len(news):
        return origins
    kept, still = (
        coordinates.contains(news.coords, olds.coords),
        coordinates.contains(olds.coords, news.coords),
    )
    before, after = np.flatnonzero(still), np.flatnonzero(kept)
    equal = news.take(kept).equal_rows(olds.take(still))
    origins[after[equal]] = before[equal]
    changed, left = np.flatnonzero(origins < 0), np.ones(len(olds), np.bool_)
    left[before[equal]] = False
    native = news.kind[changed] == NATIVE
    all_old = np.arange(len(olds))
    origins[changed[native]] = _match_references(olds, all_old, news, changed[native])
    others = changed[~native]
    origins[others] = _match_moves(olds, np.flatnonzero(left), news, others)
    return origins


def _match_references(olds: ArrayManifest, among: Rows, news: ArrayManifest, rows: Rows) -> Rows:
    """Find rows with the same reference at any coordinates; -1 where there is none."""
    keys, wanted = _reference_keys(olds, among), _reference_keys(news, rows)
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted)
    found = np.full(len(rows), -1, np.int64)
    inside = np.flatnonzero(place < len(keys))
    same = inside[keys[order][place[inside]] == wanted[inside]]
    found[same] = among[order[place[same]]]
    return found


def _match_moves(olds: ArrayManifest, left: Rows, news: ArrayManifest, rows: Rows) -> Rows:
    """Find inline and virtual chunks that were moved within the grid.

    Unlike ids of chunk objects, such references can be equal by chance. They count as moved only if all
    changed chunks come from coordinates that changed, or if most of them were shifted by the same offset.
    """
    found = _match_references(olds, left, news, rows)
    if not len(rows) or (found >= 0).all():
        return found
    matched = np.flatnonzero(found >= 0)
    if not len(matched):
        return found
    offsets = news.coords[rows[matched]].astype(np.int64) - olds.coords[found[matched]].astype(np.int64)
    values, counts = np.unique(offsets, axis=0, return_counts=True)
    shifted = news.coords[rows].astype(np.int64) - values[counts.argmax()]
    found[:] = -1
    inside = np.flatnonzero((shifted >= 0).all(axis=1))
    places = _find_rows(olds.coords, shifted[inside].astype(np.uint32))
    there = places >= 0
    sources, targets = places[there], inside[there]
    same = _reference_keys(olds, sources) == _reference_keys(news, rows[targets])
    if 2 * same.sum() > len(rows):
        found[targets[same]] = sources[same]
    return found


def _apply_moves(at: Coords, news: Coords, olds: Coords, origins: Rows) -> tuple[Mask, Coords]:
    """Return a mask of the chunks that were written, and the previous coordinates of the unchanged chunks."""
    places = _find_rows(news, at)
    listed = np.flatnonzero(places >= 0)
    came_from = origins[places[listed]]
    changed = np.zeros(len(at), np.bool_)
    changed[listed] = came_from < 0
    before = at.copy()
    before[listed[came_from >= 0]] = olds[came_from[came_from >= 0]]
    return changed, before


def _find_rows(coords: Coords, wanted: Coords) -> Rows:
    """Look up coordinates in sorted coordinates, and return their rows; -1 for coordinates that are not
    found.
    """
    keys, sought = _encode_coordinates(coords), _encode_coordinates(wanted)
    found = np.full(len(wanted), -1, np.int64)
    place = np.searchsorted(keys, sought)
    inside = np.flatnonzero(place < len(keys))
    same = inside[keys[place[inside]] == sought[inside]]
    found[same] = place[same]
    return found


def _encode_coordinates(coords: Coords) -> NDArray[np.bytes_]:
    """Encode coordinates as bytes that sort in the same order."""
    count, rank = coords.shape
    rows = np.ones((count, 1 + 4 * rank), np.uint8)
    rows[:, 1:] = coords.astype(">u4").view(np.uint8).reshape(count, 4 * rank)
    return rows.view(f"S{1 + 4 * rank}").reshape(count)


def _reference_keys(refs: ArrayManifest, rows: Rows) -> NDArray[np.bytes_]:
    """Return keys that identify the referenced bytes: chunk id or digest, offset and length."""
    kinds = refs.kind[rows]
    keys = np.zeros((len(rows), 33), np.uint8)
    keys[:, 0] = kinds
    native, virtual, inline = (np.flatnonzero(kinds == kind) for kind in (NATIVE, VIRTUAL, INLINE))
    keys[native, 1:13] = refs.chunk_ids[rows[native]]
    used, codes = np.unique(refs.location_codes[rows[virtual]], return_inverse=True)
    keys[virtual, 1:17] = _digests(refs.locations.take(used).tolist())[codes]
    keys[inline, 1:17] = _digests(refs.inline.take(rows[inline]).tolist())
    ranged = np.flatnonzero(kinds != INLINE)
    numbers = np.stack([refs.offsets[rows[ranged]], refs.lengths[rows[ranged]]], axis=1)
    keys[ranged, 17:] = numbers.astype(">u8").view(np.uint8).reshape(len(ranged), 16)
    return keys.view("S33").reshape(len(rows))


def _digests(texts: Sequence[bytes]) -> NDArray[np.uint8]:
    joined = b"".join(blake2b(each, digest_size=16).digest() for each in texts)
    return np.frombuffer(joined, np.uint8).reshape(len(texts), 16)
