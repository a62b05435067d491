"""Compare an array's values in two versions. Only chunks whose references differ are read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.report import Report
from icefloe.comparison.array_references import find_array
from icefloe.comparison.versions import find_array_differences, get_array_grid
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format import coordinates
from icefloe.format.snapshot import NodeSnapshot
from icefloe.session import Session

__all__ = ["ValueDifferences", "compare_values", "subtract_values"]

_DECODING: Final = ("data_type", "fill_value", "codecs", "storage_transformers")
"""The array metadata fields that determine how chunks are decoded."""
_NUMBERS: Final = "biufcmM"


@dataclass(frozen=True, slots=True)
class ValueDifferences(Report):
    """The result of comparing an array's values in two versions: how many cells differ, and by how much."""

    path: str
    """The path of the array in the later version."""
    shape: tuple[int, ...]
    """The shape of the compared region, whose cells exist in both versions."""
    cells: int
    """The number of compared cells."""
    differing: int
    """The number of cells whose values differ. NaN equals NaN and differs from every number."""
    missing: int
    """The number of differing cells that are NaN or NaT in one of the versions. They have no numeric
    difference.
    """
    largest: float | int | None
    """The largest absolute difference, exact for integers, and in the units of the array for times. None if
    no numbers differ."""
    chunks: int
    """The number of chunks that were read."""
    added_cells: int = 0
    """The number of cells that exist only in the later version, because the shape changed."""
    removed_cells: int = 0
    """The number of cells that exist only in the earlier version."""

    def __str__(self) -> str:
        if not self.differing:
            text = f"all {self.cells} cells are equal"
        else:
            text = f"{self.differing} of {self.cells} cells differ"
            if self.largest is not None:
                text += f" by at most {_format_number(self.largest)}"
            if self.missing:
                text += f"; {self.missing} of them are missing in one version"
        more = {"new": self.added_cells, "gone": self.removed_cells}
        return text + "".join(f"; {count} cells are {word}" for word, count in more.items() if count)


def compare_values(
    before: Session, after: Session, path: str, *, before_path: str | None = None
) -> ValueDifferences:
    """Compare an array's values in two versions: count the cells that differ, and find the largest
    difference.

    Stored values are compared, so packed data are not unpacked. Only chunks whose references differ are read,
    one at a time.

    Parameters
    ----------
    before
        The earlier version, or any other version.
    after
        The later version.
    path
        Path of the array.
    before_path
        Path of the array in the earlier version, if it was moved. By default the node with the same id, else
        the same path.

    Returns
    -------
    ValueDifferences
        The counts.

    Raises
    ------
    NodeNotFoundError
        One of the versions has no such array.
    InvalidInputError
        The number of dimensions or the kind of values differs.
    """
    pair = _ComparedArray(before, after, path, before_path)
    differing = missing = chunks = 0
    largest: float | int | None = None
    for region in pair.regions():
        old, new = pair.read(region)
        chunks += 1
        unequal = find_unequal(old, new)
        differing += int(unequal.sum())
        if not unequal.any() or old.dtype.kind not in _NUMBERS:
            continue
        magnitudes, is_missing = _compute_magnitudes(old[unequal], new[unequal])
        missing += int(is_missing.sum())
        if not is_missing.all():
            found = magnitudes[~is_missing].max().item()
            largest = found if largest is None else max(largest, found)
    cells = int(np.prod(pair.shape, dtype=object))
    sizes = [int(np.prod(array.shape, dtype=object)) for array in (pair.old, pair.new)]
    return ValueDifferences(
        pair.path, pair.shape, cells, differing, missing, largest, chunks, sizes[1] - cells, sizes[0] - cells
    )


