"""Columns of variable-length values: byte strings (`Blobs`) and lists (`Ragged`).

Both store their content in one flat array, so that rows are selected, joined and compared without a Python
object per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError, InvalidInputError

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

T = TypeVar("T")

_LINE_FEED = ord("\n")

BLOCK = 1 << 16
"""The number of rows to process at a time, so that temporary columns fit into the processor cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Blobs:
    """A column of byte strings, stored as ranges of one buffer. Ranges may be shared, may overlap and may
    leave gaps.
    """

    buffer: U8
    starts: I64
    lengths: I64
    place: str = ""
    """The name of the file that the bytes come from, for error messages."""

    @staticmethod
    def from_list(items: Sequence[bytes]) -> Blobs:
        """Create a column from a list of byte strings."""
        lengths = np.fromiter(map(len, items), np.int64, len(items))
        return Blobs(np.frombuffer(b"".join(items), np.uint8), lengths.cumsum() - lengths, lengths)

    @staticmethod
    def from_texts(items: Sequence[str]) -> Blobs:
        """Create a column of UTF-8 byte strings from texts; raise InvalidInputError if a text cannot be
        encoded.
        """
        joined = "".join(items)
        if not joined.isascii():
            return Blobs.from_list([encode_text(item) for item in items])
        lengths = np.fromiter(map(len, items), np.int64, len(items))
        return Blobs(np.frombuffer(joined.encode(), np.uint8), lengths.cumsum() - lengths, lengths)

    @staticmethod
    def empty(count: int) -> Blobs:
        """Create a column of `count` empty byte strings."""
        nothing = make_constant(0, count, np.int64)
        return Blobs(np.zeros(0, np.uint8), nothing, nothing)

    @staticmethod
    def concat(parts: Sequence[Blobs]) -> Blobs:
        """Concatenate columns of byte strings. Columns with the same buffer keep sharing it."""
        if len(parts) == 1:
            return parts[0]
        if len({id(part.buffer) for part in parts if part.buffer.size}) > 1:
            parts = [part.compact() for part in parts]
            buffer = np.concatenate([part.buffer for part in parts])
            sizes = np.cumsum([0] + [len(part.buffer) for part in parts])
            starts = np.concatenate([part.starts + size for part, size in zip(parts, sizes, strict=False)])
        else:
            buffer = next((part.buffer for part in parts if part.buffer.size), parts[0].buffer)
            starts = concat([part.starts for part in parts])
        place = next((part.place for part in parts if part.place), "")
        return Blobs(buffer, starts, concat([part.lengths for part in parts]), place)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> bytes:
        start = int(self.starts[row])
        return self.buffer[start : start + int(self.lengths[row])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blobs):
            return NotImplemented
        if not np.array_equal(self.lengths, other.lengths):
            return False
        return bool(np.array_equal(self.compact().buffer, other.compact().buffer))

    __hash__ = None  # type: ignore[assignment]

    @property
    def nbytes(self) -> int:
        """The memory that the column uses, in bytes, including its whole buffer."""
        return count_held_bytes(self.buffer) + count_held_bytes(self.starts) + count_held_bytes(self.lengths)

    def take(self, rows: Any) -> Blobs:
        """Select rows by a slice, a mask or indices. The result shares the buffer."""
        return Blobs(self.buffer, take(self.starts, rows), take(self.lengths, rows), self.place)

    def compact(self) -> Blobs:
        """Copy the byte strings to a new buffer without unused bytes."""
        ends = self.lengths.cumsum()
        starts = ends - self.lengths
        total = int(ends[-1]) if len(ends) else 0
        if not total:
            return Blobs.empty(len(self))
        if total == len(self.buffer) and np.array_equal(starts, self.starts):
            return self
        buffer = np.empty(total, np.uint8)
        copy_ranges(self.buffer, self.starts, buffer, starts, self.lengths)
        return Blobs(buffer, starts, self.lengths, self.place)

    def tolist(self) -> list[bytes]:
        """Convert the column to a list of `bytes` objects."""
        packed = self.compact()
        data = packed.buffer.tobytes()
        ends = (packed.starts + packed.lengths).tolist()
        return [data[start:end] for start, end in zip(packed.starts.tolist(), ends, strict=True)]

    def texts(self, place: str = "text") -> list[str]:
        """Decode the column as UTF-8 texts; raise FormatError, with `place` and the row, if a text is
        invalid.
        """
        found: list[str] = []
        for start in range(0, len(self), BLOCK):
            block = self.take(slice(start, start + BLOCK))
            lines = block._decode_rows()
            if lines is None:
                rows = enumerate(block.tolist(), start)
                lines = [decode_text(data, f"{place}, row {row}") for row, data in rows]
            found += lines
        return found

    def _decode_rows(self) -> list[str] | None:
        """Decode all rows as one large text and split it; return None if a row contains a line feed or is not
        UTF-8.
        """
        count = len(self)
        spaced = np.full(int(self.lengths.sum()) + count, _LINE_FEED, np.uint8)
        targets = self.lengths.cumsum() - self.lengths + np.arange(count)
        copy_ranges(self.buffer, self.starts, spaced, targets, self.lengths)
        if np.count_nonzero(spaced == _LINE_FEED) != count:
            return None
        try:
            lines = str(spaced.data, "utf-8").split("\n")
        except UnicodeDecodeError:
            return None
        del lines[-1]
        return lines


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """A dictionary-encoded column of byte strings: the distinct strings, and a code per row."""

    codes: NDArray[Any]
    blobs: Blobs

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: Any) -> Shared:
        """Select rows of the column by a slice, a mask or indices."""
        return Shared(take(self.codes, rows), self.blobs)

    @staticmethod
    def concat(parts: Sequence[Shared]) -> Shared:
        """Concatenate dictionary-encoded columns of byte strings."""
        before = to_splits(np.array([len(part.blobs) for part in parts]))
        codes = [part.codes + shift for part, shift in zip(parts, before, strict=False)]
        return Shared(np.concatenate(codes), Blobs.concat([part.blobs for part in parts]))


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A column of lists: a flat column of items, and the boundaries of the lists in it."""

    items: Any
    """A numpy array, `Blobs` or another column with `take`; one row per item."""
    splits: I64
    """List `i` is `items[splits[i]:splits[i + 1]]`."""

    def __len__(self) -> int:
        return len(self.splits) - 1

    @property
    def lengths(self) -> I64:
        """The length of each list."""
        lengths: I64 = self.splits[1:] - self.splits[:-1]
        return lengths

    def take(self, rows: Any) -> Ragged:
        """Select lists by a slice, a mask or indices, in the given order."""
        starts = self.splits[:-1][rows]
        lengths = self.splits[1:][rows] - starts
        return Ragged(take(self.items, expand_ranges(starts, lengths)), to_splits(lengths))

    def rectangle(self, width: int | None = None) -> NDArray[Any] | None:
        """Return the lists as one (lists, width) array; None if their lengths differ."""
        lengths = self.lengths
        if width is None:
            width = int(lengths[0]) if len(lengths) else 0
        if (lengths != width).any():
            return None
        items: NDArray[Any] = self.items
        return items.reshape(len(self), width, *items.shape[1:])


@dataclass(frozen=True, slots=True, eq=False)
class Rectangles:
    """A column of number vectors whose width rarely changes between rows, stored as consecutive (rows, width)
    arrays.
    """

    parts: tuple[NDArray[Any], ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))


class RowBlocks(Protocol):
    """A column of number vectors of equal width that are generated block by block."""

    @property
    def rank(self) -> int:
        """The width of the vectors."""
        ...

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the vectors as consecutive (rows, width) arrays."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StreamedLists:
    """A column of lists of number vectors that are generated while they are written."""

    items: Sequence[RowBlocks]
    splits: I64
    """List `i` consists of `items[splits[i]:splits[i + 1]]`."""


def make_constant(value: Any, count: int, dtype: Any, width: int | None = None) -> NDArray[Any]:
    """Create a read-only column that has the same value in all rows and takes no memory."""
    shape = (count,) if width is None else (count, width)
    column: NDArray[Any] = np.ndarray(shape, dtype, np.array(value, dtype), strides=(0,) * len(shape))
    column.flags.writeable = False
    return column


def is_constant(column: NDArray[Any]) -> bool:
    """Return True if a column was created by `make_constant`."""
    return not any(column.strides) and len(column) > 1


def count_held_bytes(column: NDArray[Any]) -> int:
    """Return the memory that a column of any type uses, in bytes."""
    return column.itemsize if is_constant(column) else column.nbytes


def count_rows(rows: Any, count: int) -> int:
    """Return how many of `count` rows a slice, a mask or an array of indices selects."""
    if isinstance(rows, slice):
        return len(range(*rows.indices(count)))
    return int(np.count_nonzero(rows)) if np.asarray(rows).dtype == np.bool_ else len(rows)


def take(column: Any, rows: Any) -> Any:
    """Select rows of a column of numbers, byte strings or lists."""
    if not isinstance(column, np.ndarray):
        return column.take(rows)
    if is_constant(column):
        return np.broadcast_to(column[0], (count_rows(rows, len(column)), *column.shape[1:]))
    return column[rows]


def concat(parts: Sequence[Any]) -> Any:
    """Concatenate columns of the same type: numbers, byte strings or lists."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, np.ndarray):
        if all(is_constant(part) and (part[0] == first[0]).all() for part in parts):
            return np.broadcast_to(first[0], (sum(map(len, parts)), *first.shape[1:]))
        return np.concatenate(parts)
    if isinstance(first, Ragged):
        before, borders = 0, [first.splits[:1]]
        for part in parts:
            borders.append(part.splits[1:] + before)
            before += int(part.splits[-1])
        return Ragged(concat([part.items for part in parts]), np.concatenate(borders))
    return type(first).concat(parts)


