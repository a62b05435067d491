"""Rebase a session that appended rows to arrays that other writers also extended.

Two sides append to the same arrays: ours are the changes of the session, theirs the tip of the branch. Chunk
coordinates alone would always conflict, because both sides write after the same old end. Rows are therefore
matched by their label, which is the coordinate value along the dimension:

1. Find the datasets that we extended: the arrays that share a dimension and its coordinate.
2. Give every appended row its final position (`row_placement`).
3. Move our references to chunks whose content does not change. Decode and rewrite chunks that also contain
their rows, or that are no longer aligned with the chunk grid.

Nothing changes unless every step succeeds. The result is an ordinary set of changes relative to the tip, so
its transaction log is correct, and all other changes of the session are checked for conflicts as usual.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.amounts import format_bytes
from icefloe._internal.concurrency import computed_once
from icefloe._internal.paths import join
from icefloe.core.changeset import ArrayDelta, ChangeSet
from icefloe.core.chunk_grid import count_item_bytes
from icefloe.core.chunk_values import Values, are_equivalent_documents, get_chunk_shape, have_equal_values
from icefloe.core.dimensions import SMALL_ARRAY_BYTES
from icefloe.core.merge.append_inputs import Appended, AppendRules, AppendSides
from icefloe.core.merge.conflict_details import label_text
from icefloe.core.merge.row_placement import (
    Placement,
    PlacementError,
    Rows,
    place_by_label,
    place_by_position,
)
from icefloe.core.workspace import Workspace
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest, ChunkRef, VirtualRef
from icefloe.format.snapshot import NodeSnapshot, Snapshot

_ENCODING: Final = ("data_type", "chunk_grid", "codecs", "fill_value", "storage_transformers")
"""The metadata that determines how chunks are encoded. References can be moved only if it is equal on both
sides.
"""


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """The plan for rebasing concurrent appends: the session's appends relative to the branch tip, and its
    other changes.
    """

    rest: ChangeSet
    documents: Mapping[str, bytes]
    """The new zarr.json documents, by path."""
    deltas: Mapping[str, ArrayDelta]
    """The changed chunks, by array path."""
    done: tuple[Appended, ...]

    def apply(self, workspace: Workspace) -> None:
        """Add rebased concurrent appends to a workspace that is based on the tip of the branch."""
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
    """Plan how to place the rows that a session appended after those at the branch tip. Return None if
    nothing needs to be rearranged.

    With `match_all`, labels are also matched with rows that already existed when the session started, even if
    nobody else appended. A dry run writes no chunks.

    Raises
    ------
    AppendConflictError
        If the appends of the two sides cannot be combined.
    """
    there = Workspace(tip, ours.assets) if isinstance(tip, Snapshot) else tip
    sides = AppendSides(Workspace(ours.base, ours.assets), ours, there, rules, dry_run)
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
            sides.forget(rest, path, placed.handled)
        done.append(dataset.summary())
    if not done:
        return None
    sides.forget_equal(rest)
    documents |= sides.consolidated(rest, documents)
    return AppendPlan(rest, documents, deltas, tuple(done))


@dataclass(frozen=True, slots=True)
class _PlacedArray:
    """The new state of one array after its rows have been placed."""

    document: bytes
    delta: ArrayDelta
    handled: Coords
    """The coordinates of our changed chunks that the delta replaces."""
    num_moved: int
    num_rewritten: int


class _Dataset:
    """The arrays that share the append dimension and its coordinate."""

    def __init__(self, sides: AppendSides, home: str, members: Sequence[str], match_all: bool) -> None:
        self._sides = sides
        self._dim = sides.rules.dim
        self._coordinate = join(home, self._dim) if join(home, self._dim) in members else None
        self.members = members
        self._match_all = match_all
        self._placed: dict[str, _PlacedArray] = {}

    @computed_once
    def is_contested(self) -> bool:
        """True if any of the arrays at the branch tip differs from our base."""
        sides = self._sides
        return any(sides.base.node(path) != sides.tip.node(path) for path in self.members)

    def _get_length(self, side: Workspace) -> int:
        paths = self.members if self._coordinate is None else [self._coordinate]
        return max(self._sides.length(side.node(path)) for path in paths)

    @computed_once
    def _old(self) -> int:
        """The number of rows in the common base, before either side appended."""
        return self._get_length(self._sides.base)

    @computed_once
    def _keeps_old_rows(self) -> bool:
        """True if all rows of the base are still at the same positions at the tip."""
        sides, path = self._sides, self._coordinate
        if self._get_length(sides.tip) < self._old:
            return False
        if path is None:
            return True
        # Compare references instead of labels, because equal references imply equal labels without reading
        # them. Only the last chunk, which appends extend, has to be decoded.
        before, after = sides.base.node(path), sides.tip.node(path)
        if before is None or after is None:
            return False
        if before.id != after.id:
            return False
        (size,) = get_chunk_shape(json.loads(after.user_data)) or (1,)
        whole = [range(self._old // size)]
        if sides.base.refs(before).within(whole) != sides.tip.refs(after).within(whole):
            return False
        start = self._old // size * size
        old = self._read_labels(sides.base, start, self._old)
        return have_equal_values(old, self._read_labels(sides.tip, start, self._old))

    def _read_labels(self, side: Workspace, start: int, stop: int) -> Values:
        """Read coordinate labels in their stored form, without decoding times or scales."""
        if self._coordinate is None or start >= stop:
            return np.zeros(0)
        node = side.array(self._coordinate)
        document = json.loads(node.user_data)
        (size,) = get_chunk_shape(document) or self._sides.fail(node.path, "its chunk grid is not regular")
        parts = [
            self._sides.values(side, node, document, (number,))
            for number in range(start // size, -(-stop // size))
        ]
        offset = start // size * size
        return np.concatenate(parts)[start - offset : stop - offset]

    @computed_once
    def _placement(self) -> Placement:
        sides, old = self._sides, self._old
        theirs, ours = self._get_length(sides.tip), self._get_length(sides.ours)
        if self._coordinate is None:
            if theirs < old:
                sides.fail(self.members[0], "rows were removed, and there is no coordinate to match the rest")
            return place_by_position(theirs, ours - old)
        self._check_same_coding()
        self._check_own_old_rows()
        # Rows that both sides already had are read only if their order matters.
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

    def _check_own_old_rows(self) -> None:
        """Raise an error if our side inserted rows between existing rows, because its rows at the end are
        then not all new.
        """
        path, old = self._coordinate, self._old
        if path is None or not old:
            return
        before, here = self._sides.base.node(path), self._sides.ours.array(path)
        if before is None or before.id != here.id or here.id not in self._sides.ours.changes.chunks:
            return
        kept = self._read_labels(self._sides.base, 0, old)
        if not have_equal_values(kept, self._read_labels(self._sides.ours, 0, old)):
            self._sides.fail(path, "labels of rows that existed before changed; append to the tip again")

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
        """Format a label for an error message."""
        if self._coordinate is None:
            return str(value)
        attributes = json.loads(self._sides.ours.array(self._coordinate).user_data).get("attributes") or {}
        return label_text(np.asarray([value]), attributes)

    def summary(self) -> Appended:
        """Describe how the appended rows of the dataset were placed."""
        placement = self._placement
        return Appended(
            num_rows=len(placement.ours) - placement.num_collapsed,
            num_collapsed=placement.num_collapsed,
            num_moved=sum(each.num_moved for each in self._placed.values()),
            num_rewritten=sum(each.num_rewritten for each in self._placed.values()),
            is_ascending=placement.is_ascending,
        )

    def place(self, path: str) -> _PlacedArray:
        """Place the appended rows of one array in the dataset."""
        sides = self._sides
        here, there = sides.ours.node(path), sides.tip.node(path)
        document = self._document(path, here, there)
        shape = get_chunk_shape(document)
        if shape is None:
            sides.fail(path, "its chunk grid is not regular")
        placed = _Array(self, path, document, shape).place()
        self._placed[path] = placed
        return placed

    def _document(self, path: str, here: NodeSnapshot | None, there: NodeSnapshot | None) -> dict[str, Any]:
        """Combine the array metadata of both sides, and set the final length."""
        sides = self._sides
        before = sides.base.node(path)
        mine, theirs, old = (
            None if node is None else json.loads(node.user_data) for node in (here, there, before)
        )
        found: dict[str, Any] = dict(theirs or mine or {})
        for name in sorted({*(mine or {}), *(theirs or {})} - {"shape"}):
            if mine is None or theirs is None or mine.get(name) == theirs.get(name):
                continue
            if name in _ENCODING and are_equivalent_documents(mine, theirs, name):
                continue
            if name in _ENCODING:
                sides.fail(path, f"the two sides do not agree on its {name}")
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
    """Moves the appended rows of both sides of one array to their final chunks."""

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
        """The first of our rows that has to be placed."""
        self._rewritten: dict[tuple[int, ...], ChunkRef] = {}
        self._emptied: list[tuple[int, ...]] = []

    @computed_once
    def _changed_chunks(self) -> Coords:
        """The coordinates of the chunks that our side changed and that contain appended rows."""
        rank = len(self._shape)
        delta = None if self._here is None else self._sides.ours.changes.chunks.get(self._here.id)
        if delta is None:
            return np.zeros((0, rank), np.uint32)
        coords = delta.coords()
        return coords[coords[:, self._axis] >= self._first // self._size]

    def place(self) -> _PlacedArray:
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
        self._write_edge_chunk()
        rank = len(self._shape)
        parts = [each for each in moved if len(each)]
        if self._rewritten:
            parts.append(ArrayManifest.from_refs(self._rewritten, rank))
        written = ArrayManifest.concat(parts) if parts else None
        gone = np.array(sorted(self._emptied), np.uint32).reshape(-1, rank)
        if their_refs is not None:
            # From the first shifted row on, all of their old positions must be either rewritten or deleted.
            # Otherwise a row would appear at both its old and its new position.
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
        return _PlacedArray(
            document,
            ArrayDelta(self._path, rank, segments=segments),
            self._changed_chunks,
            sum(map(len, moved)),
            len(self._rewritten) + len(self._emptied),
        )

    @computed_once
    def _first_shifted(self) -> int:
        """The first row of the tip whose position changes."""
        identity = np.arange(len(self._dataset._placement.theirs))
        other = np.flatnonzero(self._dataset._placement.theirs != identity)
        return int(other[0]) if len(other) else len(identity)

    @property
    def _shifts_theirs(self) -> bool:
        return self._first_shifted < len(self._dataset._placement.theirs)

    def _find_touched_chunks(self) -> list[int]:
        """Return the chunk indices along the dimension that may change in the final array."""
        changed = np.unique(self._changed_chunks[:, self._axis]).astype(np.int64)
        ours = np.flatnonzero((self._our_rows >= 0) & np.isin(self._our_rows // self._size, changed))
        touched = set((ours // self._size).tolist())
        if self._there is not None and self._shifts_theirs:
            touched |= set(range(self._first_shifted // self._size, -(-len(self._our_rows) // self._size)))
        return sorted(touched)

    def _find_whole_chunk(self, rows: Rows) -> tuple[bool, int] | None:
        """Return the side and index of a chunk that can become the given final chunk unchanged; None if there
        is none.
        """
        mine, theirs = self._our_rows[rows], self._their_rows[rows]
        # A chunk can be moved by reference if all of its rows stay together, in order and aligned with the
        # chunk grid. Appends are cheap because only the other chunks are decoded and rewritten.
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
        """Return the references of a source chunk, moved to the final position along the dimension."""
        is_ours, origin = source
        refs = self._our_refs if is_ours or their_refs is None else their_refs
        found = refs.take(np.flatnonzero(refs.coords[:, self._axis] == origin))
        coords = found.coords.copy()
        coords[:, self._axis] = number
        return replace(found, coords=coords)

    @computed_once
    def _our_refs(self) -> ArrayManifest:
        """Our references to chunks that contain appended rows."""
        refs = self._sides.ours.refs(self._sides.ours.array(self._path))
        return refs.take(coordinates.contains(refs.coords, self._changed_chunks))

    def _combine(self, number: int, rows: Rows) -> None:
        """Write a final chunk that combines rows of both sides, or rows that are not aligned with chunk
        boundaries.
        """
        mine = self._our_rows[rows]
        numbers = mine[mine >= 0] // self._size
        if number == self._edge:
            numbers = np.append(numbers, number)
        others = np.delete(self._changed_chunks, self._axis, axis=1)[
            np.isin(self._changed_chunks[:, self._axis], numbers)
        ]
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
        fill = self._select_rows(values, np.arange(1))
        # Write their rows first, then ours on top. Our rows with the same label may only fill missing cells
        # or repeat their values.
        for source in np.unique(theirs[theirs >= 0] // size).tolist():
            where = np.flatnonzero((theirs >= 0) & (theirs // size == source))
            chunk = self._read(sides.tip, self._there, self._make_coords(source, other))
            self._assign_rows(values, where, self._select_rows(chunk, theirs[where] % size))
        is_same = not self._shifts_theirs
        for source in np.unique(mine[mine >= 0] // size).tolist():
            coords = self._make_coords(source, other)
            if not coordinates.contains(np.array([coords], np.uint32), self._changed_chunks).any():
                continue
            where = np.flatnonzero((mine >= 0) & (mine // size == source))
            chunk = self._read(sides.ours, self._here, coords)
            for row in where.tolist():
                own = self._select_rows(chunk, mine[[row]] % size)
                there = self._select_rows(values, np.array([row]))
                # Each writer of a feed may append a single variable. The other variables of its rows have the
                # fill value, which must not overwrite the values of another writer.
                if theirs[row] >= 0 and (have_equal_values(own, there) or have_equal_values(own, fill)):
                    continue
                if theirs[row] >= 0 and not have_equal_values(there, fill):
                    self._fail_at(int(mine[row]))
                self._assign_rows(values, np.array([row]), own)
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
        """Return True if our chunk can be kept, because its rows keep their positions and the tip has no such
        chunk.
        """
        mine, sides, at = self._our_rows[rows], self._sides, self._make_coords(number, other)
        new = np.arange(
            max(self._first, number * self._size), min(sides.length(self._here), (number + 1) * self._size)
        )
        # A row of ours that is placed elsewhere, or whose label exists elsewhere, must not stay in the chunk.
        # After the end it would reappear with a later append.
        if (
            self._shifts_theirs
            or not self._dataset._keeps_old_rows
            or not (mine[mine >= 0] == rows[mine >= 0]).all()
            or not np.array_equal(self._our_rows[new[new <= rows[-1]]], new)
        ):
            return False
        if not coordinates.contains(np.array([at], np.uint32), self._changed_chunks).any():
            return False
        if self._there is None:
            return True
        before = None if self._before is None else sides.base.ref(self._before, at)
        return before == sides.tip.ref(self._there, at)

    @property
    def _edge(self) -> int:
        """The index of the chunk that contains both old and new rows; -1 if there is none."""
        is_shared = self._first % self._size and self._before is not None and self._dataset._keeps_old_rows
        return self._first // self._size if is_shared else -1

    def _write_edge_chunk(self) -> None:
        """Write the chunk at the old end if our side changed existing rows in it.

        An earlier rebase may have filled rows of another writer in this chunk, even if none of the session's
        new rows remain in it.
        """
        edge = self._edge
        at = self._changed_chunks[self._changed_chunks[:, self._axis] == edge]
        if edge < 0 or edge in self._find_touched_chunks():
            return
        rows = np.arange(edge * self._size, min((edge + 1) * self._size, len(self._our_rows)))
        for other in map(tuple, np.delete(at, self._axis, axis=1).tolist()):
            if self._read_edits_of_old_rows(edge, other, rows) is not None:
                self._combine_one(edge, other, rows)

    def _read_edits_of_old_rows(
        self, number: int, other: tuple[int, ...], rows: Rows
    ) -> tuple[Values, Values] | None:
        """Return the old rows in the chunk at the old end, as they are on our side and in the base; None if
        we did not change them.
        """
        at = self._make_coords(number, other)
        if (
            number != self._edge
            or not coordinates.contains(np.array([at], np.uint32), self._changed_chunks).any()
        ):
            return None
        inside = np.flatnonzero(rows < self._first)
        mine = self._select_rows(self._read(self._sides.ours, self._here, at), inside)
        before = self._select_rows(self._read(self._sides.base, self._before, at), inside)
        return None if have_equal_values(mine, before) else (mine, before)

    def _keep_edits_of_old_rows(
        self, values: Values, number: int, other: tuple[int, ...], rows: Rows
    ) -> bool:
        """Apply our changes to existing rows in the chunk at the old end.

        Return True if there were such changes.
        """
        edits = self._read_edits_of_old_rows(number, other, rows)
        if edits is None:
            return False
        mine, before = edits
        at, inside = self._make_coords(number, other), np.flatnonzero(rows < self._first)
        theirs = self._select_rows(values, inside)
        if not have_equal_values(theirs, before) and not have_equal_values(theirs, mine):
            self._sides.fail(self._path, f"both sides changed rows of chunk {list(at)} that existed before")
        self._assign_rows(values, inside, mine)
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

    def _select_rows(self, values: Values, rows: NDArray[Any]) -> Values:
        return values.take(rows, axis=self._axis)

    def _assign_rows(self, values: Values, rows: Rows, new: Values) -> None:
        index: list[Any] = [slice(None)] * values.ndim
        index[self._axis] = rows
        values[tuple(index)] = new
