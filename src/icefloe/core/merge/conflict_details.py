"""Describe conflicting chunks by their coordinate labels and by the differences between their values.

These descriptions are only for display. Data that cannot be read is mentioned in the description instead of
raising an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import NodeId
from icefloe._internal.paths import join, list_ancestors
from icefloe.cf import get_fill_values, parse_time_coding
from icefloe.conflicts import ChunkDetails, DifferingCell
from icefloe.core.chunk_grid import get_stored_grid
from icefloe.core.chunk_values import Values, decode_chunk
from icefloe.core.merge.state_changes import State
from icefloe.errors import IcechunkError
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot

_MAX_BYTES: Final = 256 << 20
"""Chunks with a larger decoded size, in bytes, are not compared."""
_LABEL_LENGTH: Final = 40
_MAX_CELLS: Final = 3
_SORTED_CELLS: Final = 1 << 24
"""For chunks with more cells than this, only the first differing cell is shown, to save memory."""
_ONE_ELEMENT: Final = re.compile(r"\[(\d+):\d+\]")


class ConflictReader:
    """Reads the details of conflicting chunks from the two states of a merge. Caches coordinate labels."""

    def __init__(self, ours: State, theirs: State) -> None:
        self._sides = (_Side(ours), _Side(theirs))

    def details(self, id: NodeId, coords: tuple[int, ...], with_values: bool) -> ChunkDetails:
        """Return the details of a merge conflict in one chunk of an array.

        Chunk values are read and compared only with `with_values`.
        """
        here, there = (side.chunk(id, coords) for side in self._sides)
        where, their_where = (chunk.where for chunk in (here, there))
        found = ChunkDetails(where, their_where if their_where != where else None)
        if not with_values:
            return found
        problem = "ours cannot be read"
        try:
            ours = here.values()
            problem = "theirs cannot be read"
            theirs = there.values()
            problem = "they cannot be compared"
            return _compare(found, ours, theirs, here)
        except Exception as error:  # noqa: BLE001 - codecs may raise anything, and the merge does not need it
            hint = error.hint if isinstance(error, IcechunkError) else None
            return replace(found, problem=f"{problem}: {_format_reason(error)}", hint=hint)


class _Side:
    """One of the two states that a conflict is about."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._coordinates: dict[tuple[str, int], Values] = {}

    def chunk(self, id: NodeId, coords: tuple[int, ...]) -> _Chunk:
        return _Chunk(self, self.state.node(id), coords)

    def coordinate(self, array: NodeSnapshot, dimension: str, size: int) -> NodeSnapshot | None:
        """Return the coordinate of a dimension: the 1-d array with the same name and length in the closest
        enclosing group.
        """
        nodes = self.state.snapshot.nodes
        for group in list_ancestors(array.path):
            found = nodes.find(join(group, dimension))
            if found is not None and isinstance(found.node_data, ArrayNodeData):
                shape = list(found.node_data.lengths)
                return found if shape == [size] else None
        return None

    def labels(self, coordinate: NodeSnapshot, span: range) -> list[str]:
        """Return the coordinate labels of the first and last element of a span."""
        attributes = _Chunk(self, coordinate, (0,)).attributes
        return [
            label_text(self._read_element(coordinate, place), attributes) for place in (span[0], span[-1])
        ]

    def _read_element(self, coordinate: NodeSnapshot, place: int) -> Values:
        """Read one element of a coordinate as an array."""
        grid = get_stored_grid(json.loads(coordinate.user_data))
        ((number, *_),) = grid.find_touched([slice(place, place + 1)])
        key = (coordinate.path, number)
        if key not in self._coordinates:
            self._coordinates[key] = _Chunk(self, coordinate, (number,)).values()
        at = place - grid.box([number])[0].start
        return self._coordinates[key][at : at + 1]


