"""Arrays without values, in which every cell points to a position in a source.

xarray combines datasets of such arrays like real datasets. The result shows which source provides each cell
of the combined arrays, before any data is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.format.extents import have_overlap

Column = npt.NDArray[np.int64]

_MAX_PAIRS = 1 << 22
"""The maximum number of pairs of pieces to compare."""
EXISTING = -1
"""The source number that stands for the existing arrays in the repository."""


class UndigestedError(Exception):
    """Error raised when files cannot be combined without comparing values that have not been hashed yet."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of an array without values, stored as columns: boxes of cells, and their positions in a
    source.
    """

    source: Column
    starts: Column
    """The first cell of each box in this array."""
    shape: Column
    source_starts: Column
    """The first cell of each box in its source, ordered by the dimensions of this array."""
    axes: Column
    """For each dimension of this array, the axis in the source; -1 if the source lacks the dimension."""

    def __len__(self) -> int:
        return len(self.source)

    @property
    def stops(self) -> Column:
        """The stop index (exclusive) of each box along each dimension."""
        return self.starts + self.shape

    def select(self, rows: Any) -> Pieces:
        """Select pieces by row."""
        return Pieces(*(column[rows] for column in self._list_columns()))

    def reorder(self, order: Sequence[int]) -> Pieces:
        """Return the pieces with their dimensions in another order."""
        columns = (column[:, list(order)] for column in self._list_columns()[1:])
        return Pieces(self.source, *columns)

    def clip(self, axis: int, first: int, count: int) -> Pieces:
        """Clip pieces to an interval along a dimension. Pieces outside of it are dropped."""
        starts = np.maximum(self.starts[:, axis], first)
        stops = np.minimum(self.stops[:, axis], first + count)
        rows = starts < stops
        found = self.select(rows)
        columns = [column.copy() for column in found._list_columns()[1:]]
        skipped = starts[rows] - found.starts[:, axis]
        columns[0][:, axis] = starts[rows]
        columns[1][:, axis] = (stops - starts)[rows]
        columns[2][:, axis] += np.where(found.axes[:, axis] >= 0, skipped, 0)
        return Pieces(found.source, *columns)

    def split(self, unit: Sequence[int], cells: int, axis: int = 0) -> Iterator[Pieces]:
        """Split a single piece into parts of about `cells` cells. Parts begin at multiples of `unit` in the
        source.
        """
        size = int(self.shape.prod())
        if size <= cells or axis == len(unit):
            yield self
            return
        if self.axes[0, axis] < 0:  # each part would read the whole source
            yield from self.split(unit, cells, axis + 1)
            return
        first, length = int(self.starts[0, axis]), int(self.shape[0, axis])
        step = max(1, cells * length // size // unit[axis]) * unit[axis]
        at = first
        while at < first + length:
            end = at + step - (int(self.source_starts[0, axis]) + at - first) % unit[axis]
            yield from self.clip(axis, at, end - at).split(unit, cells, axis + 1)
            at = end

    def shift(self, axis: int, by: int) -> Pieces:
        """Shift pieces by an offset along a dimension."""
        starts = self.starts.copy()
        starts[:, axis] += by
        return replace(self, starts=starts)

    def _list_columns(self) -> tuple[Column, Column, Column, Column, Column]:
        return self.source, self.starts, self.shape, self.source_starts, self.axes

    @staticmethod
    def whole(source: int, shape: Sequence[int], begin: Sequence[int] | None = None) -> Pieces:
        """Create a piece that covers a whole source, or the part of it that starts at `begin`."""
        sizes = np.array([shape], np.int64).reshape(1, len(shape))
        starts = np.array([begin or [0] * len(shape)], np.int64).reshape(1, len(shape))
        axes = np.arange(len(shape), dtype=np.int64).reshape(1, len(shape))
        return Pieces(np.array([source], np.int64), np.zeros_like(sizes), sizes, starts, axes)

    @staticmethod
    def concatenate(parts: Sequence[Pieces]) -> Pieces:
        """Concatenate several sets of pieces."""
        columns = zip(*(part._list_columns() for part in parts), strict=True)
        return Pieces(*(np.concatenate(column) for column in columns))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {}


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a piece: a variable in a file or in the repository."""

    shape: tuple[int, ...]
    digest: str | None = None
    """A hash of the values; None if it was not computed."""


