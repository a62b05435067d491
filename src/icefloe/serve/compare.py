"""Compare nodes, metadata, chunks and values of two versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.paths import LEDGERS, ROOT, is_within
from icefloe.comparison.values import find_unequal, subtract
from icefloe.comparison.versions import ChunkDifferences, Comparison, compare
from icefloe.core.chunk_grid import Grid, get_stored_grid
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.serve.windows import ArrayView, Index
from icefloe.session import Session

_MAX_TEXT: Final = 200


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node that differs between two versions, as listed on the comparison page."""

    path: str
    kind: str
    """`array` or `group`."""
    status: str
    """`added`, `removed` or `changed`."""
    metadata: tuple[tuple[str, str, str], ...] = ()
    """The name, old value and new value of each changed metadata field."""
    changed: int = 0
    added: int = 0
    deleted: int = 0
    """The number of deleted chunks. `changed` and `added` also count chunks."""
    extent: tuple[tuple[int, int], ...] = ()
    """The range of cells that these chunks cover: the first and last index along each dimension."""


def compare_nodes(before: Session, after: Session, path: str = ROOT) -> list[NodeChange]:
    """List the nodes below a path that differ between two versions, except the ingest ledger."""
    found = compare(before, after, path=path)
    origins = {new: old for old, new in found.moved_nodes}
    changed = {*found.updated_groups, *found.updated_arrays, *found.chunks, *origins}
    changed -= {*found.new_arrays, *found.deleted_arrays}
    changes = [NodeChange(path, "group", "added") for path in found.new_groups]
    changes += [NodeChange(path, "group", "removed") for path in found.deleted_groups]
    changes += [_with_chunks(NodeChange(path, "array", "added"), found, after) for path in found.new_arrays]
    changes += [
        _with_chunks(NodeChange(path, "array", "removed"), found, before) for path in found.deleted_arrays
    ]
    for path in changed:
        old, new = before._workspace.node(origins.get(path, path)), after._workspace.node(path)
        metadata = () if old is None or new is None else tuple(metadata_changes(old, new))
        moved = (("path", origins[path], path),) if path in origins else ()
        kind = "array" if new is not None and isinstance(new.node_data, ArrayNodeData) else "group"
        changes.append(_with_chunks(NodeChange(path, kind, "changed", (*moved, *metadata)), found, after))
    listed = [each for each in changes if not is_within(each.path, LEDGERS)]
    return sorted(listed, key=lambda each: each.path)


def _with_chunks(change: NodeChange, found: Comparison, version: Session) -> NodeChange:
    """Add the numbers of differing chunks, and the range of their cells, to the changes."""
    chunks = found.chunks.get(change.path)
    if chunks is None:
        return change
    node = version._workspace.node(change.path)
    return replace(
        change,
        changed=len(chunks.changed),
        added=len(chunks.added),
        deleted=len(chunks.removed),
        extent=()
        if node is None
        else _find_extent(get_stored_grid(json.loads(node.user_data)), chunks.coords),
    )


def _find_extent(grid: Grid, coords: NDArray[np.uint32]) -> tuple[tuple[int, int], ...]:
    """Return the first and last cell along each dimension that the given chunks of a grid cover."""
    inside = (
        coords[(coords < np.array(grid.counts, np.uint32)).all(axis=1)] if coords.shape[1] else coords[:0]
    )
    if not len(inside):
        return ()
    low, high = grid.inside(inside.min(axis=0).tolist()), grid.inside(inside.max(axis=0).tolist())
    return tuple((one.start, other.stop - 1) for one, other in zip(low, high, strict=True))


def metadata_changes(old: NodeSnapshot, new: NodeSnapshot) -> Iterator[tuple[str, str, str]]:
    """Yield the zarr.json members that differ between two versions, with both values."""
    one, other = _flatten(json.loads(old.user_data)), _flatten(json.loads(new.user_data))
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            yield name, one.get(name, "-"), other.get(name, "-")


def _flatten(document: dict[str, Any]) -> dict[str, str]:
    """Flatten a zarr.json to a dictionary of strings, with one entry per attribute."""
    attributes = document.pop("attributes", None) or {}
    document.pop("consolidated_metadata", None)
    named = {**document, **{f"attributes.{name}": value for name, value in attributes.items()}}
    return {name: _shorten(json.dumps(value, ensure_ascii=False)) for name, value in named.items()}


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"


def changed_chunks(before: Session, after: Session, path: str) -> ChunkDifferences | None:
    """Find the chunks of an array that differ between two versions. Return None if there are none."""
    return compare(before, after, path=path).chunks.get(path)


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """A window of an array in two versions: the values in both versions, and their differences."""

    before: NDArray[Any]
    after: NDArray[Any]
    values: NDArray[np.float64]
    """Later values minus earlier values; NaN where one of them is missing."""
    unequal: NDArray[np.bool_]
    """A mask of the cells that differ. A number differs from a missing value."""
    most: float
    """The largest absolute difference."""

    @property
    def differing(self) -> int:
        """The number of cells in the window that differ."""
        return int(np.count_nonzero(self.unequal))


def compare_values(before: ArrayView, after: ArrayView, index: Index) -> Difference:
    """Compare a window of an array in two versions, in the data type of the array."""
    old, new = before.read(index), after.read(index)
    return difference_of(before, old, after, new)


def difference_of(before: ArrayView, old: NDArray[Any], after: ArrayView, new: NDArray[Any]) -> Difference:
    """Subtract a window of two versions. Use stored values if both are encoded in the same way."""
    meant = before.numbers(old), after.numbers(new)
    is_stored_alike = not before.is_packed and not after.is_packed and old.dtype == new.dtype
    one, other = (old, new) if is_stored_alike else meant
    values = np.asarray(subtract(one, other), "f8")
    values[np.isnan(meant[0]) | np.isnan(meant[1])] = np.nan
    sizes = np.abs(values[np.isfinite(values)])
    unequal = find_unequal(one, other)
    return Difference(old, new, values, unequal, float(sizes.max()) if sizes.size else 0.0)


def common_shape(before: ArrayView, after: ArrayView) -> tuple[int, ...] | None:
    """Return the shape that two versions of an array have in common, or None if their ranks differ."""
    if len(before.shape) != len(after.shape):
        return None
    return tuple(min(sizes) for sizes in zip(before.shape, after.shape, strict=True))