@dataclass(frozen=True)
class _Chunk:
    """One chunk of an array on one side."""

    side: _Side
    node: NodeSnapshot | None
    coords: tuple[int, ...]

    @cached_property
    def document(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = {} if self.node is None else json.loads(self.node.user_data)
        return found

    @property
    def attributes(self) -> Mapping[str, Any]:
        found = self.document.get("attributes")
        return found if isinstance(found, dict) else {}

    @cached_property
    def box(self) -> list[range]:
        """The element range of the whole chunk, including elements beyond the end of the array."""
        return [range(each.start, each.stop) for each in get_stored_grid(self.document).box(self.coords)]

    @property
    def spans(self) -> list[range]:
        """The element range of the chunk, clipped to the shape of the array."""
        shape = self.document["shape"]
        return [range(each.start, min(each.stop, size)) for each, size in zip(self.box, shape, strict=True)]

    @cached_property
    def where(self) -> str:
        """The coordinate labels that the chunk covers. Dimensions without a coordinate are described by
        element numbers.
        """
        try:
            names = self.document.get("dimension_names") or [None] * len(self.coords)
            parts = [
                self._format_place(*each) for each in zip(range(len(names)), names, self.spans, strict=True)
            ]
        except (
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ):  # the array does not exist, or its metadata is invalid
            return f"chunk {list(self.coords)}"
        return ", ".join(parts)

    def _format_place(self, axis: int, dimension: str | None, span: range) -> str:
        numbers = f"{dimension or f'dimension {axis}'}[{span.start}:{span.stop}]"
        if self.node is None or not dimension or not span:
            return numbers
        coordinate = self.side.coordinate(self.node, dimension, self.document["shape"][axis])
        if coordinate is None:
            return numbers
        try:
            first, last = self.side.labels(coordinate, span)
        except Exception:  # noqa: BLE001 - as above: fall back to element numbers
            return numbers
        return f"{dimension}={first}" if first == last else f"{dimension}={first}..{last}"

    def format_cell(self, at: tuple[int, ...]) -> str:
        """Format the coordinate labels of one cell, given its position in the chunk."""
        names = self.document.get("dimension_names") or [None] * len(at)
        places = [
            range(span.start + each, span.start + each + 1) for span, each in zip(self.spans, at, strict=True)
        ]
        parts = [self._format_place(*each) for each in zip(range(len(at)), names, places, strict=True)]
        return ", ".join(part if "=" in part else _ONE_ELEMENT.sub(r"[\1]", part) for part in parts)

    def values(self) -> Values:
        """Read and decode the chunk. A chunk that is not stored has the fill value everywhere."""
        if self.node is None:
            raise ValueError("the array was deleted")
        shape = [len(each) for each in self.box]
        workspace = self.side.state.workspace
        ref = workspace.ref(self.node, self.coords)
        where = f"{self.coords} of {self.node.path}"
        data = None if ref is None else workspace.read(ref, 0, ref.length, where)
        values = decode_chunk(self.document, shape, data, most_bytes=_MAX_BYTES)
        return values[tuple(slice(0, len(span)) for span in self.spans)]


def label_text(value: Values, attributes: Mapping[str, Any]) -> str:
    """Format a coordinate label for the details of a conflict. Times are shown as dates, packed numbers
    unpacked.
    """
    coding = parse_time_coding(attributes.get("units"), attributes.get("calendar"))
    if coding is not None and value.dtype.kind in "iuf":
        text = str(coding.texts(coding.microseconds(value))[0])
    elif value.dtype.kind == "M":
        text = str(np.datetime_as_string(value, unit="s")[0])
    else:
        text = _format_number(_unpack(value, attributes)[0])
    return _clip(text.removesuffix("T00:00:00"))


def _clip(text: str) -> str:
    return text if len(text) <= _LABEL_LENGTH else f"{text[: _LABEL_LENGTH - 3]}..."


def _format_number(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, np.float64 | float) else str(value)


def _unpack(values: Values, attributes: Mapping[str, Any]) -> Values:
    scale, offset = (_number(attributes.get(each)) for each in ("scale_factor", "add_offset"))
    if values.dtype.kind not in "iuf" or (scale is None and offset is None):
        return values
    return np.asarray(values.astype("f8") * (1.0 if scale is None else scale) + (offset or 0.0))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _compare(found: ChunkDetails, ours: Values, theirs: Values, here: _Chunk) -> ChunkDetails:
    """Count the cells that differ in the overlap of two chunks, and find the largest differences."""
    attributes = here.attributes
    if ours.ndim != theirs.ndim:
        return replace(found, problem="the sides have different numbers of dimensions")
    common = tuple(slice(0, min(sizes)) for sizes in zip(ours.shape, theirs.shape, strict=True))
    ours, theirs = ours[common], theirs[common]
    gone, their_gone = (_is_missing(each, attributes) for each in (ours, theirs))
    differ = np.asarray(ours != theirs) & ~(gone & their_gone)
    count = int(np.count_nonzero(differ))
    largest, units = _find_largest_difference(ours, theirs, differ & ~gone & ~their_gone, attributes)

    def text(values: Values, missing: NDArray[np.bool_], at: tuple[int, ...]) -> str:
        return (
            "missing"
            if missing[at]
            else label_text(values[tuple(slice(n, n + 1) for n in at)].reshape(1), attributes)
        )

    return replace(
        found,
        num_cells=int(ours.size),
        num_differing=count,
        num_missing_on_one_side=int(np.count_nonzero(differ & (gone ^ their_gone))),
        largest_difference=largest,
        units=units,
        cells=tuple(
            DifferingCell(here.format_cell(at), text(ours, gone, at), text(theirs, their_gone, at))
            for at in _find_largest_cells(ours, theirs, differ)
        ),
    )


def _find_largest_cells(ours: Values, theirs: Values, differ: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Return the positions of the cells with the largest differences. For types without differences, return
    the first differing cells.
    """
    if differ.size > _SORTED_CELLS:
        first = int(differ.argmax())
        return [tuple(map(int, np.unravel_index(first, differ.shape)))] if differ.reshape(-1)[first] else []
    found = np.argwhere(differ)
    here, there = ours[differ], theirs[differ]
    if here.dtype.kind in "iuf" and there.dtype.kind in "iuf":
        with np.errstate(all="ignore"):
            steps = np.abs(here.astype("f8") - there.astype("f8"))
        found = found[np.argsort(-np.nan_to_num(steps, nan=-1.0), kind="stable")]
    return [tuple(row) for row in found[:_MAX_CELLS].tolist()]


def _is_missing(values: Values, attributes: Mapping[str, Any]) -> NDArray[np.bool_]:
    found = np.zeros(values.shape, bool)
    if values.dtype.kind in "fc":
        found |= np.isnan(values)
    elif values.dtype.kind in "mM":
        found |= np.isnat(values)
    if values.dtype.kind in "iuf":
        for missing in get_fill_values(attributes, values.dtype):
            found |= values == missing
    return found


def _find_largest_difference(
    ours: Values, theirs: Values, where: NDArray[np.bool_], attributes: Mapping[str, Any]
) -> tuple[float | None, str]:
    """Return the largest difference between numbers or times, in the units of the unpacked values."""
    units = attributes.get("units")
    units = units.partition(" since ")[0] if isinstance(units, str) else ""
    here, there = ours[where], theirs[where]
    kinds = {here.dtype.kind, there.dtype.kind}
    if not here.size or not kinds <= set("iufcmM") or ("M" in kinds and len(kinds) > 1):
        return None, units
    if kinds <= set("mM"):
        step = (np.maximum(here, there) - np.minimum(here, there)).max()
        return float(step / np.timedelta64(1, "s")), "s"
    with np.errstate(all="ignore"):
        if kinds <= set("iu") and here.dtype == there.dtype:
            # The difference between any two integers fits into an unsigned integer.
            found = float((np.maximum(here, there).astype("u8") - np.minimum(here, there).astype("u8")).max())
        else:
            wide = np.complex128 if "c" in kinds else np.float64
            found = float(np.abs(here.astype(wide) - there.astype(wide)).max())
    scale = _number(attributes.get("scale_factor"))
    return (found if scale is None else found * abs(scale)), units


def _format_reason(error: Exception) -> str:
    if isinstance(error, IcechunkError):
        return error.message.partition("\n")[0]
    text = str(error).partition("\n")[0]
    if isinstance(error, ValueError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
