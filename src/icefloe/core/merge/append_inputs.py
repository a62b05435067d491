"""The inputs for rebasing concurrent appends: the solver's rules, the common base, our changes and the branch
tip.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol, runtime_checkable

import numpy as np

from icefloe._internal.paths import get_parent, list_ancestors
from icefloe.conflicts import AppendConflictError
from icefloe.core.changeset import ChangeSet
from icefloe.core.chunk_values import Values, get_chunk_shape, have_equal_values
from icefloe.core.dimensions import find_axis, find_coordinate_group
from icefloe.core.merge.row_placement import AppendOrder
from icefloe.core.workspace import Workspace
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ChunkRef, InlineRef, VirtualRef
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot

_CONSOLIDATED: Final = "consolidated_metadata"


@runtime_checkable
class AppendRules(Protocol):
    """The interface of conflict solvers for concurrent appends: placement rules, and encoding of chunks."""

    dim: str
    order: AppendOrder

    def decode(self, document: Mapping[str, Any], shape: Sequence[int], data: bytes | None) -> Values:
        """Decode a chunk. Without data, all values are the fill value."""

    def encode(self, document: Mapping[str, Any], values: Values) -> bytes | None:
        """Encode a chunk; return None if all values are the fill value."""

    def note(self, done: Sequence[Appended]) -> None:
        """Record how a rebase placed the appended rows, once per dataset."""


def get_append_rules(solver: object) -> AppendRules | None:
    """Return the argument if it is a conflict solver for concurrent appends; None otherwise."""
    return solver if isinstance(solver, AppendRules) else None


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of rebasing the concurrent appends to one dataset."""

    num_rows: int
    """The number of rows that were placed after the rows of the other side."""
    num_collapsed: int
    """The number of rows whose label both sides appended."""
    num_moved: int
    """The number of chunks that were moved by reference, without reading data."""
    num_rewritten: int
    """The number of chunks that were decoded and rewritten."""
    is_ascending: bool
    """True if the coordinate of the dimension is still ascending."""


class AppendSides:
    """The inputs for rebasing concurrent appends: the common base, our changes and the branch tip."""

    def __init__(
        self, base: Workspace, ours: Workspace, tip: Workspace, rules: AppendRules, dry_run: bool
    ) -> None:
        self.base, self.ours, self.tip, self.rules, self._dry_run = base, ours, tip, rules, dry_run

    def write(self, data: bytes) -> ChunkRef:
        """Store an encoded chunk. Small chunks, and all chunks of a dry run, are kept in memory."""
        if self._dry_run or self.ours.is_inline(len(data)):
            return InlineRef(data)
        return self.ours.assets.write_chunk(data)

    def fail(self, path: str, reason: str) -> NoReturn:
        raise AppendConflictError(str(self.tip.base_id), path, self.rules.dim, reason)

    def axis_of(self, path: str) -> int:
        """Return the axis of the append dimension in an array that is known to have it."""
        axis = self.axis(self.tip.node(path) or self.ours.node(path))
        return 0 if axis is None else axis

    def axis(self, node: NodeSnapshot | None) -> int | None:
        """Return the axis of the append dimension in an array; None if the array does not have it."""
        return find_axis(node, self.rules.dim)

    def length(self, node: NodeSnapshot | None) -> int:
        axis = self.axis(node)
        if node is None or axis is None or not isinstance(node.node_data, ArrayNodeData):
            return 0
        return node.node_data.shape[axis].array_length

    def find_group(self, path: str) -> str:
        """Return the closest enclosing group that has a coordinate for the append dimension; if there is
        none, the group of the array.
        """

        def find(path: str) -> NodeSnapshot | None:
            return self.ours.node(path) or self.tip.node(path)

        return find_coordinate_group(find, path, self.rules.dim) or get_parent(path) or "/"

    def datasets(self) -> dict[str, list[str]]:
        """Return the arrays of each dataset to which our side appended, by group."""
        changed = {*self.ours.changes.updated, *self.ours.changes.created}
        grown = {
            self.find_group(path)
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
            found[group] = [path for path in found[group] if self.find_group(path) == group]
        return found

    def forget(self, changes: ChangeSet, path: str, handled: Coords) -> None:
        """Remove appended chunks from our change set once they have been placed after the rows of the tip."""
        changes.updated.pop(path, None)
        created = changes.created.pop(path, None)
        node = created or self.ours.node(path)
        delta = None if node is None else changes.chunks.get(node.id)
        if delta is None or node is None:
            return
        delta.forget(handled)
        if created is not None or not len(delta.coords()):
            del changes.chunks[node.id]

    def forget_equal(self, changes: ChangeSet) -> None:
        """Drop our changes to nodes without the append dimension where the tip has the same content."""
        for path, node in list(changes.updated.items()):
            theirs = self.tip.node(path)
            if theirs is not None and parse_plain(theirs.user_data) == parse_plain(node.user_data):
                del changes.updated[path]
        for id, delta in list(changes.chunks.items()):
            there = self.tip.node(delta.path)
            if there is None or there.id != id or not isinstance(there.node_data, ArrayNodeData):
                continue
            document = json.loads(there.user_data)
            here = self.ours.array(delta.path)
            if (
                parse_plain(here.user_data) != parse_plain(there.user_data)
                or get_chunk_shape(document) is None
            ):
                continue
            same = [
                coords
                for coords in map(tuple, delta.coords().tolist())
                if self._are_equal(here, there, document, coords)
            ]
            equal = np.array(same, np.uint32).reshape(len(same), delta.rank)
            delta.forget(coordinates.keep_last_of_equal(equal)[0])
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
        return have_equal_values(
            self.values(self.ours, here, document, coords), self.values(self.tip, there, document, coords)
        )

    def values(
        self, side: Workspace, node: NodeSnapshot, document: Mapping[str, Any], coords: tuple[int, ...]
    ) -> Values:
        """Decode a chunk of one side to its full size. Edge chunks are not trimmed."""
        ref = side.ref(node, coords)
        data = None if ref is None else side.read(ref, 0, ref.length, f"{coords} of {node.path}")
        return self.rules.decode(document, get_chunk_shape(document) or (), data)

    def consolidated(self, rest: ChangeSet, documents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return updated metadata for groups whose consolidated metadata includes extended arrays."""
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
                if parse_plain(mine.user_data) != parse_plain(theirs.user_data):
                    continue  # both sides changed the group: an ordinary conflict
                del rest.updated[group]
            prefix = "" if group == "/" else group
            for path, content in documents.items():
                name = path[len(prefix) + 1 :]
                if path.startswith(f"{prefix}/") and name in entries:
                    entries[name] = json.loads(content)
            found[group] = json.dumps(document).encode()
        return found


def parse_plain(user_data: bytes) -> Any:
    """Parse a zarr.json document without its consolidated metadata."""
    return {name: value for name, value in json.loads(user_data).items() if name != _CONSOLIDATED}