class PieceArray:
    """An array without values, in which every cell points to a cell of a source.

    It implements the parts of numpy's array interface that xarray needs to combine arrays.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        pieces: Pieces,
        origins: Mapping[int, Origin],
    ) -> None:
        self.name = name
        self.shape = tuple(int(size) for size in shape)
        self.dtype = dtype
        self.pieces = pieces
        self.origins = origins
        """The source variables of the pieces, by source number."""

    @property
    def ndim(self) -> int:
        """The number of dimensions of an array without values."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of cells of an array without values."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """The size in bytes that the values of the array would have."""
        return self.size * self.dtype.itemsize

    def astype(self, dtype: Any, copy: bool = True) -> PieceArray:
        """Return the array of pieces with another dtype.

        A text dtype without a length keeps the current length.
        """
        wanted = np.dtype(dtype)
        if wanted.kind in "SU" and not wanted.itemsize:
            wanted = self.dtype if self.dtype.kind == wanted.kind else np.dtype(object)
        return PieceArray(self.name, self.shape, wanted, self.pieces, self.origins)

    def transpose(self, *axes: int | Sequence[int]) -> PieceArray:
        """Return the array of pieces with its dimensions in another order."""
        order = [each for axis in axes for each in (axis if isinstance(axis, Sequence) else (axis,))]
        order = order or list(range(self.ndim))[::-1]
        shape = [self.shape[axis] for axis in order]
        return PieceArray(self.name, shape, self.dtype, self.pieces.reorder(order), self.origins)

    @property
    def is_complete(self) -> bool:
        """True if every cell of the array belongs to a piece."""
        return self.missing == 0

    @property
    def missing(self) -> int:
        """The number of cells that do not belong to any piece."""
        return self.size - int(self.pieces.shape.prod(axis=1).sum())

    def __getitem__(self, key: Any) -> PieceArray:
        """Index the dimensions one by one; None inserts a new dimension.

        As in xarray, an integer array selects cells, and -1 selects a missing cell.
        """
        keys = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in [each for each in keys if not isinstance(each, np.ndarray)]:
            place = next(i for i, each in enumerate(keys) if each is Ellipsis)
            named = sum(each is not None for each in keys) - 1
            keys[place : place + 1] = [slice(None)] * (self.ndim - named)
        result = self
        for axis, each in enumerate(keys):
            if each is None:
                result = result.expand(axis)
            elif not (isinstance(each, slice) and each == slice(None)):
                wanted = np.arange(result.shape[axis])[each] if isinstance(each, slice) else np.asarray(each)
                if not wanted.ndim and not isinstance(each, np.ndarray):
                    raise NotImplementedError("unread values cannot be indexed with a single number")
                result = result.pick(axis, wanted.reshape(-1))
        return result

    def pick(self, axis: int, wanted: npt.NDArray[Any]) -> PieceArray:
        """Select cells along a dimension by index; -1 selects a missing cell."""
        shape = (*self.shape[:axis], len(wanted), *self.shape[axis + 1 :])
        edges = np.flatnonzero(np.diff(wanted) != 1) + 1
        parts = [self.pieces.select(slice(0, 0))]
        for at, run in zip(np.append(0, edges).tolist(), np.split(wanted, edges), strict=True):
            # a missing cell (-1) followed by cell 0 must not count as two adjacent cells
            numbers = run[run >= 0]
            if len(numbers):
                first, skipped = int(numbers[0]), len(run) - len(numbers)
                parts.append(self.pieces.clip(axis, first, len(numbers)).shift(axis, at + skipped - first))
        return PieceArray(self.name, shape, self.dtype, Pieces.concatenate(parts), self.origins)

    def expand(self, axis: int, size: int = 1) -> PieceArray:
        """Add a dimension that the sources lack to the array of pieces."""
        pieces = self.pieces
        columns = [
            np.insert(column, axis, value, axis=1)
            for column, value in (
                (pieces.starts, 0),
                (pieces.shape, size),
                (pieces.source_starts, 0),
                (pieces.axes, -1),
            )
        ]
        shape = (*self.shape[:axis], size, *self.shape[axis:])
        return PieceArray(self.name, shape, self.dtype, Pieces(pieces.source, *columns), self.origins)

    def __array_function__(
        self, function: Any, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if function not in _FUNCTIONS:
            return NotImplemented
        return _FUNCTIONS[function](*args, **kwargs)

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if function in (np.isnan, np.isnat):
            return np.array(
                False
            )  # xarray only tests whether missing values are equal, which equal digests imply
        if function in (np.equal, np.not_equal) and all(isinstance(each, PieceArray) for each in inputs):
            return np.array(_equal(*inputs) == (function is np.equal))
        return NotImplemented

    def __eq__(self, other: object) -> Any:
        return np.equal(self, other)  # type: ignore[call-overload]

    def __ne__(self, other: object) -> Any:
        return np.not_equal(self, other)  # type: ignore[call-overload]

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("a PieceArray has no values")


def _concatenate(arrays: Sequence[Any], axis: int = 0, **_: Any) -> PieceArray:
    first = arrays[0]
    begins = np.cumsum([0, *(array.shape[axis] for array in arrays)])
    parts = [array.pieces.shift(axis, int(begin)) for array, begin in zip(arrays, begins, strict=False)]
    shape = (*first.shape[:axis], int(begins[-1]), *first.shape[axis + 1 :])
    dtype = np.result_type(*(array.dtype for array in arrays))
    origins = {number: origin for array in arrays for number, origin in array.origins.items()}
    return PieceArray(first.name, shape, dtype, Pieces.concatenate(parts), origins)


def _stack(arrays: Sequence[PieceArray], axis: int = 0) -> PieceArray:
    place = axis % (arrays[0].ndim + 1)
    return _concatenate([array.expand(place) for array in arrays], place)


def _broadcast_to(array: PieceArray, shape: Sequence[int]) -> PieceArray:
    extra = len(shape) - array.ndim
    for axis, (size, wanted) in enumerate(zip(array.shape, shape[extra:], strict=True)):
        if size != wanted:
            array = array.pick(axis, np.zeros(wanted, np.int64))
    for axis, size in enumerate(shape[:extra]):
        array = array.expand(axis, size)
    return array


def _where(condition: Any, array: Any, other: Any) -> Any:
    """Implement `np.where` for the two ways in which xarray calls it: to merge arrays, and to align them.

    Merging fills missing cells from another array that is otherwise equal. Aligning changes only the dtype,
    because no piece covers the cells to fill yet.
    """
    if isinstance(other, PieceArray) or not isinstance(array, PieceArray):
        if not isinstance(array, PieceArray) or not np.all(condition):
            raise NotImplementedError("values that have not been read cannot be compared cell by cell")
        return _fill_missing(array, other)
    if np.size(condition) - np.count_nonzero(condition) not in (0, array.missing):
        raise NotImplementedError("values that have not been read cannot be replaced cell by cell")
    return array.astype(np.result_type(array.dtype, other))


def _equal(one: PieceArray, other: PieceArray) -> bool:
    """Return True if two arrays are equal in all cells that both have. A missing value equals any value.

    Raise UndigestedError if the values have not been hashed. Only whole variables have hashes.
    """
    if one.shape != other.shape:
        return False
    for first, second in _find_overlapping_pairs(one, other):
        mine, theirs = (
            one.origins[int(one.pieces.source[first])],
            other.origins[int(other.pieces.source[second])],
        )
        if _is_same_source(one.pieces, first, other.pieces, second):
            continue
        if not _is_whole(one.pieces, first, mine) or not _is_whole(other.pieces, second, theirs):
            raise UndigestedError(one.name)
        if not _is_aligned(one.pieces, first, other.pieces, second) or None in (mine.digest, theirs.digest):
            raise UndigestedError(one.name)
        if mine.digest != theirs.digest:
            return False
    return True


def _find_overlapping_pairs(one: PieceArray, other: PieceArray) -> list[tuple[int, int]]:
    """Return the indices of pieces in two arrays that overlap, as pairs."""
    if len(one.pieces) * len(other.pieces) > _MAX_PAIRS:
        both = Pieces.concatenate([one.pieces, other.pieces])
        if not one.ndim or have_overlap(both.starts, both.stops):
            raise UndigestedError(one.name)
        return []
    low = np.maximum(one.pieces.starts[:, None], other.pieces.starts[None])
    high = np.minimum(one.pieces.stops[:, None], other.pieces.stops[None])
    return [(int(i), int(j)) for i, j in np.argwhere((low < high).all(axis=2))]


def _is_same_source(one: Pieces, row: int, other: Pieces, its_row: int) -> bool:
    """Return True if two pieces refer to the same source cells where they overlap."""
    return (
        one.source[row] == other.source[its_row]
        and bool((one.axes[row] == other.axes[its_row]).all())
        and bool(
            (
                one.starts[row] - one.source_starts[row]
                == other.starts[its_row] - other.source_starts[its_row]
            )[one.axes[row] >= 0].all()
        )
    )


def _is_whole(pieces: Pieces, row: int, origin: Origin) -> bool:
    real = pieces.axes[row] >= 0
    sizes = [origin.shape[axis] for axis in pieces.axes[row][real].tolist()]
    return not pieces.source_starts[row][real].any() and pieces.shape[row][real].tolist() == sizes


def _is_aligned(one: Pieces, row: int, other: Pieces, its_row: int) -> bool:
    """Return True if two pieces begin at the same cell of their sources, along all dimensions."""
    real = one.axes[row] >= 0
    if not (one.axes[row] == other.axes[its_row]).all():
        return False
    return bool((one.starts[row] == other.starts[its_row])[real].all())


def _fill_missing(one: PieceArray, other: PieceArray) -> PieceArray:
    """Fill the missing cells of an array with pieces of another array."""
    shape = np.broadcast_shapes(one.shape, other.shape)
    one, other = _broadcast_to(one, shape), _broadcast_to(other, shape)
    if one.is_complete:
        return one
    left = {row: [other.pieces.select(slice(row, row + 1))] for row in range(len(other.pieces))}
    for first, second in _find_overlapping_pairs(one, other):
        box = one.pieces.starts[first].tolist(), one.pieces.stops[first].tolist()
        left[second] = [rest for piece in left[second] for rest in _subtract_box(piece, *box)]
    new = Pieces.concatenate([one.pieces, *(piece for pieces in left.values() for piece in pieces)])
    dtype = np.result_type(one.dtype, other.dtype)
    origins = {**other.origins, **one.origins}
    return PieceArray(one.name, one.shape, dtype, new, origins)


def _subtract_box(piece: Pieces, low: Sequence[int], high: Sequence[int]) -> Iterator[Pieces]:
    """Yield the parts of a piece that are outside of a box."""
    for axis, (first, last) in enumerate(zip(low, high, strict=True)):
        start, stop = int(piece.starts[0, axis]), int(piece.stops[0, axis])
        for begin, end in ((start, min(first, stop)), (max(last, start), stop)):
            if begin < end:
                yield piece.clip(axis, begin, end - begin)
        begin, end = max(start, first), min(stop, last)
        if begin >= end:
            return
        piece = piece.clip(axis, begin, end - begin)


def _find_result_type(*arrays: Any) -> np.dtype[Any]:
    return np.result_type(*(array.dtype if isinstance(array, PieceArray) else array for array in arrays))


def _transpose(array: PieceArray, axes: Sequence[int] | None = None) -> PieceArray:
    return array.transpose(*(axes or ()))


_FUNCTIONS.update(
    {
        np.concatenate: _concatenate,
        np.stack: _stack,
        np.broadcast_to: _broadcast_to,
        np.result_type: _find_result_type,
        np.transpose: _transpose,
        np.full_like: lambda array, fill_value, dtype=None, **_: np.array(fill_value, dtype),
        np.where: _where,
        np.expand_dims: lambda array, axis: array.expand(axis % (array.ndim + 1)),
        np.shape: lambda array: array.shape,
        np.ndim: lambda array: array.ndim,
    }
)
