"""Rebase of a session that appended rows to arrays which others extended as well.

Two sides append to the same arrays: ours are the changes of the session, theirs the tip of the branch. Chunk
coordinates alone always conflict then, because both sides write behind the same old end. So rows are matched
by their label, the value of the coordinate of the dimension:

1. Find the datasets that we extended: the arrays that share a dimension and its coordinate.
2. Give every appended row its final position (`appended_rows`).
3. Move our references where a chunk keeps its content. Decode and write again what shares a chunk with their
   rows, or is no longer aligned with the chunk grid.

Nothing changes unless every step succeeds. The result is an ordinary set of changes relative to the tip, so
its transaction log is correct, and all other changes of the session are checked for conflicts as usual.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.amounts import format_bytes
from icefloe._internal.paths import get_parent, join, list_ancestors
from icefloe.conflicts import AppendConflictError
from icefloe.core.changeset import ArrayDelta, ChangeSet
from icefloe.core.chunk_grid import count_item_bytes
from icefloe.core.chunk_values import Values
from icefloe.core.dimensions import SMALL_ARRAY_BYTES, find_axis, find_coordinate_group
from icefloe.core.merge.appended_rows import (
    AppendOrder,
    Placement,
    PlacementError,
    Rows,
    place_by_label,
    place_by_position,
)
from icefloe.core.merge.conflict_details import label_text
from icefloe.core.workspace import Workspace
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest, ChunkRef, InlineRef, VirtualRef
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot, Snapshot

_CONSOLIDATED: Final = "consolidated_metadata"


@runtime_checkable
class AppendRules(Protocol):
    """The interface of solvers for concurrent appends: their decisions, and the encoding of chunks."""

    dim: str
    order: AppendOrder

    def decode(self, document: Mapping[str, Any], shape: Sequence[int], data: bytes | None) -> Values:
        """Decode a chunk of an array; without data it has the fill value."""

    def encode(self, document: Mapping[str, Any], values: Values) -> bytes | None:
        """Encode a chunk of an array; None if all values are the fill value."""

    def note(self, done: Sequence[Appended]) -> None:
        """Take note of what a rebase did, one record per dataset."""


def get_append_rules(solver: object) -> AppendRules | None:
    """Return a solver for concurrent appends; None for any other object."""
    return solver if isinstance(solver, AppendRules) else None


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of rebasing an append."""

    num_rows: int
    """The number of rows that follow those of the other side."""
    num_collapsed: int
    """The number of labels that both sides appended."""
    num_moved: int
    """The number of references that were moved without reading data."""
    num_rewritten: int
    """The number of chunks that were decoded and written again."""
    is_ascending: bool
    """True if the coordinate is still ascending."""


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """The changes of a session without its appends, and the appends relative to the tip of the branch."""

    rest: ChangeSet
    documents: Mapping[str, bytes]
    """New metadata by path."""
    deltas: Mapping[str, ArrayDelta]
    """Changed chunks by path."""
    done: tuple[Appended, ...]

    def apply(self, workspace: Workspace) -> None:
        """Add the appends to a workspace that is based on the tip."""
        for path, document in self.documents.items():
            workspace.set_metadata(path, document)
        for path, delta in self.deltas.items():
            if delta.segments:
                workspace.changes.delta(workspace.array(path)).extend(delta)


def plan_appends(
    ours: Workspace,
    tip: Snapshot | Workspace,
    rules: AppendRules,
    *,
    match_all: bool = False,
    dry_run: bool = False,
) -> AppendPlan | None:
    """Plan how appends of a session follow those at the tip; None if there is nothing to arrange.

    With `match_all`, labels are also matched with rows that the session started from, even if no one else
    appended. A dry run writes no chunks.

    Raises
    ------
    AppendConflictError
        If the two sides cannot be combined.
    """
    there = Workspace(tip, ours.assets) if isinstance(tip, Snapshot) else tip
    sides = _Sides(Workspace(ours.base, ours.assets), ours, there, rules, dry_run)
    rest = ours.changes.copy()
    documents: dict[str, bytes] = {}
    deltas: dict[str, ArrayDelta] = {}
    done = []
    for home, members in sides.datasets().items():
        dataset = _Dataset(sides, home, members, match_all)
        if not dataset.is_contested and not match_all:
            continue
        for path in dataset.members:
            placed = dataset.place(path)
            documents[path], deltas[path] = placed.document, placed.delta
            sides.forget(rest, path, placed)
        done.append(dataset.summary())
    if not done:
        return None
    sides.forget_equal(rest)
    documents |= sides.consolidated(rest, documents)
    return AppendPlan(rest, documents, deltas, tuple(done))


