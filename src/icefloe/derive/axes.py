"""Axes describe which cells along an input dimension each output cell depends on."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.core.fingerprints import Lanes, RectangleSums, combine, hash_bytes
from icefloe.derive.user_code import UserCode
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError

Cells: TypeAlias = NDArray[np.int64]
Span: TypeAlias = tuple[int, int]
"""A range of cells: the first cell, and the end (exclusive)."""


class Axis(ABC):
    """An axis of an input array. It describes which cells along one dimension each output cell depends on."""

    outputs: tuple[str, ...] = ()
    """The output dimensions on which the needed input cells depend."""
    is_dropped: bool = False
    """True if the output does not have this dimension."""

    @abstractmethod
    def cells(self, *spans: Span) -> Span:
        """Return the range of input cells that is needed to compute the given ranges of output cells."""

    def codes(self, cells: Span, *spans: Span) -> Cells | None:
        """Map each input cell to an output cell, given as an offset in the output range; -1 if there is none.

        Return None if input and output cells correspond one to one.
        """
        return None

    def bounds(self, spans: Sequence[Cells]) -> tuple[Cells, Cells]:
        """Return the start and end of the needed input cells, for all combinations of output ranges."""
        shape = tuple(len(each) for each in spans)
        found = np.array([self.cells(*each) for each in _combine_spans(spans)], np.int64).reshape(*shape, 2)
        return found[..., 0], found[..., 1]

    def tokens(self, spans: Sequence[Cells]) -> Lanes | None:
        """Hash how input cells map to output cells, for all combinations of output ranges. The input ranges
        themselves are not part of the hash.
        """
        shape = tuple(len(each) for each in spans)
        hashes = []
        for each in _combine_spans(spans):
            codes = self.codes(self.cells(*each), *each)
            data = b"" if codes is None else np.ascontiguousarray(codes).tobytes()
            hashes.append(hashlib.blake2b(data, digest_size=16).digest())
        return np.frombuffer(b"".join(hashes), "<u8").astype(np.uint64).reshape(*shape, 2)


@dataclass(frozen=True)
class SameAxis(Axis):
    """An axis along which each output cell depends on the same input cell, and on a halo of cells before and
    after it.
    """

    dim: str
    size: int
    before: int = 0
    after: int = 0

    @property
    def outputs(self) -> tuple[str, ...]:  # type: ignore[override]
        # docstring inherited
        return (self.dim,)

    def cells(self, *spans: Span) -> Span:
        # docstring inherited
        ((first, end),) = spans
        return max(0, first - self.before), min(self.size, end + self.after)

    def bounds(self, spans: Sequence[Cells]) -> tuple[Cells, Cells]:
        # docstring inherited
        first, end = spans[0].T
        return np.maximum(first - self.before, 0), np.minimum(end + self.after, self.size)

    def tokens(self, spans: Sequence[Cells]) -> Lanes | None:
        # docstring inherited
        if not self.before and not self.after:
            return None
        first, end = self.bounds(spans)
        return np.stack([spans[0][:, 0] - first, end - spans[0][:, 1]], axis=-1).astype(np.uint64)


@dataclass(frozen=True)
class CoarseAxis(Axis):
    """An axis along which each output cell depends on `factor` consecutive input cells."""

    dim: str
    size: int
    factor: int

    @property
    def outputs(self) -> tuple[str, ...]:  # type: ignore[override]
        # docstring inherited
        return (self.dim,)

    def cells(self, *spans: Span) -> Span:
        # docstring inherited
        ((first, end),) = spans
        return min(first * self.factor, self.size), min(end * self.factor, self.size)

    def codes(self, cells: Span, *spans: Span) -> Cells | None:
        # docstring inherited
        return np.arange(*cells, dtype=np.int64) // self.factor - spans[0][0]

    def tokens(self, spans: Sequence[Cells]) -> Lanes | None:
        # docstring inherited
        return None


@dataclass(frozen=True)
class WholeAxis(Axis):
    """An axis that the output does not have. Every output cell depends on all cells along it."""

    size: int
    is_dropped = True

    def cells(self, *spans: Span) -> Span:
        # docstring inherited
        return 0, self.size

    def codes(self, cells: Span, *spans: Span) -> Cells | None:
        # docstring inherited
        return np.zeros(cells[1] - cells[0], np.int64)

    def tokens(self, spans: Sequence[Cells]) -> Lanes | None:
        # docstring inherited
        return None


@dataclass(frozen=True, eq=False)
class GroupAxis(Axis):
    """An axis along which each output cell depends on the input cells of one group."""

    dim: str
    groups: Cells
    """The group of each input cell; -1 for cells without a group."""
    first: Cells
    """The first cell of each group."""
    end: Cells

    @staticmethod
    def of(dim: str, groups: Cells, count: int) -> GroupAxis:
        """Create an axis from the group of each cell, by finding the range of cells that each group spans.
        Empty groups have an empty range.
        """
        cells = np.flatnonzero(groups >= 0)
        first, end = np.full(count, len(groups), np.int64), np.zeros(count, np.int64)
        np.minimum.at(first, groups[cells], cells)
        np.maximum.at(end, groups[cells], cells + 1)
        return GroupAxis(dim, groups, first, end)

    @property
    def outputs(self) -> tuple[str, ...]:  # type: ignore[override]
        # docstring inherited
        return (self.dim,)

    def cells(self, *spans: Span) -> Span:
        # docstring inherited
        ((first, end),) = spans
        low = int(self.first[first:end].min(initial=len(self.groups)))
        high = int(self.end[first:end].max(initial=0))
        return (low, high) if low < high else (0, 0)

    def bounds(self, spans: Sequence[Cells]) -> tuple[Cells, Cells]:
        # docstring inherited
        starts = spans[0][:, 0]
        if not len(starts):
            return starts, starts
        low, high = np.minimum.reduceat(self.first, starts), np.maximum.reduceat(self.end, starts)
        return np.where(low < high, low, 0), np.where(low < high, high, 0)

    def tokens(self, spans: Sequence[Cells]) -> Lanes | None:
        # docstring inherited
        if (self.groups < 0).any() or (np.diff(self.groups) < 0).any():
            return super().tokens(spans)
        # Consecutive groups are fully described by their lengths.
        lengths = np.bincount(self.groups, minlength=len(self.first)).astype(np.uint64)
        hashed = combine(hash_bytes(b"length"), np.stack([lengths, lengths], axis=-1))
        return RectangleSums(hashed).sum([spans[0][:, 0]], [spans[0][:, 1]])

    def codes(self, cells: Span, *spans: Span) -> Cells | None:
        # docstring inherited
        found = self.groups[cells[0] : cells[1]]
        return np.where((found >= spans[0][0]) & (found < spans[0][1]), found - spans[0][0], -1)


@dataclass(frozen=True, eq=False)
class LookupAxis(Axis):
    """An axis along which a table assigns an input cell to each output cell, such as the climatological mean
    of its month.
    """

    dim: str
    table: Cells
    """The input cell of each output cell; -1 if it has none."""

    @property
    def outputs(self) -> tuple[str, ...]:  # type: ignore[override]
        # docstring inherited
        return (self.dim,)

    def cells(self, *spans: Span) -> Span:
        # docstring inherited
        found = self.table[spans[0][0] : spans[0][1]]
        found = found[found >= 0]
        return (int(found.min()), int(found.max()) + 1) if len(found) else (0, 0)

    def codes(self, cells: Span, *spans: Span) -> Cells | None:
        # docstring inherited
        found = self.table[spans[0][0] : spans[0][1]]
        return np.where(found >= 0, found - cells[0], -1)


@dataclass(frozen=True, eq=False)
class WindowAxis(Axis):
    """An axis along which each output cell depends on the range of input cells that a user's function
    returns.
    """

    dim: str
    size: int
    window: UserCode

    @property
    def outputs(self) -> tuple[str, ...]:  # type: ignore[override]
        # docstring inherited
        return (self.dim,)

    def cells(self, *spans: Span) -> Span:
        # docstring inherited
        ((first, end),) = spans
        try:
            found = self.window.load()(slice(first, end))
        except (Exception, SystemExit) as error:
            if isinstance(error, IcechunkError):
                raise
            raise _make_error(
                f"{self.window.text} raised {type(error).__name__} for {self.dim} {first}:{end}: {error}"
            ) from error
        if not isinstance(found, slice) or found.step not in (None, 1):
            raise _make_error(
                f"{self.window.text} must return a slice without a step for {self.dim}, not {found!r}"
            )
        low, high, _ = found.indices(self.size)
        return low, max(low, high)


def _combine_spans(spans: Sequence[Cells]) -> list[tuple[Span, ...]]:
    found: list[tuple[Span, ...]] = [()]
    for each in spans:
        found = [(*before, (first, end)) for before in found for first, end in each.tolist()]
    return found


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_COMMIT_CONFIGURATION)
