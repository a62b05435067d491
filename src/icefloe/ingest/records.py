"""Records that the stages of an ingest exchange: how files are read, their schemas, and bad files."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe._internal.amounts import counted
from icefloe._internal.table import Table
from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.ingest.discover.sources import Source
from icefloe.ingest.discover.urls import get_origin, make_reference_url
from icefloe.session import Session
from icefloe.storage.external.access import Access, get_access

if TYPE_CHECKING:
    from icefloe.virtual.sources import FindAccess, StoreAccess

LOGGER = logging.getLogger("icefloe.ingest")
PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "dtype")
"""Attributes that describe how values are stored."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The repository itself as a source: a group as one session sees it."""

    session: Session
    group: str
    region: tuple[tuple[str, tuple[int, int]], ...] = ()
    """Start and stop along each dimension that this source covers only in part."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The options with which xarray opens sources."""

    engine: str | None = None
    """The name of an xarray engine; None lets xarray choose."""
    group: str | None = None
    """The group to read in the files."""
    variables: tuple[str, ...] = ()
    """The data variables to ingest; all if empty."""
    open_options: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of `xarray.open_dataset`."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of `storage_from_url` for remote files. May contain secrets."""

    def for_source(self, source: Source) -> Reading:
        """Return the options for a source, which may be one group of a file."""
        return replace(self, group=source.group) if source.group else self

    def find_access(self, source: Source) -> Access | None:
        """Return how to access a remote source; None for a local one."""
        return get_access(source.address, self.storage_options) if source.is_remote else None

    def find_access_at(self, location: str) -> Access | None:
        """Return the access to a file that a source references; None for the default of its scheme.

        Options for another kind of storage than that of the file are ignored.
        """
        if location.startswith("file:"):
            return None
        try:
            return get_access(location, self.storage_options)
        except InvalidInputError:
            return None

    def make_access_finder(self, source: Source) -> FindAccess:
        """Return a function that finds the access to a source and to the files that it references."""
        known: dict[str, StoreAccess] = {}
        if source.is_remote:
            access = get_access(source.address, self.storage_options)
            known[get_origin(make_reference_url(source.address))] = access.store, access.credential

        def reach(location: str) -> StoreAccess:
            origin = "file:" if location.startswith("file:") else get_origin(location)
            if origin not in known:
                found = self.find_access_at(location)
                known[origin] = (None, None) if found is None else (found.store, found.credential)
            return known[origin]

        return reach


