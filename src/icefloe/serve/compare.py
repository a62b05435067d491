"""Two versions side by side: nodes, metadata, chunks and values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.paths import LEDGERS, ROOT, is_within
from icefloe.core.merge.state_changes import same_chunks
from icefloe.format import coordinates
from icefloe.format.manifest import ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.serve.windows import ArrayView, Index
from icefloe.serve.work import check_job
from icefloe.session import Session

_EXACT: Final = 2**53
"""Larger integers lose digits in floating point."""
_MOST_TEXT: Final = 200


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node that two versions do not have in common."""

    path: str
    kind: str
    """array or group"""
    status: str
    """added, removed or changed"""
    metadata: tuple[tuple[str, str, str], ...] = ()
    """Name, value before and value after."""
    changed: int = 0
    added: int = 0
    deleted: int = 0
    """Chunks."""


def compare_nodes(before: Session, after: Session, *, with_ledgers: bool = False) -> list[NodeChange]:
    """List the nodes in which two versions differ, sorted by path."""
    one, other = before._workspace, after._workspace
    paths = sorted({*one.below(ROOT), *other.below(ROOT)})
    found = []
    for path in paths:
        if not with_ledgers and is_within(path, LEDGERS):
            continue
        old, new = one.node(path), other.node(path)
        if old is None and new is not None:
            found.append(NodeChange(path, _kind(new), "added", added=_count(after, new)))
        elif new is None and old is not None:
            found.append(NodeChange(path, _kind(old), "removed", deleted=_count(before, old)))
        elif old is not None and new is not None:
            check_job()
            change = _compare(before, old, after, new)
            if change is not None:
                found.append(change)
    return found


def _compare(before: Session, old: NodeSnapshot, after: Session, new: NodeSnapshot) -> NodeChange | None:
    metadata = () if old.user_data == new.user_data else tuple(_metadata_changes(old, new))
    is_same = old.node_data == new.node_data
    if is_same and old.user_data == new.user_data:
        return None
    chunks = None if is_same else changed_chunks(before, old, after, new)
    counts = (0, 0, 0) if chunks is None else tuple(map(len, (chunks.changed, chunks.added, chunks.deleted)))
    if not metadata and not any(counts):
        return None
    return NodeChange(new.path, _kind(new), "changed", metadata, *counts)


def _metadata_changes(old: NodeSnapshot, new: NodeSnapshot) -> Iterator[tuple[str, str, str]]:
    one, other = _flat(json.loads(old.user_data)), _flat(json.loads(new.user_data))
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            yield name, one.get(name, "-"), other.get(name, "-")


def _flat(document: dict[str, Any]) -> dict[str, str]:
    """Write the members of a zarr.json as text, each attribute on its own."""
    attributes = document.pop("attributes", None) or {}
    document.pop("consolidated_metadata", None)
    named = {**document, **{f"attributes.{name}": value for name, value in attributes.items()}}
    return {name: _short(json.dumps(value, ensure_ascii=False)) for name, value in named.items()}


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "…"


@dataclass(frozen=True, slots=True, eq=False)
class ChangedChunks:
    """Coordinates of chunks in which two versions of an array differ."""

    changed: NDArray[np.uint32]
    added: NDArray[np.uint32]
    deleted: NDArray[np.uint32]

    def all(self) -> NDArray[np.uint32]:
        """Return all of them."""
        return np.concatenate([self.changed, self.added, self.deleted])


def changed_chunks(before: Session, old: NodeSnapshot, after: Session, new: NodeSnapshot) -> ChangedChunks:
    """Compare the references of two versions of an array, which need not be related."""
    one, other = before._workspace.refs(old), after._workspace.refs(new)
    if one.rank != other.rank or not len(one) or not len(other):
        return ChangedChunks(
            other.coords[:0], other.coords, one.coords[:0] if one.rank != other.rank else one.coords
        )
    return _compare_references(one, other)


def _compare_references(one: ArrayManifest, other: ArrayManifest) -> ChangedChunks:
    in_both = coordinates.contains(other.coords, one.coords)
    same = coordinates.contains(other.coords, same_chunks(other, one))
    gone = ~coordinates.contains(one.coords, other.coords)
    return ChangedChunks(other.coords[in_both & ~same], other.coords[~in_both], one.coords[gone])


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """The values of a window in two versions, and how they differ."""

    before: NDArray[Any]
    after: NDArray[Any]
    values: NDArray[np.float64]
    """After minus before; NaN where one of them is missing."""
    unequal: NDArray[np.bool_]
    """Which cells differ; a number and a missing value do."""
    most: float
    """The largest difference of two numbers."""

    @property
    def differing(self) -> int:
        """The number of cells that differ."""
        return int(np.count_nonzero(self.unequal))


def compare_values(before: ArrayView, after: ArrayView, index: Index) -> Difference:
    """Compare a window of two versions of an array, in the array's own type."""
    old, new = before.read(index), after.read(index)
    return difference_of(before, old, after, new)


def difference_of(before: ArrayView, old: NDArray[Any], after: ArrayView, new: NDArray[Any]) -> Difference:
    """Subtract values that were read."""
    if before.is_packed or after.is_packed or old.dtype != new.dtype:
        one, other = before.numbers(old), after.numbers(new)
        equal = (one == other) | (np.isnan(one) & np.isnan(other))
        values = other - one
    else:
        equal = old == new
        if old.dtype.kind in "fc":
            equal |= (old != old) & (new != new)
        values = _subtract(before, old, after, new)
    sizes = np.abs(values[np.isfinite(values)])
    return Difference(old, new, values, ~equal, float(sizes.max()) if sizes.size else 0.0)


def _subtract(
    before: ArrayView, old: NDArray[Any], after: ArrayView, new: NDArray[Any]
) -> NDArray[np.float64]:
    if old.dtype.kind in "iu" and old.dtype.itemsize == 8 and old.size:
        largest = max(abs(int(each)) for each in (old.min(), old.max(), new.min(), new.max()))
        if largest > _EXACT:
            return np.asarray(new.astype(object) - old.astype(object), dtype="f8")
    values = after.numbers(new) - before.numbers(old)
    return np.asarray(values, dtype="f8")


def common_shape(before: ArrayView, after: ArrayView) -> tuple[int, ...] | None:
    """Return the shape that two versions have in common; None if they have another number of dimensions."""
    if len(before.shape) != len(after.shape):
        return None
    return tuple(min(sizes) for sizes in zip(before.shape, after.shape, strict=True))


def _kind(node: NodeSnapshot) -> str:
    return "array" if isinstance(node.node_data, ArrayNodeData) else "group"


def _count(session: Session, node: NodeSnapshot) -> int:
    return len(session._workspace.refs(node)) if isinstance(node.node_data, ArrayNodeData) else 0