@dataclass(frozen=True, slots=True)
class _Placed:
    """The new state of one array."""

    document: bytes
    delta: ArrayDelta
    handled: Coords
    """Chunks of ours that the delta replaces."""
    num_moved: int
    num_rewritten: int


class _Sides:
    """The common base, our changes and the tip."""

    def __init__(
        self, base: Workspace, ours: Workspace, tip: Workspace, rules: AppendRules, dry_run: bool
    ) -> None:
        self.base, self.ours, self.tip, self.rules, self._dry_run = base, ours, tip, rules, dry_run

    def write(self, data: bytes) -> ChunkRef:
        """Store an encoded chunk, in memory if it is small or nothing must be written."""
        if self._dry_run or self.ours.is_inline(len(data)):
            return InlineRef(data)
        return self.ours.assets.write_chunk(data)

    def fail(self, path: str, reason: str) -> NoReturn:
        raise AppendConflictError(str(self.tip.base_id), path, self.rules.dim, reason)

    def axis_of(self, path: str) -> int:
        """Return the axis of the dimension in an array that has it."""
        axis = self.axis(self.tip.node(path) or self.ours.node(path))
        return 0 if axis is None else axis

    def axis(self, node: NodeSnapshot | None) -> int | None:
        """Return the axis of the dimension in an array; None if the array does not have it."""
        return find_axis(node, self.rules.dim)

    def length(self, node: NodeSnapshot | None) -> int:
        axis = self.axis(node)
        if node is None or axis is None or not isinstance(node.node_data, ArrayNodeData):
            return 0
        return node.node_data.shape[axis].array_length

    def home(self, path: str) -> str:
        """Return the closest group with a coordinate of the dimension, or the group of the array."""

        def find(path: str) -> NodeSnapshot | None:
            return self.ours.node(path) or self.tip.node(path)

        return find_coordinate_group(find, path, self.rules.dim) or get_parent(path) or "/"

    def datasets(self) -> dict[str, list[str]]:
        """Return the arrays of each dataset that we extended, by group."""
        changed = {*self.ours.changes.updated, *self.ours.changes.created}
        grown = {
            self.home(path)
            for path in changed
            if (before := self.base.node(path)) is not None
            and 0 < self.length(self.ours.node(path)) > self.length(before)
        }
        found: dict[str, list[str]] = {}
        for group in sorted(grown):
            paths = sorted({*self.tip.below(group), *(each for each in self.ours.below(group))})
            found[group] = [
                path
                for path in paths
                if self.axis(self.tip.node(path)) is not None
                or (path in self.ours.changes.created and self.axis(self.ours.node(path)) is not None)
            ]
            found[group] = [path for path in found[group] if self.home(path) == group]
        return found

    def forget(self, changes: ChangeSet, path: str, placed: _Placed) -> None:
        """Remove from our changes what was placed."""
        changes.updated.pop(path, None)
        created = changes.created.pop(path, None)
        node = created or self.ours.node(path)
        delta = None if node is None else changes.chunks.get(node.id)
        if delta is None or node is None:
            return
        delta.forget(placed.handled)
        if created is not None or not len(delta.coords()):
            del changes.chunks[node.id]

    def forget_equal(self, changes: ChangeSet) -> None:
        """Remove changes of ours to nodes without the dimension, if the tip has the same content."""
        for path, node in list(changes.updated.items()):
            theirs = self.tip.node(path)
            if theirs is not None and _parse_plain(theirs.user_data) == _parse_plain(node.user_data):
                del changes.updated[path]
        for id, delta in list(changes.chunks.items()):
            there = self.tip.node(delta.path)
            if there is None or there.id != id or not isinstance(there.node_data, ArrayNodeData):
                continue
            document = json.loads(there.user_data)
            here = self.ours.array(delta.path)
            if (
                _parse_plain(here.user_data) != _parse_plain(there.user_data)
                or _get_chunk_shape(document) is None
            ):
                continue
            same = [
                coords
                for coords in map(tuple, delta.coords().tolist())
                if self._are_equal(here, there, document, coords)
            ]
            delta.forget(coordinates.keep_last_of_equal(np.array(same, np.uint32).reshape(-1, delta.rank))[0])
            if not len(delta.coords()):
                del changes.chunks[id]

    def _are_equal(
        self, here: NodeSnapshot, there: NodeSnapshot, document: Mapping[str, Any], coords: tuple[int, ...]
    ) -> bool:
        one, other = self.ours.ref(here, coords), self.tip.ref(there, coords)
        if one == other:
            return True
        if isinstance(one, VirtualRef) or isinstance(other, VirtualRef):
            return False
        return _equal(
            self.values(self.ours, here, document, coords), self.values(self.tip, there, document, coords)
        )

    def values(
        self, side: Workspace, node: NodeSnapshot, document: Mapping[str, Any], coords: tuple[int, ...]
    ) -> Values:
        """Decode a chunk of one side, as large as the chunk grid says."""
        ref = side.ref(node, coords)
        data = None if ref is None else side.read(ref, 0, ref.length, f"{coords} of {node.path}")
        return self.rules.decode(document, _get_chunk_shape(document) or (), data)

    def consolidated(self, rest: ChangeSet, documents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the metadata of groups whose consolidated metadata describes extended arrays."""
        groups = sorted({group for path in documents for group in list_ancestors(path)})
        found: dict[str, bytes] = {}
        for group in groups:
            theirs = self.tip.node(group)
            if theirs is None:
                continue
            document = json.loads(theirs.user_data)
            entries = (document.get(_CONSOLIDATED) or {}).get("metadata")
            if not isinstance(entries, dict):
                continue
            mine = rest.updated.get(group)
            if mine is not None:
                if _parse_plain(mine.user_data) != _parse_plain(theirs.user_data):
                    continue  # both changed the group: an ordinary conflict
                del rest.updated[group]
            prefix = "" if group == "/" else group
            for path, content in documents.items():
                name = path[len(prefix) + 1 :]
                if path.startswith(f"{prefix}/") and name in entries:
                    entries[name] = json.loads(content)
            found[group] = json.dumps(document).encode()
        return found


class _Dataset:
    """The arrays that share a dimension and its coordinate."""

    def __init__(self, sides: _Sides, home: str, members: Sequence[str], match_all: bool) -> None:
        self._sides = sides
        self._dim = sides.rules.dim
        self._coordinate = join(home, self._dim) if join(home, self._dim) in members else None
        self.members = members
        self._match_all = match_all
        self._placed: dict[str, _Placed] = {}

    @cached_property
    def is_contested(self) -> bool:
        """Return whether the tip differs from our base in one of the arrays."""
        sides = self._sides
        return any(sides.base.node(path) != sides.tip.node(path) for path in self.members)

    def _get_length(self, side: Workspace) -> int:
        paths = self.members if self._coordinate is None else [self._coordinate]
        return max(self._sides.length(side.node(path)) for path in paths)

    @cached_property
    def _old(self) -> int:
        """The number of rows before either side appended."""
        return self._get_length(self._sides.base)

    @cached_property
    def _keeps_old_rows(self) -> bool:
        """Return whether the tip still has all rows of the base at the same positions."""
        sides, path = self._sides, self._coordinate
        if self._get_length(sides.tip) < self._old:
            return False
        if path is None:
            return True
        before, after = sides.base.node(path), sides.tip.node(path)
        if before is None or after is None:
            return False
        if before.id != after.id:
            return False
        (size,) = _get_chunk_shape(json.loads(after.user_data)) or (1,)
        whole = [range(self._old // size)]
        if sides.base.refs(before).within(whole) != sides.tip.refs(after).within(whole):
            return False
        start = self._old // size * size
        old = self._read_labels(sides.base, start, self._old)
        return _equal(old, self._read_labels(sides.tip, start, self._old))

    def _read_labels(self, side: Workspace, start: int, stop: int) -> Values:
        """Read labels of the coordinate, as they are stored."""
        if self._coordinate is None or start >= stop:
            return np.zeros(0)
        node = side.array(self._coordinate)
        document = json.loads(node.user_data)
        (size,) = _get_chunk_shape(document) or self._sides.fail(node.path, "its chunk grid is not regular")
        parts = [
            self._sides.values(side, node, document, (number,))
            for number in range(start // size, -(-stop // size))
        ]
        offset = start // size * size
        return np.concatenate(parts)[start - offset : stop - offset]

    @cached_property
    def _placement(self) -> Placement:
        sides, old = self._sides, self._old
        theirs, ours = self._get_length(sides.tip), self._get_length(sides.ours)
        if self._coordinate is None:
            if theirs < old:
                sides.fail(self.members[0], "rows were removed, and there is no coordinate to match the rest")
            return place_by_position(theirs, ours - old)
        self._check_same_coding()
        # Rows that both sides started with are read only if their order matters.
        needs_all = self._match_all or sides.rules.order == "sorted" or not self._keeps_old_rows
        kept = 0 if needs_all else old
        known = self._read_labels(sides.tip, kept, theirs)
        mine = self._read_labels(sides.ours, old, ours)
        if kept and not len(known):
            known, kept = self._read_labels(sides.tip, kept - 1, theirs), kept - 1
        first_new = old - kept if self._keeps_old_rows and not self._match_all else 0
        try:
            found = place_by_label(known, mine, min(first_new, len(known)), sides.rules.order)
        except PlacementError as error:
            sides.fail(
                self._coordinate, f"labels from {self._format_label(mine[0])} cannot be added: {error}"
            )
        return Placement(
            found.length + kept,
            np.concatenate([np.arange(kept), found.theirs + kept]),
            found.ours + kept,
            found.num_collapsed,
            found.is_ascending,
        )

    def _check_same_coding(self) -> None:
        path = self._coordinate
        if path is None:
            return
        here, there = self._sides.ours.array(path), self._sides.tip.node(path)
        if there is None:
            return
        mine, theirs = (json.loads(node.user_data) for node in (here, there))
        for name in ("units", "calendar", "scale_factor", "add_offset"):
            if (mine.get("attributes") or {}).get(name) != (theirs.get("attributes") or {}).get(name):
                self._sides.fail(path, f"the other side changed its attribute {name}")

    def _format_label(self, value: Any) -> str:
        """Format a label for a message."""
        if self._coordinate is None:
            return str(value)
        attributes = json.loads(self._sides.ours.array(self._coordinate).user_data).get("attributes") or {}
        return label_text(np.asarray([value]), attributes)

    def summary(self) -> Appended:
        """Describe what was placed."""
        placement = self._placement
        return Appended(
            num_rows=len(placement.ours) - placement.num_collapsed,
            num_collapsed=placement.num_collapsed,
            num_moved=sum(each.num_moved for each in self._placed.values()),
            num_rewritten=sum(each.num_rewritten for each in self._placed.values()),
            is_ascending=placement.is_ascending,
        )

    def place(self, path: str) -> _Placed:
        """Place the rows of one array."""
        sides = self._sides
        here, there = sides.ours.node(path), sides.tip.node(path)
        document = self._document(path, here, there)
        shape = _get_chunk_shape(document)
        if shape is None:
            sides.fail(path, "its chunk grid is not regular")
        placed = _Array(self, path, document, shape).place()
        self._placed[path] = placed
        return placed

    def _document(self, path: str, here: NodeSnapshot | None, there: NodeSnapshot | None) -> dict[str, Any]:
        """Combine the metadata of both sides, and set the final length."""
        sides = self._sides
        before = sides.base.node(path)
        mine, theirs, old = (
            None if node is None else json.loads(node.user_data) for node in (here, there, before)
        )
        found: dict[str, Any] = dict(theirs or mine or {})
        for name in sorted({*(mine or {}), *(theirs or {})} - {"shape"}):
            if mine is None or theirs is None or mine.get(name) == theirs.get(name):
                continue
            if old is not None and mine.get(name) == old.get(name):
                continue
            if old is None or theirs.get(name) != old.get(name) or name != "attributes":
                sides.fail(path, f"both sides changed its {name}")
            found[name] = mine[name]
        axis = sides.axis_of(path)
        for name, other in (("ours", mine), ("theirs", theirs)):
            sizes = [] if other is None else [*other["shape"][:axis], *other["shape"][axis + 1 :]]
            if other is not None and sizes != [*found["shape"][:axis], *found["shape"][axis + 1 :]]:
                sides.fail(path, f"the sizes of its other dimensions differ: {name} are {sizes}")
        found["shape"] = [*found["shape"][:axis], self._placement.length, *found["shape"][axis + 1 :]]
        return found


class _Array:
    """The rows of one array, from both sides to their final chunks."""

    def __init__(
        self, dataset: _Dataset, path: str, document: dict[str, Any], shape: tuple[int, ...]
    ) -> None:
        self._dataset = dataset
        self._sides = sides = dataset._sides
        self._path, self._document, self._shape = path, document, shape
        self._before = sides.base.node(path)
        self._here, self._there = sides.ours.node(path), sides.tip.node(path)
        self._axis = sides.axis_of(path)
        self._size = shape[self._axis]
        self._is_created = self._before is None and self._there is None
        placement = dataset._placement
        self._their_rows, numbers = placement.sources()
        if self._there is None:
            self._their_rows = np.full(placement.length, -1, np.int64)
        old = dataset._old
        self._our_rows = np.where(numbers < 0, -1, numbers + old)
        if self._is_created:
            if not dataset._keeps_old_rows:
                sides.fail(path, "it is new, and the existing rows changed their positions")
            self._our_rows[:old] = np.arange(old)
        self._first = 0 if self._is_created else old
        """The first of our rows that is placed."""
        self._rewritten: dict[tuple[int, ...], ChunkRef] = {}
        self._emptied: list[tuple[int, ...]] = []

    @cached_property
    def _changed(self) -> Coords:
        """The chunks that we changed and that contain appended rows."""
        rank = len(self._shape)
        delta = None if self._here is None else self._sides.ours.changes.chunks.get(self._here.id)
        if delta is None:
            return np.zeros((0, rank), np.uint32)
        coords = delta.coords()
        return coords[coords[:, self._axis] >= self._first // self._size]

    def place(self) -> _Placed:
        moved: list[ArrayManifest] = []
        their_refs = None
        if self._there is not None and self._shifts_theirs:
            their_refs = self._sides.tip.refs(self._there)
        for number in self._find_touched_chunks():
            rows = np.arange(number * self._size, min((number + 1) * self._size, len(self._our_rows)))
            source = self._find_whole_chunk(rows)
            if source is not None:
                moved.append(self._move_refs(source, number, their_refs))
            else:
                self._combine(number, rows)
        rank = len(self._shape)
        parts = [each for each in moved if len(each)]
        if self._rewritten:
            parts.append(ArrayManifest.from_refs(self._rewritten, rank))
        written = ArrayManifest.concat(parts) if parts else None
        gone = np.array(sorted(self._emptied), np.uint32).reshape(-1, rank)
        if their_refs is not None:
            after = their_refs.coords[their_refs.coords[:, self._axis] >= self._first_shifted // self._size]
            kept = after[:0] if written is None else written.coords
            gone = coordinates.keep_last_of_equal(
                np.concatenate([gone, after[~coordinates.contains(after, kept)]])
            )[0]
        segments: list[ArrayManifest | Coords] = [gone] if len(gone) else []
        segments += [] if written is None else [written]
        document = json.dumps(self._document).encode()
        if self._there is not None and json.loads(self._there.user_data) == self._document:
            document = self._there.user_data
        return _Placed(
            document,
            ArrayDelta(self._path, rank, segments=segments),
            self._changed,
            sum(map(len, moved)),
            len(self._rewritten) + len(self._emptied),
        )

    @cached_property
    def _first_shifted(self) -> int:
        """The first of their rows that gets another position."""
        identity = np.arange(len(self._dataset._placement.theirs))
        other = np.flatnonzero(self._dataset._placement.theirs != identity)
        return int(other[0]) if len(other) else len(identity)

    @property
    def _shifts_theirs(self) -> bool:
        return self._first_shifted < len(self._dataset._placement.theirs)

    def _find_touched_chunks(self) -> list[int]:
        """Return the final chunks along the dimension that may change."""
        changed = np.unique(self._changed[:, self._axis]).astype(np.int64)
        ours = np.flatnonzero((self._our_rows >= 0) & np.isin(self._our_rows // self._size, changed))
        touched = set((ours // self._size).tolist())
        if self._there is not None and self._shifts_theirs:
            touched |= set(range(self._first_shifted // self._size, -(-len(self._our_rows) // self._size)))
        return sorted(touched)

    def _find_whole_chunk(self, rows: Rows) -> tuple[bool, int] | None:
        """Return the side and the chunk whose content becomes a final chunk unchanged, if there is one."""
        mine, theirs = self._our_rows[rows], self._their_rows[rows]
        for is_ours, source, other, end in (
            (True, mine, theirs, self._sides.length(self._here)),
            (False, theirs, mine, self._sides.length(self._there)),
        ):
            first = int(source[0])
            if first < 0 or first % self._size or (other >= 0).any():
                continue
            if (source == np.arange(first, first + len(rows))).all() and min(
                end, first + self._size
            ) == first + len(rows):
                return is_ours, first // self._size
        return None

    def _move_refs(
        self, source: tuple[bool, int], number: int, their_refs: ArrayManifest | None
    ) -> ArrayManifest:
        """Return the references of a chunk along the dimension at its final position."""
        is_ours, origin = source
        refs = self._our_refs if is_ours or their_refs is None else their_refs
        found = refs.take(np.flatnonzero(refs.coords[:, self._axis] == origin))
        coords = found.coords.copy()
        coords[:, self._axis] = number
        return replace(found, coords=coords)

    @cached_property
    def _our_refs(self) -> ArrayManifest:
        """Our references to chunks with appended rows."""
        refs = self._sides.ours.refs(self._sides.ours.array(self._path))
        return refs.take(coordinates.contains(refs.coords, self._changed))

    def _combine(self, number: int, rows: Rows) -> None:
        """Write a final chunk along the dimension that has rows of both sides, or rows out of alignment."""
        mine = self._our_rows[rows]
        numbers = np.unique(mine[mine >= 0] // self._size)
        others = np.delete(self._changed, self._axis, axis=1)[np.isin(self._changed[:, self._axis], numbers)]
        if self._shifts_theirs and self._there is not None:
            self._check_small()
            theirs = self._sides.tip.refs(self._there).coords
            others = np.concatenate([others, np.delete(theirs, self._axis, axis=1)])
        for other in sorted(set(map(tuple, others.tolist()))):
            self._combine_one(number, other, rows)

    def _check_small(self) -> None:
        from zarr.dtype import parse_dtype

        dtype = parse_dtype(self._document["data_type"], zarr_format=3).to_native_dtype()
        size = int(np.prod(self._document["shape"], dtype=object)) * count_item_bytes(dtype)
        if size >= SMALL_ARRAY_BYTES:
            self._sides.fail(
                self._path,
                f"inserting rows between others would rewrite {format_bytes(size)}, because the rows are not "
                f"whole chunks of {self._size}",
            )

    def _combine_one(self, number: int, other: tuple[int, ...], rows: Rows) -> None:
        sides, size = self._sides, self._size
        at = self._make_coords(number, other)
        mine, theirs = self._our_rows[rows], self._their_rows[rows]
        if self._is_ours_alone(number, other, rows):
            ref = None if self._here is None else sides.ours.ref(self._here, at)
            self._put(at, ref)
            return
        values = sides.rules.decode(self._document, self._shape, None)
        fill = self._take(values, np.arange(1))
        for source in np.unique(theirs[theirs >= 0] // size).tolist():
            where = np.flatnonzero((theirs >= 0) & (theirs // size == source))
            chunk = self._read(sides.tip, self._there, self._make_coords(source, other))
            self._set(values, where, self._take(chunk, theirs[where] % size))
        is_same = not self._shifts_theirs
        for source in np.unique(mine[mine >= 0] // size).tolist():
            coords = self._make_coords(source, other)
            if not coordinates.contains(np.array([coords], np.uint32), self._changed).any():
                continue
            where = np.flatnonzero((mine >= 0) & (mine // size == source))
            chunk = self._read(sides.ours, self._here, coords)
            for row in where.tolist():
                own = self._take(chunk, mine[[row]] % size)
                there = self._take(values, np.array([row]))
                if theirs[row] >= 0 and (_equal(own, there) or _equal(own, fill)):
                    continue
                if theirs[row] >= 0 and not _equal(there, fill):
                    self._fail_at(int(mine[row]))
                self._set(values, np.array([row]), own)
                is_same = False
        if self._keep_edits_of_old_rows(values, number, other, rows):
            is_same = False
        if is_same:
            return
        data = sides.rules.encode(self._document, values)
        self._put(at, None if data is None else sides.write(data))

    def _put(self, at: tuple[int, ...], ref: ChunkRef | None) -> None:
        if ref is None:
            self._emptied.append(at)
        else:
            self._rewritten[at] = ref

    def _is_ours_alone(self, number: int, other: tuple[int, ...], rows: Rows) -> bool:
        """Return whether our chunk can stay: its rows keep their places, and the tip has not written it."""
        mine, sides, at = self._our_rows[rows], self._sides, self._make_coords(number, other)
        if (
            self._shifts_theirs
            or not self._dataset._keeps_old_rows
            or not (mine[mine >= 0] == rows[mine >= 0]).all()
        ):
            return False
        if not coordinates.contains(np.array([at], np.uint32), self._changed).any():
            return False
        if self._there is None:
            return True
        before = None if self._before is None else sides.base.ref(self._before, at)
        return before == sides.tip.ref(self._there, at)

    def _keep_edits_of_old_rows(
        self, values: Values, number: int, other: tuple[int, ...], rows: Rows
    ) -> bool:
        """Apply what we changed in rows that existed before, if the chunk at the old end contains some.

        Return whether there was something to apply.
        """
        old, at = self._first, self._make_coords(number, other)
        edge = old // self._size
        if (
            not old % self._size
            or number != edge
            or not self._dataset._keeps_old_rows
            or self._before is None
        ):
            return False
        if not coordinates.contains(np.array([at], np.uint32), self._changed).any():
            return False
        inside = np.flatnonzero(rows < old)
        mine = self._take(self._read(self._sides.ours, self._here, at), inside)
        before = self._take(self._read(self._sides.base, self._before, at), inside)
        if _equal(mine, before):
            return False
        theirs = self._take(values, inside)
        if not _equal(theirs, before) and not _equal(theirs, mine):
            self._sides.fail(self._path, f"both sides changed rows of chunk {list(at)} that existed before")
        self._set(values, inside, mine)
        return True

    def _fail_at(self, row: int) -> NoReturn:
        label = self._dataset._format_label(self._dataset._read_labels(self._sides.ours, row, row + 1)[0])
        dim = self._sides.rules.dim
        self._sides.fail(self._path, f"both sides wrote {dim}={label}, with different values")

    def _make_coords(self, number: int, other: tuple[int, ...]) -> tuple[int, ...]:
        return (*other[: self._axis], int(number), *other[self._axis :])

    def _read(self, side: Workspace, node: NodeSnapshot | None, coords: tuple[int, ...]) -> Values:
        if node is None:
            return self._sides.rules.decode(self._document, self._shape, None)
        if isinstance(side.ref(node, coords), VirtualRef):
            self._sides.fail(
                self._path, f"chunk {list(coords)} is virtual and would have to be rewritten; materialize it"
            )
        return self._sides.values(side, node, self._document, coords)

    def _take(self, values: Values, rows: NDArray[Any]) -> Values:
        return values.take(rows, axis=self._axis)

    def _set(self, values: Values, rows: Rows, new: Values) -> None:
        index: list[Any] = [slice(None)] * values.ndim
        index[self._axis] = rows
        values[tuple(index)] = new


def _get_chunk_shape(document: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the shape of the chunks of a regular grid."""
    grid = document["chunk_grid"]
    return tuple(grid["configuration"]["chunk_shape"]) if grid["name"] == "regular" else None


def _parse_plain(user_data: bytes) -> Any:
    """Parse a zarr.json, without consolidated metadata."""
    return {name: value for name, value in json.loads(user_data).items() if name != _CONSOLIDATED}


def _equal(one: Values, other: Values) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind in "fcmM":
        return bool(np.array_equal(one, other, equal_nan=True))
    return bool(np.array_equal(one, other))