def subtract_values(
    before: Session,
    after: Session,
    path: str,
    selection: Sequence[slice | int] = (),
    *,
    before_path: str | None = None,
) -> NDArray[Any]:
    """Subtract an array's values in an earlier version from those in a later version.

    Only chunks whose references differ are read; all other differences are 0.

    Parameters
    ----------
    before
        The earlier version, or any other version.
    after
        The later version.
    path
        Path of the array.
    selection
        An index or a slice with a positive step for each leading dimension; by default all cells that both
        versions have.
    before_path
        Path of the array in the earlier version, if it was moved.

    Returns
    -------
    numpy.ndarray
        `after - before` as `float64`, or `complex128` for complex values, without overflow; NaN where one of
        the two is missing, 0 where both are equal. Times are subtracted in the units of the array.

    Raises
    ------
    NodeNotFoundError
        One of the versions has no such array.
    InvalidInputError
        The number of dimensions differs, or the values cannot be subtracted, such as strings.
    """
    pair = _ComparedArray(before, after, path, before_path)
    kind = pair.new.dtype.kind
    if kind not in _NUMBERS:
        raise InvalidInputError(
            f"{pair.path}: values of type {pair.new.dtype} cannot be subtracted",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    window, dropped = _resolve_window(selection, pair.shape)
    result = np.zeros([len(each) for each in window], "c16" if kind == "c" else "f8")
    for region in pair.regions():
        inside = [_find_overlap(part, steps) for part, steps in zip(region, window, strict=True)]
        if all(len(where) for where, _ in inside):
            old, new = pair.read(tuple(slice(each.start, each.stop, each.step) for each, _ in inside))
            result[tuple(target for _, target in inside)] = subtract(old, new)
    return result[tuple(0 if axis in dropped else slice(None) for axis in range(result.ndim))]


def _format_number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


class _ComparedArray:
    """An array in the two versions being compared."""

    def __init__(self, before: Session, after: Session, path: str, before_path: str | None) -> None:
        import zarr  # not needed if only references are compared

        new = find_array(after._workspace, path)
        old = _find_counterpart(before, new, before_path)
        self.path = new.path
        self.old, self.new = (
            zarr.open_array(session.store, path=node.path.strip("/"), mode="r")
            for session, node in ((before, old), (after, new))
        )
        kinds = {_classify_dtype(self.old.dtype), _classify_dtype(self.new.dtype)}
        if self.old.ndim != self.new.ndim or len(kinds) > 1:
            shown = [f"{array.shape} of {array.dtype}" for array in (self.old, self.new)]
            raise InvalidInputError(
                f"{self.path}: {shown[0]} cannot be compared with {shown[1]}",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
        self.shape = tuple(min(sizes) for sizes in zip(self.old.shape, self.new.shape, strict=True))
        self._nodes = (old, new)
        self._workspaces = (before._workspace, after._workspace)

    def regions(self) -> Iterator[tuple[slice, ...]]:
        """Yield the regions of the common cells whose chunks may contain different values."""
        old, new = self._nodes
        grid = get_array_grid(new)
        found = find_array_differences(*self._workspaces, old, new)
        coords = found.coords
        if not found.same_grid or not _is_decoded_alike(old, new):
            coords = coordinates.list_window([range(count) for count in grid.counts])
        for at in coords.tolist():  # reading and decoding a chunk takes far longer than an iteration
            box = (
                grid.box(at)
                if all(index < count for index, count in zip(at, grid.counts, strict=True))
                else None
            )
            if box is None:  # a chunk that only the larger, earlier array has
                continue
            region = tuple(
                slice(part.start, min(part.stop, size)) for part, size in zip(box, self.shape, strict=True)
            )
            if all(part.start < part.stop for part in region):
                yield region

    def read(self, region: tuple[slice, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read a region of the array in both versions."""
        return np.asarray(self.old[region]), np.asarray(self.new[region])


def _find_counterpart(before: Session, new: NodeSnapshot, path: str | None) -> NodeSnapshot:
    """Find an array in the earlier version: at the given path, otherwise by its id or at the same path."""
    if path is not None:
        return find_array(before._workspace, path)
    workspace = before._workspace
    there = workspace.node(new.path)
    if there is not None and there.id == new.id:
        return there
    for each in workspace.paths():  # a loop over nodes, not over chunks
        node = workspace.node(each)
        if node is not None and node.id == new.id:
            return node
    return find_array(workspace, new.path)


def _is_decoded_alike(old: NodeSnapshot, new: NodeSnapshot) -> bool:
    """Return True if both versions decode identical chunks to identical values."""
    one, other = json.loads(old.user_data), json.loads(new.user_data)
    return all(one.get(part) == other.get(part) for part in _DECODING)


def _classify_dtype(dtype: np.dtype[Any]) -> str:
    return "number" if dtype.kind in "biuf" else dtype.kind if dtype.kind in "cmM" else "other"


def find_unequal(old: NDArray[Any], new: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the cells whose values differ between two versions.

    NaN equals only NaN.
    """
    unequal = np.asarray(_widen_lossless(old) != _widen_lossless(new))
    if old.dtype.kind in "fcmM" and new.dtype.kind in "fcmM":
        unequal &= ~(_is_missing(old) & _is_missing(new))
    return np.asarray(unequal, np.bool_)


def _widen_lossless(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(object) if values.dtype.kind == "T" else values


def _is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind in "mM":
        return np.asarray(np.isnat(values))
    if values.dtype.kind in "fc":
        return np.asarray(np.isnan(values))
    return np.zeros(values.shape, np.bool_)


def _compute_magnitudes(old: NDArray[Any], new: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return absolute differences, exact for integers, and a mask of the cells missing in one version."""
    is_missing = _is_missing(old) | _is_missing(new)
    if old.dtype.kind in "fc" or new.dtype.kind in "fc":
        with np.errstate(invalid="ignore", over="ignore"):
            return np.abs(_widen(new) - _widen(old)), is_missing
    larger, smaller = _as_integers(old, new)
    return _subtract_integers(larger, smaller), is_missing


def subtract(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    """Subtract earlier values from later ones: 0 where both are equal, NaN where one of them is missing."""
    magnitudes, is_missing = _compute_magnitudes(old, new)
    if old.dtype.kind in "fc" or new.dtype.kind in "fc":
        with np.errstate(invalid="ignore", over="ignore"):
            result = np.asarray(_widen(new) - _widen(old))
    else:
        one, other = _as_integers(old, new)
        sizes = magnitudes.astype("f8")
        result = np.where(other < one, -sizes, sizes)
    result = np.where(is_missing, np.nan, result)
    return np.where(find_unequal(old, new), result, 0)


def _widen(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype("c16" if values.dtype.kind == "c" else "f8")


def _as_integers(old: NDArray[Any], new: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Convert integers, booleans or times to integers that are comparable with each other."""
    sides = [old, new]
    if old.dtype.kind in "mM":
        sides = [each.astype(np.result_type(old, new)).view("i8") for each in sides]
    kinds = {each.dtype.kind for each in sides}
    if "u" in kinds and len(kinds) > 1 and any(each.dtype == np.uint64 for each in sides):
        sides = [each.astype(object) for each in sides]  # no numpy type can represent both int64 and uint64
        return sides[0], sides[1]
    wide = "u8" if kinds == {"u"} else "i8"
    return sides[0].astype(wide), sides[1].astype(wide)


def _subtract_integers(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return exact absolute differences of 64-bit integers, computed with unsigned wrap-around."""
    if one.dtype.kind == "O":
        return np.asarray(np.abs(one - other))
    is_less = other < one
    high, low = np.where(is_less, one, other).view("u8"), np.where(is_less, other, one).view("u8")
    return np.asarray(high - low)


def _resolve_window(selection: Sequence[slice | int], shape: tuple[int, ...]) -> tuple[list[range], set[int]]:
    """Return the selected positions along each dimension, and the dimensions that an integer index drops."""
    if len(selection) > len(shape):
        raise InvalidInputError(
            f"the selection has {len(selection)} dimensions, but the array has {len(shape)}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    window: list[range] = []
    dropped: set[int] = set()
    for axis, size in enumerate(shape):
        part = selection[axis] if axis < len(selection) else slice(None)
        if isinstance(part, slice):
            found = range(*part.indices(size))
            if found.step < 1:
                raise InvalidInputError(
                    f"the step {found.step} of dimension {axis} must be at least 1",
                    kind=ErrorKind.INVALID_CHUNK_INDEX,
                )
        else:
            index = part + size if part < 0 else part
            if not 0 <= index < size:
                raise InvalidInputError(
                    f"index {part} is out of bounds for dimension {axis} with size {size}",
                    kind=ErrorKind.INVALID_CHUNK_INDEX,
                )
            found = range(index, index + 1)
            dropped.add(axis)
        window.append(found)
    return window, dropped


def _find_overlap(part: slice, steps: range) -> tuple[range, slice]:
    """Return the selected positions inside a chunk, and their indices within the whole selection."""
    first = max(0, -(-(part.start - steps.start) // steps.step))
    stop = min(len(steps), max(first, -(-(part.stop - steps.start) // steps.step)))
    return steps[first:stop], slice(first, stop)
