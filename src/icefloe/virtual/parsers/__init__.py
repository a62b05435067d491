"""The parser registry: supported file formats, how each is detected, and which module parses it.

Each format has a module or a subpackage in this package.
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
"""The module and function of each parser, imported on demand because most need optional packages."""
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
"""File signatures of four bytes, for formats that the first bytes identify unambiguously."""
_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_USERBLOCKS: Final = 16
"""The number of offsets (512, 1024, 2048, ...) to search for an HDF5 signature after a user block."""
LOADED_BYTES: Final = 1 << 24
"""The size limit in bytes for loading coordinates that are not selected by name."""
ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
"""The signatures of a zip file and of an empty zip file."""
INLINE_BYTES: Final = 1 << 24
"""The size limit in bytes for values that are stored inline because references cannot describe their
encoding.
"""


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """Options that all parsers share: which variables to parse, and which to load."""

    group: str | None = None
    """The path of the group to parse. None parses the whole file."""
    drop_variables: frozenset[str] = frozenset()
    """Names or paths of variables to exclude."""
    loadable_variables: frozenset[str] | None = None
    """Names or paths of variables to load. None loads dimension coordinates."""
    contiguous_chunk_bytes: int | None = None
    """The maximum chunk size in bytes for contiguous variables. None makes each a single chunk."""
    version: str | None = None
    """The version of an Icechunk repository (see `resolve_version`). None selects the branch main."""
    grib_parts: bool = False
    """True to put each part of a GRIB file in its own group, even if all parts fit into one dataset."""

    def is_excluded(self, path: str) -> bool:
        """Return True if the parser options exclude a variable."""
        return not self.drop_variables.isdisjoint((path, path.rpartition("/")[2]))

    def should_load(self, path: str, dimensions: Sequence[str], size_bytes: int) -> bool:
        """Return True if the parser should load the values of a variable."""
        name = path.rpartition("/")[2]
        if self.loadable_variables is not None:
            return not self.loadable_variables.isdisjoint((path, name))
        return tuple(dimensions) == (name,) and size_bytes <= LOADED_BYTES

    def choose_contiguous_chunks(self, shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
        """Choose a chunk shape for a variable that is contiguous in its file.

        Each chunk must also be contiguous, and all chunks must have the same size, because Zarr always reads
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
    """Import and return the parser for a file format."""
    module, function = _PARSERS[format]
    parser: Parser = getattr(import_module(f"icefloe.virtual.parsers.{module}"), function)
    return parser


def recognize(file: SourceFile) -> Format:
    """Detect the format of a file from its first bytes, to choose a parser.

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
    if b"GRIB" in head:  # some files have a line of text before the first GRIB message
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
    """Return True if an HDF5 signature follows a user block."""
    starts = [512 << power for power in range(_USERBLOCKS)]
    return any(file.peek(start, start + 8) == _HDF5 for start in starts if start < file.size_bytes)
