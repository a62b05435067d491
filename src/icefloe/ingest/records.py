"""Records that the stages of an ingest exchange: schemas of files, and target arrays."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.ingest.bad_files import BadFile
from icefloe.ingest.discover.sources import IngestSource
from icefloe.session import Session

if TYPE_CHECKING:
    pass

LOGGER = logging.getLogger("icefloe.ingest")
PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "dtype")
"""The attributes that describe how values are encoded."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group in a repository as a source of values, read through a session."""

    session: Session
    group: str
    region: tuple[tuple[str, tuple[int, int]], ...] = ()
    """The start and the stop along each dimension, if only a part of the group is read."""


def make_attrs_key(attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a hashable key that is equal for attributes with equal values, types and order."""
    return tuple((name, type(value).__name__, _make_key(value)) for name, value in attrs.items())


def _make_key(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, repr(value) if value.dtype.hasobject else value.tobytes()
    return value if isinstance(value, str | bytes) else repr(value)


@dataclass(frozen=True, slots=True)
class VariableSchema:
    """The schema of one variable in a file: its encoding, and its metadata in xarray."""

    name: str
    dims: tuple[str, ...]
    raw_dtype: str
    dtype: str
    attrs: Mapping[str, Any]
    """The attributes of the decoded variable."""
    packing: Mapping[str, Any]
    """The attributes that describe the encoding, including units and calendar of times."""
    is_coordinate: bool
    chunks: tuple[int, ...] | None
    """The chunk shape in the file; None if the variable is contiguous."""
    raw_dims: tuple[str, ...] = ()
    """The dimensions of the encoded variable. A char array has one dimension more than the decoded text."""
    document: str | None = None
    """The zarr.json of an array with the same chunks. None if the chunks cannot be referenced, or if this is
    unknown.
    """
    refusal: str = ""
    """The reason why the chunks cannot be referenced."""

    @property
    def own_dims(self) -> tuple[str, ...]:
        """The dimensions of the variable in its file, without those that the ingest adds."""
        return tuple(dim for dim in self.dims if dim in self.raw_dims)

    @property
    def is_text_in_characters(self) -> bool:
        """True if the file stores a char array, which xarray decodes to strings."""
        return self.raw_dims != self.own_dims

    @property
    def key(self) -> tuple[Any, ...]:
        """A hashable key that is equal for variables with equal schemas."""
        plain = (
            getattr(self, field.name) for field in fields(self) if field.name not in ("attrs", "packing")
        )
        return (*plain, make_attrs_key(self.attrs), make_attrs_key(self.packing))


SchemaVariants = Mapping[str, Sequence[VariableSchema]]
"""The distinct schemas of each variable."""


@dataclass(frozen=True, slots=True)
class SpillRange:
    """A byte range of a spill object, which contains the references of one file."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class FileSchema:
    """The schema of a file, which contains everything that the driver needs for planning."""

    source: IngestSource
    variables: tuple[VariableSchema, ...]
    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    """The decoded values of scalar and 1-D coordinates, and of the bounds of times."""
    attrs: Mapping[str, Any]
    content_id: str
    """A hash of the file's first and last bytes and its size."""
    spilled: SpillRange | None = None
    """The location of the spilled references to the file's chunks; None without references."""
    left_out: tuple[str, ...] = ()
    """Variables that the engine skipped because they do not fit into one dataset."""
    places: tuple[str, ...] = ()
    """The locations of other files that this file references, one per virtual chunk container."""
    offered: tuple[str, ...] = ()
    """All data variables in the file, if some of the selected variables do not exist."""
    group: str = ""
    """The path of the target group relative to the target group of the ingest."""
    part: str | None = None
    """For GRIB files, the kind of this part; empty if the schema describes a whole file with
    several parts.
    """
    kinds: tuple[str, ...] = ()
    """For GRIB files, the kinds of all parts."""
    groups_without_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The attributes of groups without arrays, by path. Only the first schema of a file contains them."""

    def variable(self, name: str) -> VariableSchema | None:
        """Return the schema of a variable by name. Return None if the file has no such variable."""
        return next((each for each in self.variables if each.name == name), None)


@dataclass(frozen=True, slots=True)
class Target:
    """The planned metadata of one target array of an ingest."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    """The dtype of the stored values; `string` for variable-length text."""
    attrs: Mapping[str, Any]
    """The attributes as JSON values."""
    packing: Mapping[str, Any]
    """The attributes that describe the encoding. Values of files with a different encoding are re-encoded."""
    signature: str | None
    """A key for the encoding. Stored values of files with the same key are copied without decoding."""
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None
    fill_value: Any = None
    document: str | None = None
    """The zarr.json of the array, if its chunks have the same layout as chunks of files."""
    is_new: bool = True
    """True if the array will be created, possibly replacing an existing array."""

    @property
    def unit(self) -> tuple[int, ...]:
        """The shape of the smallest unit of the array that is written: a shard or a chunk."""
        return self.shards or self.chunks

    def count_units(self) -> int:
        """Return the number of shards, or of chunks if there are no shards, in the target array."""
        return math.prod(-(-size // max(unit, 1)) for size, unit in zip(self.shape, self.unit, strict=True))

    @property
    def itemsize(self) -> int:
        """The size of a cell in bytes. For text, this is an estimate."""
        return 32 if self.dtype == "string" else np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """The size of the target array in bytes without compression."""
        return math.prod(self.shape) * self.itemsize


RESERVED_NAMES: Mapping[str, str] = MappingProxyType(
    {"zarr.json": "the metadata of a Zarr group", "_icefloe": "the ledger"}
)
"""Names that groups and variables must not have, with the reasons."""


def share_equal_parts(files: Sequence[FileSchema]) -> list[FileSchema]:
    """Deduplicate equal parts of the schemas of many files: coordinates, text, and schemas of variables.

    xarray compares identical coordinates immediately. Each schema then needs only a few hundred bytes, both
    in memory and when it is sent to the driver.
    """
    known: dict[Any, Any] = {}
    seen: dict[int, VariableSchema] = {}

    def one(variable: VariableSchema) -> VariableSchema:
        if id(variable) not in seen:  # the schemas of one task already share equal parts
            seen[id(variable)] = known.setdefault(variable.key, variable)
        return seen[id(variable)]

    def text(value: Any) -> Any:
        return known.setdefault(value, value) if isinstance(value, str) else value

    found = []
    for file in files:
        attrs = {text(name): text(value) for name, value in file.attrs.items()}
        found.append(replace(file, variables=tuple(map(one, file.variables)), attrs=attrs))
        for name, value in file.values.items():
            array = np.asarray(value)
            if array.dtype != object:
                key = hashlib.sha256(
                    f"{name} {array.dtype} {array.shape}".encode() + array.tobytes()
                ).digest()
                file.values[name] = known.setdefault(key, array)  # type: ignore[index]
    return found


def sort_along(files: Sequence[FileSchema], dim: str | None) -> list[FileSchema]:
    """Sort file schemas by their first label along a dimension. If some have no labels, keep the order."""
    if dim is None or any(dim not in file.values for file in files):
        return list(files)
    return sorted(files, key=lambda file: make_label_key(file.values[dim]))


def make_label_key(labels: Any) -> tuple[bool, Any]:
    """Return a sort key for the labels of a coordinate: its first label. Empty coordinates come last."""
    return (False, labels.reshape(-1)[0]) if labels.size else (True, 0)


def drop_bad_files(files: Sequence[FileSchema], bad: Sequence[BadFile]) -> list[FileSchema]:
    """Return the schemas of all files that are not bad."""
    urls = {each.source.url for each in bad}
    return [file for file in files if file.source.url not in urls]


def join_path(group: str, path: str) -> str:
    """Join the path of a target group with the path of a group below it."""
    return "/".join(filter(None, (group.strip("/"), path)))


def split_by_group(files: Iterable[FileSchema]) -> dict[str, list[FileSchema]]:
    """Group file schemas by their target group, sorted by path."""
    found: dict[str, list[FileSchema]] = {}
    for file in files:
        found.setdefault(file.group, []).append(file)
    return dict(sorted(found.items()))


def collect_variants(schemas: Sequence[FileSchema]) -> SchemaVariants:
    """Collect the distinct schemas of each variable from many files."""
    found: dict[str, dict[int, VariableSchema]] = {}
    for schema in schemas:
        for variable in schema.variables:
            found.setdefault(variable.name, {}).setdefault(id(variable), variable)
    return {name: tuple(each.values()) for name, each in found.items()}
