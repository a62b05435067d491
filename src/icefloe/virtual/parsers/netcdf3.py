"""Parse the headers of NetCDF-3 files: classic, 64-bit offset and CDF-5.

Values are big-endian and uncompressed. Variables without the record dimension are contiguous. Record
variables are contiguous within each record, and the records of all variables are interleaved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.errors import CannotVirtualizeError
from icefloe.virtual.parsers import ParseOptions
from icefloe.virtual.sources import SourceFile, check_ends
from icefloe.virtual.variables import (
    ChunkReferences,
    VirtualVariable,
    make_contiguous_chunks,
    make_loaded_variable,
)
from icefloe.virtual.zarr_metadata import configure_bytes, encode_attributes, to_json_fill_value

_TYPES: Final = {
    1: ">i1",
    2: "S1",
    3: ">i2",
    4: ">i4",
    5: ">f4",
    6: ">f8",
    7: ">u1",
    8: ">u2",
    9: ">u4",
    10: ">i8",
    11: ">u8",
}
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
_STREAMING: Final = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""The header's record count while a file is still being written."""


@dataclass(frozen=True, slots=True)
class _Declared:
    """A variable declaration in a NetCDF-3 header."""

    name: str
    dimensions: tuple[int, ...]
    attributes: dict[str, Any]
    dtype: np.dtype[Any]
    begin: int


def parse_netcdf3(file: SourceFile, options: ParseOptions) -> VirtualDataset:
    """Parse a NetCDF-3 file (classic, 64-bit offset or CDF-5). All chunks are in source 0."""
    if options.group not in (None, "", "/"):
        raise CannotVirtualizeError(f"{file.location} has no group {options.group!r}: NetCDF-3 has no groups")
    header = _Header(file)
    variables = {
        each.name: _parse_variable(file, header, each, options)
        for each in header.variables
        if not options.is_excluded(each.name)
    }
    return VirtualDataset(variables, (), encode_attributes(header.attributes))


