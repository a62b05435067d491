"""An array that is not there yet: which part of which source its cells come from.

xarray combines datasets of such arrays as it combines real ones, so that what it would make of all the files
is known, to the cell, before one of them is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]

EXISTING = -1
"""The number of the source that is the repository itself."""


class UndigestedError(Exception):
    """Whether arrays with this name are equal cannot be said before somebody has looked at their values."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class Pieces:
    """Boxes of an array, and where each comes from: columns with a row per box, a column per dimension."""

    source: Column
    starts: Column
    """Where a box begins."""
    shape: Column
    source_starts: Column
    """Where it begins in its source, by the dimensions of this array."""
    axes: Column
    """Which dimension of the source each dimension of this array is; -1 for one that the source lacks."""

    def __len__(self) -> int:
        return len(self.source)

    @property
    def stops(self) -> Column:
        """Where each box ends."""
        return self.starts + self.shape

    def taken(self, rows: Any) -> Pieces:
        """Some of the boxes."""
        return Pieces(*(column[rows] for column in self._columns()))

    def reordered(self, order: Sequence[int]) -> Pieces:
        """The same with the dimensions in another order."""
        columns = (column[:, list(order)] for column in self._columns()[1:])
        return Pieces(self.source, *columns)

    def moved(self, axis: int, by: int) -> Pieces:
        """The same, further along a dimension."""
        starts = self.starts.copy()
        starts[:, axis] += by
        return replace(self, starts=starts)

    def _columns(self) -> tuple[Column, Column, Column, Column, Column]:
        return self.source, self.starts, self.shape, self.source_starts, self.axes

    @staticmethod
    def whole(source: int, shape: Sequence[int], begin: Sequence[int] | None = None) -> Pieces:
        """One box that is a source, from `begin` on."""
        sizes = np.array([shape], np.int64).reshape(1, len(shape))
        starts = np.array([begin or [0] * len(shape)], np.int64).reshape(1, len(shape))
        axes = np.arange(len(shape), dtype=np.int64).reshape(1, len(shape))
        return Pieces(np.array([source], np.int64), np.zeros_like(sizes), sizes, starts, axes)

    @staticmethod
    def joined(parts: Sequence[Pieces]) -> Pieces:
        """The boxes of all."""
        columns = zip(*(part._columns() for part in parts), strict=True)
        return Pieces(*(np.concatenate(column) for column in columns))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {}


class PieceArray:
    """What numpy and xarray take for an array: shape, type, and how such arrays are put together."""

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        pieces: Pieces,
        digest: str | None = None,
    ) -> None:
        self.name = name
        self.shape = tuple(int(size) for size in shape)
        self.dtype = dtype
        self.pieces = pieces
        self.digest = digest
        """Equal for arrays with equal values; None where nobody has looked."""

    @property
    def ndim(self) -> int:
        """How many dimensions there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many cells there are."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """How many bytes the cells would take."""
        return self.size * self.dtype.itemsize

    def astype(self, dtype: Any, copy: bool = True) -> PieceArray:
        """The same cells in another type."""
        return PieceArray(self.name, self.shape, np.dtype(dtype), self.pieces, self.digest)

    def transpose(self, *axes: int) -> PieceArray:
        """The same with the dimensions in another order."""
        order = list(axes) or list(range(self.ndim))[::-1]
        shape = [self.shape[axis] for axis in order]
        return PieceArray(self.name, shape, self.dtype, self.pieces.reordered(order), self.digest)

    def __getitem__(self, key: Any) -> PieceArray:
        """All of it, with new dimensions where the key has None."""
        keys = key if isinstance(key, tuple) else (key,)
        result, axis = self, 0
        for each in keys:
            if each is None:
                result = result.expanded(axis)
            elif each is not Ellipsis and not (isinstance(each, slice) and each == slice(None)):
                raise NotImplementedError(
                    "their coordinates differ along a dimension they share; values are not put in between"
                )
            axis += self.ndim if each is Ellipsis else 1
        return result

    def expanded(self, axis: int, size: int = 1) -> PieceArray:
        """The same with one dimension more, which the sources lack."""
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
        return PieceArray(self.name, shape, self.dtype, Pieces(pieces.source, *columns), self.digest)

    def __array_function__(
        self, function: Any, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if function not in _FUNCTIONS:
            return NotImplemented
        return _FUNCTIONS[function](*args, **kwargs)

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if function is np.isnan:
            return np.array(False)  # asked only to find missing values equal; equal digests do that
        if function in (np.equal, np.not_equal) and all(isinstance(each, PieceArray) for each in inputs):
            digests = {each.digest for each in inputs}
            if None in digests:
                raise UndigestedError(inputs[0].name)
            return np.array((len(digests) == 1) == (function is np.equal))
        return NotImplemented

    def __eq__(self, other: object) -> Any:
        return np.equal(self, other)  # type: ignore[call-overload]

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("an array that is not there yet has no values")


def _concatenate(arrays: Sequence[Any], axis: int = 0, **_: Any) -> PieceArray:
    first = arrays[0]
    begins = np.cumsum([0, *(array.shape[axis] for array in arrays)])
    parts = [array.pieces.moved(axis, int(begin)) for array, begin in zip(arrays, begins, strict=False)]
    shape = (*first.shape[:axis], int(begins[-1]), *first.shape[axis + 1 :])
    dtype = np.result_type(*(array.dtype for array in arrays))
    return PieceArray(first.name, shape, dtype, Pieces.joined(parts))


def _stack(arrays: Sequence[PieceArray], axis: int = 0) -> PieceArray:
    place = axis % (arrays[0].ndim + 1)
    return _concatenate([array.expanded(place) for array in arrays], place)


def _broadcast_to(array: PieceArray, shape: Sequence[int]) -> PieceArray:
    extra = len(shape) - array.ndim
    if tuple(shape[extra:]) != array.shape:
        raise NotImplementedError("dimensions of length 1 are not stretched")
    for axis, size in enumerate(shape[:extra]):
        array = array.expanded(axis, size)
    return array


def _where(condition: Any, array: Any, other: Any) -> Any:
    """Asked where missing values of one of two equal arrays are to come from the other."""
    if not np.all(condition):
        raise NotImplementedError("values of an array that is not there yet are not compared")
    return array


def _result_type(*arrays: Any) -> np.dtype[Any]:
    return np.result_type(*(array.dtype if isinstance(array, PieceArray) else array for array in arrays))


def _transpose(array: PieceArray, axes: Sequence[int] | None = None) -> PieceArray:
    return array.transpose(*(axes or ()))


_FUNCTIONS.update(
    {
        np.concatenate: _concatenate,
        np.stack: _stack,
        np.broadcast_to: _broadcast_to,
        np.result_type: _result_type,
        np.transpose: _transpose,
        np.where: _where,
        np.expand_dims: lambda array, axis: array.expanded(axis % (array.ndim + 1)),
        np.shape: lambda array: array.shape,
        np.ndim: lambda array: array.ndim,
    }
)
