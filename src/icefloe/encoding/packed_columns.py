"""Serialize columns for transfer between processes, as one zstd frame with a small header and all columns.

This is not a file format. Both ends must run the same release, which a version number at the start ensures.
The bytes are checked as carefully as those of a file and, unlike in a pickle, nothing in them is ever
executed.

A column of numbers uses as few bytes per row as its largest number needs, and a constant is written once.
Mostly ascending numbers are written as steps, and mostly equal steps as runs. Then zstd compresses
everything.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NoReturn

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.encoding import msgpack
from icefloe.encoding.columns import U8, Blobs, is_constant, make_constant
from icefloe.encoding.envelope import open_frames
from icefloe.errors import ErrorKind, FormatError

_CONSTANT: Final = 0
_PLAIN: Final = 1
_STEPS: Final = 2
_RUNS: Final = 3
_HEAD: Final = struct.Struct("<I")
_SIZES: Final = (1, 2, 4, 8)
_LEVEL: Final = 1
"""The zstd level. Higher levels take several times as much CPU time to save a tenth of the bytes."""
_LONG_RUN: Final = 8
"""The average length of runs above which equal steps are written as runs."""
_BLOCK: Final = 1 << 15
_MAX_RUN_ROWS: Final = 1 << 28
"""The maximum number of rows in runs, so that a few damaged bytes cannot cause a huge allocation."""


class ColumnPacker:
    """A serializer of columns for another process. Each method returns a description of the column for the
    header.
    """

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self._size = 0

    def numbers(self, column: NDArray[Any], *, ascending: bool = False) -> list[int]:
        """Pack a column of unsigned integers for transfer to another process."""
        count = len(column)
        if not count or is_constant(column) or (column[0] == column[-1] and (column == column[0]).all()):
            value = np.asarray(column[:1], np.uint64)
            return [_CONSTANT, 8, count, self._put(value), 0]
        size = _measure_item_size(column)
        narrow = column.astype(f"<u{size}", copy=False)
        if not ascending:
            return [_PLAIN, size, count, self._put(np.ascontiguousarray(narrow)), 0]
        at = self._put(narrow[:1])
        ends = _find_ends_of_runs(narrow)
        if ends is not None:
            self._put(narrow[ends + 1] - narrow[ends])
            lengths = ends.astype("<u4")
            lengths[1:] -= lengths[:-1].copy()
            lengths[0] += 1
            self._put(lengths)
            return [_RUNS, size, count, at, len(ends)]
        steps = narrow[1:] - narrow[:-1]  # modulo the item size, undone by a cumulative sum of that size
        step_size = _measure_item_size(steps)
        self._put(steps.astype(f"<u{step_size}"))
        return [_STEPS, size, count, at, step_size]

    def raw(self, data: NDArray[np.uint8]) -> list[int]:
        """Pack raw bytes for transfer to another process, next to the packed columns."""
        return [data.size, self._put(np.ascontiguousarray(data))]

    def blobs(self, blobs: Blobs) -> list[list[int]]:
        """Pack a column of byte strings for transfer to another process."""
        packed = blobs.compact() if len(blobs.buffer) else Blobs.empty(len(blobs))
        return [self.numbers(packed.lengths), self.raw(packed.buffer)]

    def _put(self, column: NDArray[Any]) -> int:
        at = self._size
        self._parts.append(column.reshape(-1).view(np.uint8).data)
        self._size += column.nbytes
        return at

    def pack(self, magic: bytes, head: object) -> bytes:
        """Return all packed columns as bytes, preceded by a header with their descriptions."""
        described = msgpack.pack(head)
        payload = b"".join((_HEAD.pack(len(described)), described, *self._parts))
        return magic + zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(payload)


def _measure_item_size(column: NDArray[Any]) -> int:
    """Return the number of bytes that the largest number needs."""
    largest = int(column.max())
    return next(size for size in _SIZES if largest < 1 << 8 * size)


def _find_ends_of_runs(column: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return the index of the last step of each run of equal steps; None if there are too many runs or
    rows.
    """
    count = len(column) - 1
    found, left = [], count // _LONG_RUN
    if count >= _MAX_RUN_ROWS:
        return None
    for start in range(0, count - 1, _BLOCK):  # blocks that fit into the cache of the processor
        part = column[start : start + _BLOCK + 2]
        steps = part[1:] - part[:-1]
        ends = np.flatnonzero(steps[1:] != steps[:-1])
        left -= len(ends)
        if left <= 0:
            return None
        found.append(ends + start)
    return np.concatenate([*found, [count - 1]])