class _Header:
    """The parsed header of a NetCDF-3 file."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._at = 4
        version = file.read(3, 4)
        self._count: Callable[[], int] = self._u64 if version == b"\x05" else self._u32
        offset = self._u32 if version == b"\x01" else self._u64
        self._numrecs = self._count()
        self.dimensions: list[tuple[str, int]] = self._read_list(
            _DIMENSIONS, lambda: (self._read_name(), self._count())
        )
        self.attributes = dict(self._read_list(_ATTRIBUTES, self._read_attribute))
        self.variables: list[_Declared] = self._read_list(_VARIABLES, lambda: self._read_variable(offset))
        self.record_dimension = next(
            (number for number, (_, size) in enumerate(self.dimensions) if size == 0), None
        )
        for variable in self.variables:
            if any(number >= len(self.dimensions) for number in variable.dimensions):
                raise self._make_error(f"{variable.name} has an undeclared dimension")
        self.record_bytes = self._compute_record_bytes()
        self.record_count = self._count_records()

    def is_record(self, variable: _Declared) -> bool:
        """Return True if a variable has the record dimension."""
        return bool(variable.dimensions) and variable.dimensions[0] == self.record_dimension

    def slab_bytes(self, variable: _Declared) -> int:
        """Return the unpadded size in bytes of a variable, or of one of its records."""
        numbers = variable.dimensions[1:] if self.is_record(variable) else variable.dimensions
        return math.prod(self.dimensions[number][1] for number in numbers) * variable.dtype.itemsize

    def _compute_record_bytes(self) -> int:
        """Return the distance in bytes between records. A sole record variable has no padding between
        records.
        """
        sizes = [self.slab_bytes(variable) for variable in self.variables if self.is_record(variable)]
        return sizes[0] if len(sizes) == 1 else sum(-(-size // 4) * 4 for size in sizes)

    def _count_records(self) -> int:
        begins = [each.begin for each in self.variables if self.is_record(each)]
        if self._numrecs not in _STREAMING or not begins or not self.record_bytes:
            return 0 if self._numrecs in _STREAMING else self._numrecs
        return max(self._file.size_bytes - min(begins), 0) // self.record_bytes

    def _read_list(self, tag: int, item: Callable[[], Any]) -> list[Any]:
        found, count = self._u32(), self._count()
        if found not in (0, tag) or (found == 0 and count):
            raise self._make_error(f"found tag {found} at byte {self._at} of the header, expected {tag}")
        if count > self._file.size_bytes:
            raise self._make_error(
                f"the header has a list of {count} items, which is more than the file can contain"
            )
        return [item() for _ in range(count)]

    def _read_attribute(self) -> tuple[str, Any]:
        name, dtype, count = self._read_name(), self._read_type(), self._count()
        data = self._take_padded(count * dtype.itemsize)
        if dtype.kind == "S":  # C programs often store the terminating null byte, which readers do not show
            return name, data if name == "_FillValue" else data.replace(b"\0", b"")
        return name, np.frombuffer(data, dtype)

    def _read_variable(self, offset: Callable[[], int]) -> _Declared:
        name, rank = self._read_name(), self._count()
        if rank > len(self.dimensions) * 8 + 8:
            raise self._make_error(f"{name} has {rank} dimensions")
        dimensions = tuple(self._count() for _ in range(rank))
        attributes = dict(self._read_list(_ATTRIBUTES, self._read_attribute))
        dtype = self._read_type()
        self._count()  # skip the size, which is wrong for large variables and follows from the shape
        return _Declared(name, dimensions, attributes, dtype, offset())

    def _read_name(self) -> str:
        data = self._take_padded(self._count())
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.decode("latin-1")

    def _read_type(self) -> np.dtype[Any]:
        code = self._u32()
        if code not in _TYPES:
            raise self._make_error(f"unknown data type {code} at byte {self._at} of the header")
        return np.dtype(_TYPES[code])

    def _take_padded(self, size: int) -> bytes:
        data = self._take(size)
        self._at += -size % 4
        return data

    def _u32(self) -> int:
        return int.from_bytes(self._take(4))

    def _u64(self) -> int:
        return int.from_bytes(self._take(8))

    def _take(self, size: int) -> bytes:
        if size > self._file.size_bytes:
            raise self._make_error(
                f"the header needs {size} bytes at byte {self._at}, which is beyond the end of the file"
            )
        data = self._file.read(self._at, self._at + size)
        if len(data) < size:
            raise self._make_error("the file ends inside its header")
        self._at += size
        return data

    def _make_error(self, what: str) -> CannotVirtualizeError:
        return CannotVirtualizeError(f"{self._file.location} is not a valid NetCDF-3 file: {what}")


def _parse_variable(
    file: SourceFile, header: _Header, declared: _Declared, options: ParseOptions
) -> VirtualVariable:
    dtype, begin, size = declared.dtype, declared.begin, header.slab_bytes(declared)
    given = [header.dimensions[number][0] for number in declared.dimensions]
    names = tuple(
        name if name not in given[:axis] else f"{name}_{axis + 1}" for axis, name in enumerate(given)
    )
    sizes = tuple(header.dimensions[number][1] for number in declared.dimensions)
    is_record = header.is_record(declared)
    runs, step = (header.record_count, header.record_bytes) if is_record else (1, size)
    shape: tuple[int, ...] = (runs, *sizes[1:]) if is_record else sizes
    if runs and size:
        check_ends(file, declared.name, begin + (runs - 1) * step, size)
    attributes = encode_attributes(declared.attributes, dtype)
    if options.should_load(declared.name, names, math.prod(shape) * dtype.itemsize):
        if step == size:
            data = file.read(begin, begin + runs * size)
        else:
            starts = (begin + step * number for number in range(runs))
            data = b"".join(file.read(start, start + size) for start in starts)
        return make_loaded_variable(names, np.frombuffer(data, dtype).reshape(shape), attributes)
    if is_record:
        chunk_shape = (1, *(max(size, 1) for size in shape[1:]))
        count = runs if size else 0
        coords = np.zeros((count, len(shape)), np.uint32)
        coords[:, 0] = np.arange(count, dtype=np.uint32)
        offsets = begin + step * np.arange(count, dtype=np.uint64)
        chunks = ChunkReferences.of(coords, offsets, np.full(count, size, np.uint64))
    else:
        chunk_shape = options.choose_contiguous_chunks(shape, dtype.itemsize)
        chunks = make_contiguous_chunks(begin, shape, chunk_shape, dtype.itemsize)
    return VirtualVariable(
        names,
        shape,
        dtype.newbyteorder("="),
        chunk_shape,
        (configure_bytes(dtype),),
        to_json_fill_value(None, dtype),
        attributes,
        chunks,
    )