def put_rows(
    column: NDArray[Any], rows: Sequence[int], over: Sequence[bool], new: NDArray[Any]
) -> NDArray[Any]:
    """Insert a few rows into a column, each before an existing row or in its place. `rows` must be
    ascending.
    """
    parts, start = [], 0
    for each, (row, replaces) in enumerate(zip(rows, over, strict=True)):
        parts += [column[start:row], new[each : each + 1]]
        start = row + replaces
    return np.concatenate([*parts, column[start:]])


def to_splits(lengths: NDArray[Any]) -> I64:
    """Convert list lengths to boundaries in a flat column of items."""
    splits = np.empty(len(lengths) + 1, np.int64)
    splits[0] = 0
    lengths.cumsum(dtype=np.int64, out=splits[1:])
    return splits


def expand_ranges(starts: I64, lengths: I64) -> I64:
    """Expand many ranges to one array of all their indices."""
    total = int(lengths.sum())
    borders = lengths.cumsum() - lengths
    indices: I64 = np.arange(total, dtype=np.int64) + np.repeat(starts - borders, lengths)
    return indices


def copy_ranges(source: U8, starts: I64, target: U8, target_starts: I64, lengths: I64) -> None:
    """Copy many byte ranges from one buffer to another. The ranges must be inside both buffers.

    Ranges of equal length are copied together as fixed-size items. Paths and URLs have few distinct lengths,
    so a few large copies suffice.
    """
    if not len(lengths):
        return
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest:
        _copy_equal(source, starts, target, target_starts, longest)
        return
    narrow = lengths.astype(np.uint16) if longest < 1 << 16 else lengths
    order = narrow.argsort(kind="stable")  # a radix sort for uint16
    ordered = lengths[order]
    borders = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, borders):
        _copy_equal(source, starts[rows], target, target_starts[rows], int(lengths[rows[0]]))


def _copy_equal(source: U8, starts: I64, target: U8, target_starts: I64, length: int) -> None:
    if length == 0:
        return
    if len(starts) == 1:
        start, at = int(starts[0]), int(target_starts[0])
        target[at : at + length] = source[start : start + length]
        return
    view_windows(target, length)[target_starts] = view_windows(source, length)[starts]


def view_windows(buffer: U8, size: int) -> NDArray[np.void]:
    """View a buffer as overlapping items of `size` bytes, to read and write numbers at any byte offset."""
    count = max(len(buffer) - size + 1, 0)
    return np.ndarray((count,), f"V{size}", buffer.data, 0, (1,))


def encode_text(text: str) -> bytes:
    """Encode one text as UTF-8; raise InvalidInputError if it contains lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        shown = text[max(error.start - 20, 0) : error.start + 20]
        raise InvalidInputError(
            f"text with lone surrogates cannot be encoded as UTF-8: {shown!r}", kind=ErrorKind.BAD_METADATA
        ) from None


def decode_text(data: bytes, place: str) -> str:
    """Decode one UTF-8 text; raise FormatError if the bytes are invalid."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{place}: not UTF-8 at byte {error.start} of {len(data)}", kind=ErrorKind.DESERIALIZATION
        ) from None