def make_attrs_key(attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a hashable key that is equal for attributes with equal values, types and order."""
    return tuple((name, type(value).__name__, _make_key(value)) for name, value in attrs.items())


def _make_key(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, repr(value) if value.dtype.hasobject else value.tobytes()
    return value if isinstance(value, str | bytes) else repr(value)


@dataclass(frozen=True, slots=True)
class VariableSchema:
    """One variable of a file, as it is stored and as xarray shows it."""

    name: str
    dims: tuple[str, ...]
    raw_dtype: str
    dtype: str
    attrs: Mapping[str, Any]
    """The attributes of the decoded variable."""
    packing: Mapping[str, Any]
    """The attributes that describe how values are stored, with units and calendar of times."""
    is_coordinate: bool
    chunks: tuple[int, ...] | None
    """The chunk shape in the file, if it has chunks."""
    raw_dims: tuple[str, ...] = ()
    """The dimensions of the stored variable. Strings of characters have one more."""
    document: str | None = None
    """The zarr.json of an array with these chunks; None if they cannot be referenced or are unknown."""
    refusal: str = ""
    """The reason why the chunks cannot be referenced."""

    @property
    def own_dims(self) -> tuple[str, ...]:
        """The dimensions that the variable has in its source, without those that were added to it."""
        return tuple(dim for dim in self.dims if dim in self.raw_dims)

    @property
    def is_text_in_characters(self) -> bool:
        """True if single characters are stored, which xarray decodes to strings."""
        return self.raw_dims != self.own_dims

    @property
    def key(self) -> tuple[Any, ...]:
        """A hashable key that is equal for equal schemas."""
        plain = (
            getattr(self, field.name) for field in fields(self) if field.name not in ("attrs", "packing")
        )
        return (*plain, make_attrs_key(self.attrs), make_attrs_key(self.packing))


SchemaVariants = Mapping[str, Sequence[VariableSchema]]
"""The distinct schemas of each variable."""


@dataclass(frozen=True, slots=True)
class SpillRange:
    """A byte range of a spilled object."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class FileSchema:
    """The schema of a file: everything that the driver needs to plan its ingest."""

    source: Source
    variables: tuple[VariableSchema, ...]
    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    """The coordinates with at most one dimension, and the bounds of times, decoded."""
    attrs: Mapping[str, Any]
    content_id: str
    """A hash over the ends of the file and its size."""
    spilled: SpillRange | None = None
    """The spilled references to its chunks, if it was parsed."""
    left_out: tuple[str, ...] = ()
    """Variables that the engine left out because they do not fit into one dataset."""
    places: tuple[str, ...] = ()
    """The locations of other files that references point to, one per container."""
    offered: tuple[str, ...] = ()
    """All data variables of the file, if some of the selected ones are missing."""
    group: str = ""
    """The target group, relative to the group of the ingest."""
    part: str | None = None
    """For a GRIB file: the kind of this part, or empty for a whole file with several parts."""
    kinds: tuple[str, ...] = ()
    """The kinds of all parts of the GRIB file."""
    groups_without_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The attributes of the file's groups without arrays, by path. Only its first schema has them."""

    def variable(self, name: str) -> VariableSchema | None:
        """Return the variable with this name, or None."""
        return next((each for each in self.variables if each.name == name), None)


@dataclass(frozen=True, slots=True)
class Target:
    """The planned state of one array of the repository."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    """The data type of the stored values; `string` for text of variable length."""
    attrs: Mapping[str, Any]
    """The attributes, as JSON values."""
    packing: Mapping[str, Any]
    """How values are stored: for files that store them differently."""
    signature: str | None
    """Stored values of files with the same signature are copied without decoding."""
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None
    fill_value: Any = None
    document: str | None = None
    """The zarr.json of an array whose chunks equal those of files."""
    is_new: bool = True
    """True if the array is created, possibly in place of another one."""

    @property
    def unit(self) -> tuple[int, ...]:
        """The shape of the smallest part that can be written: a shard or a chunk."""
        return self.shards or self.chunks

    def count_units(self) -> int:
        """Count the shards or chunks of the grid."""
        return math.prod(-(-size // max(unit, 1)) for size, unit in zip(self.shape, self.unit, strict=True))

    @property
    def itemsize(self) -> int:
        """Bytes per cell; an estimate for text."""
        return 32 if self.dtype == "string" else np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that cannot be ingested, with the reason."""

    source: Source
    reason: str
    remedy: str | Hint = ""
    """The remedy; empty if the file has to be repaired or removed."""
    is_sound: bool = False
    """True if the file is readable, but a package is missing or an option is wrong."""
    offered: tuple[str, ...] = ()
    """All data variables of the file, if the selected ones are missing."""
    variable: str = ""
    """The variable with the problem; empty if it concerns the whole file."""

    @property
    def problem(self) -> str:
        """The variable and the reason."""
        return ": ".join(filter(None, (self.variable, self.reason)))

    @property
    def sentence(self) -> str:
        """The variable, the reason and the remedy."""
        return f"{self.problem}: {self.remedy}" if self.remedy else self.problem


def share_equal_parts(files: Sequence[FileSchema]) -> list[FileSchema]:
    """Replace equal parts of many files by one object: coordinates, text, and schemas of variables.

    xarray then recognizes equal coordinates at once, and a file takes a few hundred bytes, here and when it
    is sent to the driver.
    """
    known: dict[Any, Any] = {}
    seen: dict[int, VariableSchema] = {}

    def one(variable: VariableSchema) -> VariableSchema:
        if id(variable) not in seen:  # schemas of one task are shared already
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


def explain(error: BaseException) -> str:
    """Describe an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class ProblemsError(InvalidInputError):
    """The error about files that cannot be ingested or combined. Nothing was written.

    `bad` has all problems of all files, `problems` has them as a table.
    """

    bad: tuple[BadFile, ...]

    def __init__(self, bad: Sequence[BadFile]) -> None:
        self.bad = tuple(bad)
        super().__init__(f"{self.headline}: {self._details()}", ErrorKind.INVALID_FILE_FORMAT)
        self.args = (self.bad,)
        if not all(each.is_sound for each in bad):
            hints = [each.remedy for each in bad if isinstance(each.remedy, Hint)][:_SHOWN]
            hints += [] if all(each.remedy for each in bad) else [_REPAIR]
            self.hint = Hint.any_of(*hints, *([_SKIP] if self._files else []))

    @property
    def _files(self) -> set[str]:
        return {each.source.url for each in self.bad} - {""}

    @property
    def headline(self) -> str:
        """The error without its details."""
        if not self._files:
            return "the files cannot be combined"
        return f"{counted(len(self._files), 'file')} cannot be ingested"

    @property
    def problems(self) -> Table:
        """All problems: file, variable, problem and remedy."""
        return make_problem_table(self.bad)

    def _details(self) -> str:
        urls: dict[str, list[str]] = {}
        for each in self.bad:
            text = each.problem if isinstance(each.remedy, Hint) else each.sentence
            urls.setdefault(text, []).append(each.source.url)
        texts = [
            ": ".join(filter(None, (f"{names[0]}{_format_more(len(names) - 1)}", text)))
            for text, names in urls.items()
        ]
        more = f"; and {counted(len(texts) - _SHOWN, 'other problem')}" if len(texts) > _SHOWN else ""
        return f"{'; '.join(texts[:_SHOWN])}{more}"


def _format_more(count: int) -> str:
    return f" and {count} more" if count else ""


def make_problem_table(bad: Sequence[BadFile]) -> Table:
    """Return problems as a table with the columns file, variable, problem and remedy."""
    return Table(
        {
            "file": [each.source.url for each in bad],
            "variable": [each.variable for each in bad],
            "problem": [each.reason for each in bad],
            "remedy": [str(each.remedy) for each in bad],
        }
    )


_SKIP = Hint("skip bad files with {on_bad_file}", on_bad_file="skip")
_SHOWN = 5
_REPAIR = Hint("repair or remove them")


def sort_along(files: Sequence[FileSchema], dim: str | None) -> list[FileSchema]:
    """Sort files by their first label along a dimension, if all have labels."""
    if dim is None or any(dim not in file.values for file in files):
        return list(files)
    return sorted(files, key=lambda file: make_label_key(file.values[dim]))


def make_label_key(labels: Any) -> tuple[bool, Any]:
    """Return a sort key: the first label; empty coordinates come last."""
    return (False, labels.reshape(-1)[0]) if labels.size else (True, 0)


def drop_bad_files(files: Sequence[FileSchema], bad: Sequence[BadFile]) -> list[FileSchema]:
    """Return the files that are not bad."""
    urls = {each.source.url for each in bad}
    return [file for file in files if file.source.url not in urls]


def join_path(group: str, path: str) -> str:
    """Return the path of a group that is below another one."""
    return "/".join(filter(None, (group.strip("/"), path)))


def split_by_group(files: Iterable[FileSchema]) -> dict[str, list[FileSchema]]:
    """Split the schemas of files by the group that they go to, sorted by path."""
    found: dict[str, list[FileSchema]] = {}
    for file in files:
        found.setdefault(file.group, []).append(file)
    return dict(sorted(found.items()))


def collect_variants(schemas: Sequence[FileSchema]) -> SchemaVariants:
    """Collect the distinct schemas of each variable."""
    found: dict[str, dict[int, VariableSchema]] = {}
    for schema in schemas:
        for variable in schema.variables:
            found.setdefault(variable.name, {}).setdefault(id(variable), variable)
    return {name: tuple(each.values()) for name, each in found.items()}
