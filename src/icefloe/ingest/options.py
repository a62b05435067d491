"""Ingest options: how data is read, combined, stored and checked."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from icefloe.core.merge.row_placement import AppendOrder
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import RESERVED_NAMES

Mode = Literal["native", "virtual", "hybrid"]
OnBadFile = Literal["stop", "skip"]
OnChange = Literal["report", "ingest"]

DEFAULT_MEMORY_BYTES = 256 << 20
DEFAULT_CHECKS = ("monotone", "source")
SHORT_FORM = {"range": "variable", "nulls": "variable", "python": "call", "sql": "query"}
"""The main argument of each check, whose name may be omitted in a recipe."""
NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "monotone": (),
        "gaps": (),
        "source": (),
        "range": ("variable", "low", "high"),
        "nulls": ("variable", "most"),
        "python": ("call",),
        "sql": ("query",),
    }
)
"""The required arguments of each check."""
_COMBINING = {
    "compat": ("identical", "equals", "broadcast_equals", "no_conflicts", "override", "minimal"),
    "data_vars": ("minimal", "different", "all"),
    "coords": ("minimal", "different", "all"),
    "join": ("outer", "inner", "left", "right", "exact", "override"),
}
"""The values that xarray accepts for each combine option."""
_TEXTS = frozenset({"message", "engine", "source_group", "concat_dim", "codec", *_COMBINING})
_DECODING = (
    *("decode_cf", "decode_times", "decode_timedelta", "decode_coords"),
    *("mask_and_scale", "use_cftime", "concat_characters"),
)
_MAPPINGS = frozenset({"metadata", "open_options", "storage_options"})


@dataclass(frozen=True, slots=True)
class Combining:
    """Options for combining files, as in `xarray.open_mfdataset`, with xarray's future defaults.

    These defaults are `data_vars=None`, `coords="minimal"` and `join="exact"`. `compat` differs from xarray:
    variables without the concatenation dimension must be equal in all files, unless `compat` is "override".
    """

    concat_dim: str | None = None
    """The dimension to concatenate files along. None infers it from the coordinates."""
    compat: str | None = None
    data_vars: str | None = None
    coords: str | None = None
    join: str | None = None

    def __post_init__(self) -> None:
        for name, known in _COMBINING.items():
            given = getattr(self, name)
            if given is not None and given not in known:
                raise _make_error(f"{name} must be one of {', '.join(known)}, not {given!r}")

    def to_arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments of xarray's combine functions."""
        return {
            "compat": self.compat or "no_conflicts",
            "data_vars": self.data_vars,
            "coords": self.coords or "minimal",
            "join": self.join or "exact",
            "combine_attrs": "override",
        }


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Options for the chunks and the compression of new arrays.

    Dimensions without a size are not split.
    """

    chunks: Mapping[str, int] | None = None
    """The chunk size by dimension, in cells; -1 means the whole dimension. None keeps the chunks of the
    files, within limits.
    """
    shards: Mapping[str, int] | None = None
    """The shard size by dimension, in cells."""
    codec: str = "zstd"
    """The codec: `zstd`, `zstd:9`, `blosc`, `blosc:lz4:5`, `gzip:6` or `none`."""

    def __post_init__(self) -> None:
        for what in ("chunks", "shards"):
            given: Any = getattr(self, what)  # the value may have any type in a recipe
            if given is None:
                continue
            if not isinstance(given, Mapping) or not all(type(size) is int for size in given.values()):
                raise _make_error(f"{what} must map dimensions to integers, such as time: 24, not {given!r}")
            for dim, size in given.items():
                if size < 1 and size != -1:
                    raise _make_error(f"{what} along {dim} must be positive, or -1 for all cells, not {size}")
        make_compressors(self.codec)


@dataclass(frozen=True, slots=True)
class Check:
    """A check that staged data must pass before it is published.

    `monotone`: coordinates along which files are concatenated are strictly increasing or decreasing, and
    other coordinates may repeat values. `gaps`: steps are about equal. `source`: samples of the data equal
    the files. `range`: the values of `variable` are between `low` and `high`. `nulls`: at most the fraction
    `most` of the values is missing. `python`: the function `call`, given as `module:function`, receives the
    dataset and returns None or a description of the problem. `sql`: the result of `query` has no rows, or is
    a single value that is true or 0; the tables are named `staged` and `published`.
    """

    name: str
    variable: str = ""
    low: float = -math.inf
    high: float = math.inf
    most: float = 0.0
    call: str = ""
    query: str = ""

    def __post_init__(self) -> None:
        if self.name not in NEEDS:
            raise _make_error(f"unknown check {self.name!r}; {suggest_name(self.name, NEEDS, 'checks are')}")
        for need in ("variable", "call", "query"):
            if not isinstance(getattr(self, need), str):
                raise self._make_error(f"{need} must be text, not {getattr(self, need)!r}")
        for bound in ("low", "high", "most"):
            if not isinstance(getattr(self, bound), int | float):
                raise self._make_error(f"{bound} must be a number, not {getattr(self, bound)!r}")
        if self.low > self.high:
            raise self._make_error(f"low ({self.low:g}) must not exceed high ({self.high:g})")
        if not 0 <= self.most <= 1:
            raise self._make_error(f"most must be between 0 and 1, not {self.most:g}")
        if self.name in ("range", "nulls") and not self.variable:
            raise self._make_error("a variable is required")
        if self.name == "range" and math.isinf(self.low) and math.isinf(self.high):
            raise self._make_error("low or high is required")
        if self.name == "python" and ":" not in self.call:
            raise self._make_error("a function is required, as module:function")
        if self.name == "sql" and not self.query.strip():
            raise self._make_error("a query is required")

    def _make_error(self, text: str) -> InvalidInputError:
        return make_check_error(f"the check {self.name}: {text}")

    @property
    def title(self) -> str:
        """The check with its variable or query, as a title for reports."""
        return " ".join(each for each in (self.name, self.variable, self.call, *self.query.split()) if each)


@dataclass(frozen=True, slots=True)
class Options:
    """All options of an ingest, which `icefloe.ingest_files` documents."""

    group: str = ""
    """The target group."""
    branch: str = "main"
    """The branch to publish the data on."""
    message: str | None = None
    """The commit message."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Additional metadata for the commits."""
    reading: ReadOptions = field(default_factory=ReadOptions)
    """How files are opened."""
    combining: Combining = field(default_factory=Combining)
    """How files are combined."""
    layout: ArrayLayout = field(default_factory=ArrayLayout)
    """Chunks, shards and codec of new arrays."""
    mode: Mode = "native"
    """The ingest mode: copy the data, reference it in the files, or do both."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """The memory that a task may use, excluding the interpreter and its modules."""
    manifest_references: int = 500_000
    """The maximum number of references in one manifest of a virtual array."""
    commit_every: int | None = None
    """The number of files per commit. None means a single commit."""
    on_bad_file: OnBadFile = "stop"
    """How to treat files that cannot be read or combined."""
    on_change: OnChange = "report"
    """How to treat files that changed since they were ingested."""
    append_order: AppendOrder | None = None
    """The row order if other writers extended the same arrays in the meantime. None combines the files with
    the new rows again.
    """
    checks: tuple[Check, ...] = tuple(map(Check, DEFAULT_CHECKS))
    """The checks that staged data must pass before it is published."""

    def __post_init__(self) -> None:
        for name, kind in (("mode", Mode), ("on_bad_file", OnBadFile), ("on_change", OnChange)):
            if getattr(self, name) not in get_args(kind):
                raise _make_error(
                    f"{name} must be one of {', '.join(get_args(kind))}, not {getattr(self, name)!r}"
                )
        if self.append_order not in (None, *get_args(AppendOrder)):
            raise _make_error(
                f"append_order must be one of {', '.join(get_args(AppendOrder))}, not {self.append_order!r}"
            )
        for name in ("memory_bytes", "commit_every", "manifest_references"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise _make_error(f"{name} must be a positive integer, not {value!r}")
        for name in ("group", "branch"):
            if not isinstance(getattr(self, name), str):
                raise _make_error(f"{name} must be text, not {getattr(self, name)!r}")
        _check_group(self.group)
        _refuse_decoding(self.reading.open_options)
        if self.mode == "virtual" and (self.layout.chunks or self.layout.shards):
            raise _make_error(
                "virtual arrays keep the chunks of the files; mode hybrid copies data to change them"
            )
        try:
            json.dumps(dict(self.metadata))
        except TypeError as error:  # for example, a date in YAML
            raise _make_error(f"metadata must be valid JSON: {error}") from error


def _refuse_decoding(open_options: Mapping[str, Any]) -> None:
    """Raise an error for options that control decoding. They have no effect, because an ingest copies stored
    values.
    """
    for name in _DECODING:
        if name in open_options:
            raise _make_error(
                f"{name} is not an option of an ingest, which copies stored values without decoding them;"
                " use it when you read the arrays. The option drop_variables omits variables that xarray"
                " cannot decode"
            )


def _check_group(group: str) -> None:
    parts = [part for part in group.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise _make_error(
            f"the group {group!r} contains . or ..; pass a path from the root, such as air/surface"
        )
    for part in parts:
        if part in RESERVED_NAMES:
            raise _make_error(
                f"the group {part} is reserved for {RESERVED_NAMES[part]}; choose another group"
            )


_PARTS: Mapping[str, Any] = {"reading": ReadOptions, "combining": Combining, "layout": ArrayLayout}
_RENAMED = {"group": "reading_group"}


def list_options() -> frozenset[str]:
    """Return the names of all options that `make_options` accepts."""
    inside = {each.name for kind in _PARTS.values() for each in fields(kind)} - set(_RENAMED)
    return frozenset(inside | {each.name for each in fields(Options)} - set(_PARTS) | {"source_group"})


def make_options(**given: Any) -> Options:
    """Create the options of an ingest from keyword arguments.

    Parameters
    ----------
    **given
        Options of `icefloe.ingest_files`. `group` is the group in the repository, `source_group` the group in
        the files.

    Returns
    -------
    Options
        The validated options.

    Raises
    ------
    InvalidInputError
        If an option is unknown or invalid.
    """
    for name, value in given.items():
        if name in _TEXTS and value is not None and not isinstance(value, str):
            raise _make_error(f"{name} must be text, not {value!r}")
        if name in _MAPPINGS and not isinstance(value, Mapping):
            raise _make_error(f"{name} must map names to values, not {value!r}")
    if "source_group" in given:
        given["reading_group"] = given.pop("source_group")
    parts: dict[str, Any] = {}
    for part, kind in _PARTS.items():
        names = {_RENAMED.get(each.name, each.name): each.name for each in fields(kind)}
        mine = {names[name]: given.pop(name) for name in list(given) if name in names}
        if "variables" in mine:
            mine["variables"] = _parse_names(mine["variables"])
        parts[part] = kind(**mine)
    known = list_options()
    for name in given:
        if name not in known:
            raise _make_error(f"an ingest has no option {name}; {suggest_name(name, known, 'options are')}")
    return Options(**parts, **given)


def parse_arguments(arguments: Mapping[str, Any]) -> Options:
    """Create the options of an ingest from the arguments of `icefloe.ingest_files` or
    `icefloe.spark.ingest`.
    """
    given = {name: arguments[name] for name in list_options() if name in arguments}
    given["storage_options"] = arguments["source_options"] or {}
    checks = [check if isinstance(check, Check) else Check(check) for check in given["checks"]]
    mappings = {name: given[name] or {} for name in ("metadata", "open_options")}
    return make_options(**{**given, **mappings, "checks": tuple(checks)})


def _parse_names(given: Any) -> tuple[str, ...]:
    names = tuple(given or ()) if isinstance(given, list | tuple | None) else (given,)
    if not all(isinstance(name, str) and name for name in names):
        raise _make_error(f"variables must be names, not {given!r}")
    return names


def make_compressors(codec: str) -> Any:
    """Return zarr's compressors for the option `codec`, which may be for example `zstd:9`."""
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    name, *rest = str(codec).split(":")
    try:
        if name == "none" and not rest:
            return None
        if name == "zstd" and len(rest) < 2:
            return ZstdCodec(level=int(rest[0]) if rest else 3)
        if name == "gzip" and len(rest) < 2:
            return GzipCodec(level=int(rest[0]) if rest else 5)
        if name == "blosc" and len(rest) < 3:
            level = int(rest[1]) if len(rest) > 1 else 5
            blosc: Any = BloscCodec  # older releases of zarr declare other argument types
            return blosc(cname=rest[0] if rest else "zstd", clevel=level, shuffle="shuffle")
    except (ValueError, TypeError) as error:
        problem = "the level must be a number" if "int()" in str(error) else str(error)
        raise _make_error(f"codec {codec!r}: {problem}") from error
    raise _make_error(
        f"unknown codec {codec!r}; choose zstd, zstd:LEVEL, blosc, blosc:NAME:LEVEL, gzip:LEVEL or none"
    )


def suggest_name(name: str, known: Any, listing: str) -> str:
    """Suggest the known name that is most similar to a misspelled one, or list all known names."""
    near = difflib.get_close_matches(str(name), sorted(known), n=1)
    return f"did you mean {near[0]}?" if near else f"{listing} {', '.join(sorted(known)) or 'none'}"


def make_check_error(text: str) -> InvalidInputError:
    """Create the error for a check that cannot run."""
    return _make_error(text)


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_COMMIT_CONFIGURATION)
