"""The registry of parsers: file formats, how they are recognised, and the module that parses each.

Each format has a module or a folder in this package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from icefloe.errors import Hint
from icefloe.virtual.errors import CannotVirtualizeError
from icefloe.virtual.sources import SourceFile

if TYPE_CHECKING:
    from icefloe.virtual.dataset import VirtualDataset


Format: TypeAlias = Literal[
    "hdf5", "netcdf3", "grib", "tiff", "zarr", "kerchunk", "fits", "hdf4", "dmrpp", "icechunk"
]
Parser: TypeAlias = Callable[[SourceFile, "ParseOptions"], "VirtualDataset"]

_PARSERS: Final = {
    "netcdf3": ("netcdf3", "parse_netcdf3"),
    "grib": ("grib.file", "parse_grib"),
    "zarr": ("zarr.stores", "parse_zarr_zip"),
    "tiff": ("tiff.file", "parse_tiff"),
}
"""Module and function of each parser, which are imported when needed: most require an optional library."""
_SIGNATURES: Final[dict[bytes, Format]] = {
    b"CDF\x01": "netcdf3",
    b"CDF\x02": "netcdf3",
    b"CDF\x05": "netcdf3",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
    b"GRIB": "grib",
    b"\x0e\x03\x13\x01": "hdf4",
}
"""First four bytes of files that identify their format with certainty."""
_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_USERBLOCKS: Final = 16
"""Number of offsets (512, 1024, 2048, ...) at which the signature may follow a user block."""
LOADED_BYTES: Final = 1 << 24
"""Coordinates larger than this are not loaded unless they are selected by name."""
ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of a zip file, and of an empty one."""
INLINE_BYTES: Final = 1 << 24
"""Largest size of values that are stored inline because references cannot describe their encoding."""


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """The options of all parsers: which variables to parse, and which to load."""

    group: str | None = None
    """Path of the group to parse; None for the whole file."""
    drop_variables: frozenset[str] = frozenset()
    """Names or paths of variables to exclude."""
    loadable_variables: frozenset[str] | None = None
    """Names or paths of variables to load; None for dimension coordinates."""
    contiguous_chunk_bytes: int | None = None
    """Largest chunk of a contiguous variable; None for one chunk."""
    version: str | None = None
    """The version of an Icechunk repository (see `resolve_version`); None for the branch main."""
    grib_parts: bool = False
    """True to make a group of each part of a GRIB file, even if all parts fit into one dataset."""

    def is_excluded(self, path: str) -> bool:
        """Return whether the options of a parser exclude a variable."""
        return not self.drop_variables.isdisjoint((path, path.rpartition("/")[2]))

    def should_load(self, path: str, dimensions: Sequence[str], size_bytes: int) -> bool:
        """Return whether a parser should load the values of a variable."""
        name = path.rpartition("/")[2]
        if self.loadable_variables is not None:
            return not self.loadable_variables.isdisjoint((path, name))
        return tuple(dimensions) == (name,) and size_bytes <= LOADED_BYTES

    def choose_contiguous_chunks(self, shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
        """Choose the chunk shape in which a parser presents a contiguous variable.

        Each chunk must be contiguous as well, and all must have the same size, because Zarr always reads
        whole chunks, even at the edge of an array.
        """
        chunks = [max(size, 1) for size in shape]
        limit = self.contiguous_chunk_bytes
        if limit is None:
            return tuple(chunks)
        for axis, size in enumerate(chunks):
            row_bytes = itemsize * math.prod(chunks[axis + 1 :])
            if row_bytes * size <= limit:
                break
            most = max(limit // row_bytes, 1)
            chunks[axis] = next(count for count in range(min(most, size), 0, -1) if size % count == 0)
            if chunks[axis] > 1:
                break
        return tuple(chunks)


def find_parser(format: Format) -> Parser:
    """Find the parser of a file format in the registry, and import it."""
    module, function = _PARSERS[format]
    parser: Parser = getattr(import_module(f"icefloe.virtual.parsers.{module}"), function)
    return parser


def recognize(file: SourceFile) -> Format:
    """Recognize the format of a file by its first bytes, to choose its parser.

    Raises
    ------
    CannotVirtualizeError
        If the file is empty, or its format is unknown.
    """
    head = file.read(0, 4096)
    if head[:4] in _SIGNATURES:
        return _SIGNATURES[head[:4]]
    if head.startswith(b"SIMPLE  = "):
        return "fits"
    if head.startswith(_HDF5) or _has_userblock(file):
        return "hdf5"
    if b"GRIB" in head:  # some files have a line of text before the first message
        return "grib"
    if head[:4] in ZIP_MAGIC:
        return "zarr"
    if b"http://xml.opendap.org/dap/dmrpp" in head:
        return "dmrpp"
    if head[:1] == b"{":
        return "kerchunk"
    if not head:
        raise CannotVirtualizeError(f"{file.location} is empty")
    raise CannotVirtualizeError(
        f"{file.location} begins with {head[:8]!r}, which matches none of {', '.join(get_args(Format))}"
    ).with_hint(Hint("pass the format with {format}", format=None))


def _has_userblock(file: SourceFile) -> bool:
    """Check whether the signature of HDF5 follows a user block."""
    starts = [512 << power for power in range(_USERBLOCKS)]
    return any(file.peek(start, start + 8) == _HDF5 for start in starts if start < file.size_bytes)