class ColumnUnpacker:
    """A reader of packed columns from another process. Error messages mention `place`."""

    def __init__(self, data: bytes | memoryview, magic: bytes, place: str) -> None:
        self.place = place
        if bytes(data[: len(magic)]) != magic:
            self.fail("was created by another release of icefloe or is damaged; use the same release")
        payload = np.frombuffer(open_frames(memoryview(data)[len(magic) :], place), np.uint8)
        if len(payload) < _HEAD.size:
            self.fail(f"has only {len(payload)} bytes, too few for its head")
        (size,) = _HEAD.unpack(payload[: _HEAD.size].tobytes())
        if size > len(payload) - _HEAD.size:
            self.fail(f"declares a head of {size} bytes, which is longer than the data")
        self.head = msgpack.unpack(payload[_HEAD.size : _HEAD.size + size].tobytes())
        self._columns: U8 = payload[_HEAD.size + size :]

    def fail(self, problem: str) -> NoReturn:
        """Raise FormatError for damaged packed columns, with the name of their origin."""
        raise FormatError(f"{self.place}: {problem}", kind=ErrorKind.DESERIALIZATION)

    def numbers(self, note: object, dtype: Any, count: int) -> NDArray[Any]:
        """Unpack a column of `count` numbers."""
        way, size, rows, at, last = self.integers(note, 5)
        if rows != count:
            self.fail(f"has a column of {rows} rows, expected {count}")
        if way not in (_CONSTANT, _PLAIN, _STEPS, _RUNS) or size not in _SIZES:
            self.fail(f"has a column with the unknown encoding {way} of {size} bytes")
        stored = rows if way == _PLAIN else min(rows, 1)
        column = self._get_bytes(at, stored * size).view(f"<u{size}")
        if way in (_STEPS, _RUNS):
            read = self._unpack_steps if way == _STEPS else self._unpack_runs
            column = _rebuild_numbers(column, read(at + size, last, size, rows))
        most = np.iinfo(dtype).max
        if most < (1 << 8 * size) - 1 and len(column) and int(column.max()) > most:
            self.fail(f"has a number that {np.dtype(dtype).name} does not hold")
        if way == _CONSTANT:
            return make_constant(column[0] if stored else 0, rows, dtype)
        return column.astype(dtype, copy=way == _PLAIN)

    def _unpack_steps(self, at: int, step_size: int, _: int, rows: int) -> NDArray[Any]:
        if not rows or step_size not in _SIZES:
            self.fail(f"contains {rows} rows in steps of {step_size} bytes")
        return self._get_bytes(at, (rows - 1) * step_size).view(f"<u{step_size}")

    def _unpack_runs(self, at: int, runs: int, size: int, rows: int) -> NDArray[Any]:
        steps = self._get_bytes(at, runs * size).view(f"<u{size}")
        counts = self._get_bytes(at + runs * size, runs * 4).view("<u4").astype(np.int64)
        if not 0 < rows <= _MAX_RUN_ROWS or int(counts.sum()) != rows - 1:
            self.fail(f"contains {rows} rows, but {runs} runs with a different total length")
        return steps.repeat(counts)

    def raw(self, note: object) -> U8:
        """Unpack raw bytes that were packed next to the columns."""
        size, at = self.integers(note, 2)
        return self._get_bytes(at, size)

    def blobs(self, note: object, most: int) -> Blobs:
        """Unpack a column of at most `most` byte strings."""
        lengths_note, data_note = self.items(note, 2)
        count = self.integers(lengths_note, 5)[2]
        if count > most:
            self.fail(f"contains {count} byte strings, expected at most {most}")
        lengths, data = self.numbers(lengths_note, np.int64, count), self.raw(data_note)
        if not len(data) and is_constant(lengths) and not lengths[0]:
            return Blobs.empty(count)
        ends = lengths.cumsum()
        total = int(ends[-1]) if count else 0
        if total != len(data) or int(lengths.max(initial=0)) > total:
            self.fail(f"contains byte strings with {total} bytes, but {len(data)} bytes of data")
        return Blobs(data, ends - lengths, lengths, self.place)

    def items(self, value: object, count: int | None = None) -> list[Any]:
        """Check that a value from the header of packed columns is a list of `count` items; raise FormatError
        otherwise.
        """
        if not isinstance(value, list) or (count is not None and len(value) != count):
            self.fail(f"contains {value!r:.60}, expected a list")
        return value

    def integers(self, value: object, count: int | None = None) -> list[int]:
        """Check that a value from the header of packed columns is a list of non-negative integers, and return
        it.
        """
        numbers = self.items(value, count)
        if not all(type(number) is int and number >= 0 for number in numbers):
            self.fail(f"contains {numbers!r:.60}, expected numbers")
        return numbers

    def _get_bytes(self, at: int, size: int) -> U8:
        if at + size > len(self._columns):
            self.fail(f"contains a column that ends at byte {at + size} of {len(self._columns)}")
        return self._columns[at : at + size]


def _rebuild_numbers(first: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
    """Restore a column from its first number and the steps between consecutive numbers."""
    column = np.empty(len(steps) + 1, first.dtype)
    column[0] = first[0]
    with np.errstate(over="ignore"):
        column[1:] = steps
        return column.cumsum(dtype=column.dtype, out=column)
