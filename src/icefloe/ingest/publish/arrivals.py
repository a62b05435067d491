"""What a staging branch has that its target has not: by the ledger, whichever run it was that wrote it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from icefloe.ingest.ledger.table import LedgerRow

Box = tuple[tuple[int, int], ...]
"""Where something begins and ends along each dimension."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The sources that are new, and where they are in the arrays."""

    rows: tuple[LedgerRow, ...]
    dataset: xr.Dataset
    """The staged group, decoded and not loaded."""

    @property
    def dims(self) -> set[str]:
        """The dimensions along which sources lie side by side: of which some have a part only."""
        sizes = self.dataset.sizes
        spans = {span for row in self.rows for span in row.box().items()}
        return {dim for dim, span in spans if span != (0, sizes.get(dim))}

    def blocks(self, name: str, cells: int) -> Iterator[Box]:
        """Boxes of a variable that have all that arrived, of so many cells or one chunk at most."""
        variable = self.dataset.variables[name]
        boxes = {self._box(row, variable) for row in self.rows if name in row.names()}
        if not boxes and name in self.dataset.coords:
            boxes = {tuple((0, size) for size in variable.shape)}
        chunks = variable.encoding.get("shards") or variable.encoding.get("chunks") or variable.shape
        for box in _joined(sorted(boxes)):
            yield from _cut(box, chunks, cells)

    def source_at(self, name: str, place: Sequence[int]) -> str | None:
        """The source of a cell."""
        variable = self.dataset.variables[name]
        for row in self.rows:
            spans = self._box(row, variable)
            inside = (start <= at < stop for at, (start, stop) in zip(place, spans, strict=True))
            if name in row.names() and all(inside):
                return row.source
        return None

    def place(self, name: str, place: Sequence[int]) -> str:
        """Where a cell is, in terms of coordinates, and the source it came from."""
        at = ", ".join(
            f"{dim}={self._label(str(dim), index)}"
            for dim, index in zip(self.dataset.variables[name].dims, place, strict=True)
        )
        source = self.source_at(name, place)
        return f"{at or 'its one cell'} ({source})" if source else at or "its one cell"

    def _label(self, dim: str, index: int) -> str:
        labels = self.dataset.indexes.get(dim)
        return str(index if labels is None else labels[index])

    def _box(self, row: LedgerRow, variable: xr.Variable) -> Box:
        region = row.box()
        sizes = zip(map(str, variable.dims), variable.shape, strict=True)
        return tuple(region.get(dim, (0, size)) for dim, size in sizes)


def _joined(boxes: Sequence[Box]) -> list[Box]:
    """Boxes that follow each other along one dimension, and are alike otherwise, as one."""
    found: list[Box] = []
    for box in boxes:
        last = found[-1] if found else ()
        differ = [axis for axis, (one, other) in enumerate(zip(last, box, strict=False)) if one != other]
        if len(differ) == 1 and last[differ[0]][1] >= box[differ[0]][0]:
            (axis,) = differ
            whole = (last[axis][0], max(last[axis][1], box[axis][1]))
            found[-1] = (*last[:axis], whole, *last[axis + 1 :])
        else:
            found.append(box)
    return found


def _cut(box: Box, chunks: Sequence[int], cells: int) -> Iterator[Box]:
    """Parts of a box that begin and end with chunks, as large as they may be."""
    steps = [min(chunk, max(stop - start, 1)) for (start, stop), chunk in zip(box, chunks, strict=True)]
    for axis in reversed(range(len(steps))):
        room = cells // max(1, math.prod(steps))
        start, stop = box[axis]
        steps[axis] = min(stop - start, max(1, room) * chunks[axis]) if stop > start else 1
    edges = [_edges(*span, step, chunk) for span, step, chunk in zip(box, steps, chunks, strict=True)]
    yield from product(*edges)


def _edges(start: int, stop: int, step: int, chunk: int) -> list[tuple[int, int]]:
    first = start // chunk * chunk
    step = max(chunk, -(-step // chunk) * chunk)
    return [(max(at, start), min(at + step, stop)) for at in range(first, stop, step)]


def sample(rows: Sequence[LedgerRow], most: int) -> list[LedgerRow]:
    """Some of them, from all over."""
    if not rows:
        return []
    return [rows[at] for at in np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int)).tolist()]


def same_labels(
    one: Mapping[Any, Any], other: Mapping[Any, Any], region: Mapping[str, tuple[int, int]]
) -> bool:
    """Whether a file has the labels of its region of the staged group, in the same order."""
    for dim, labels in other.items():
        start, stop = region.get(str(dim), (0, None))
        if dim in one and not one[dim][start:stop].equals(labels):
            return False
    return True
