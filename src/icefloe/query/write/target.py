"""Prepare the target arrays of a write, and find the block and cell of each row.

The caller owns the session and commits it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.cf import NO_TIME
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import TIMESTAMP, Coding, Values
from icefloe.query.encode import encode_values, make_invalid_rows_error, to_keys
from icefloe.query.options import QueryOptions
from icefloe.query.schema import (
    NUMERIC,
    ArrayInfo,
    ArrayTable,
    Role,
    describe_array,
    find_tables,
    make_unknown_name_error,
    share_edges,
)
from icefloe.session import Session

APPEND: Final = "append"
OVERWRITE: Final = "overwrite"
_CHUNK_CELLS: Final = 2**20
_COORDINATE_CHUNK: Final = 4096
FAIL: Final = "fail"
DROP: Final = "drop"
INSERT: Final = "insert"
_LATE: Final = (FAIL, DROP, INSERT)
_TIME_ATTRIBUTES: Final = {"units": "microseconds since 1970-01-01", "calendar": "proleptic_gregorian"}


@dataclass(frozen=True, slots=True)
class Template:
    """The settings for arrays that a write creates or extends."""

    dims: tuple[str, ...] | None = None
    chunks: Mapping[str, int] = field(default_factory=dict)
    dtype: Mapping[str, str] = field(default_factory=dict)
    """The dtype per variable. The key "" applies to all other variables."""
    fill_value: Mapping[str, Any] = field(default_factory=dict)
    """The fill value per variable. The key "" applies to all other variables."""
    append_dim: str | None = None
    """The dimension that may grow; by default the first dimension."""
    late: str = FAIL
    """How to handle late rows: rows with a new coordinate before the end of `append_dim`."""

    def __post_init__(self) -> None:
        if self.late not in _LATE:
            raise make_unknown_name_error("value of late", self.late, _LATE, kind=ErrorKind.NOT_ALLOWED)

    @staticmethod
    def from_options(options: QueryOptions) -> Template:
        """Create the template from the options of a Spark write."""
        dims = options.names("dims")
        return Template(
            None if dims is None else tuple(dims),
            options.mapping("chunks"),
            index_by_variable(options.value("dtype")),
            index_by_variable(options.value("fillValue")),
            options.text("appendDim"),
            (options.text("late") or FAIL).lower(),
        )


def _is_falling(keys: Values) -> bool:
    return len(keys) > 1 and bool(keys[-1] < keys[0])


def _reorder(array: Any, info: ArrayInfo, axis: int, first: int, order: NDArray[np.int64]) -> None:
    """Reorder an array along an axis, starting at an index, one column of chunks at a time."""
    spans = [
        [slice(first, None)] if own == axis else [slice(*pair) for pair in pairwise(edges.tolist())]
        for own, edges in enumerate(info.edges)
    ]
    for region in product(*spans):
        array[region] = np.take(np.asarray(array[region]), order, axis=axis)


def index_by_variable(given: Any) -> dict[str, Any]:
    """Normalize a setting to a mapping by variable. A single value for all variables gets the key ""."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {"": given}


@dataclass(frozen=True, slots=True)
class CoordinateIndex:
    """A lookup index of the coordinate values along one dimension of the target arrays."""

    index: Any
    """A pandas index of the keys, in dimension order."""
    times: bool
    """True if the keys are microseconds since 1970."""

    @staticmethod
    def build(name: str, keys: Values, times: bool) -> CoordinateIndex:
        """Build the index of a dimension from its keys. Raise an error for duplicate keys."""
        import pandas as pd  # type: ignore[import-untyped]

        index = pd.Index(keys)
        if not index.is_unique:
            raise make_invalid_rows_error(
                f"coordinate {name} contains a value twice, so the position of a row is ambiguous"
            )
        return CoordinateIndex(index, times)

    def format(self, position: int) -> str:
        """Format the key at a position along the dimension, for messages."""
        return format_key(self.index[position], self.times)

    def find(self, keys: Values) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the positions of keys along the dimension, and a mask of the keys that exist."""
        keys = keys.astype(self.index.dtype) if self.index.dtype.kind == "f" else keys
        found = self.index.get_indexer(keys)
        return np.maximum(found, 0), found >= 0


@dataclass(frozen=True, slots=True)
class Variable:
    """A target array into which the values of one column are written."""

    name: str
    path: str
    axes: tuple[int, ...]
    coding: Coding
    fresh: bool
    """True if this write created the array, which is therefore still empty."""


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The target of a write: the arrays of a group to which rows are written, and everything else that tasks
    need.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    lookups: tuple[CoordinateIndex, ...]
    variables: tuple[Variable, ...]
    edges: tuple[NDArray[np.int64], ...]
    """The chunk boundaries that all variables share, per dimension."""
    drops_unknown: bool = False
    """True if rows with unknown coordinates are dropped as late rows."""
    clauses: tuple[frozenset[str], ...] = ()
    """The variables that each clause sets, indexed by clause number. Empty if rows set all variables."""

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of blocks along each dimension."""
        return tuple(max(len(edges) - 1, 1) for edges in self.edges)

    def place(self, batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return the block and cell number of each row, and a mask of the rows whose coordinates exist."""
        blocks, cells = np.zeros(batch.num_rows, np.int64), np.zeros(batch.num_rows, np.int64)
        known = np.ones(batch.num_rows, np.bool_)
        for dim, size, lookup, edges, count in zip(
            self.dims, self.shape, self.lookups, self.edges, self.grid, strict=True
        ):
            positions, found = lookup.find(to_keys(batch.column(dim), dim))
            known &= found
            cells = cells * size + positions
            blocks = blocks * count + np.clip(
                np.searchsorted(edges, positions, side="right") - 1, 0, count - 1
            )
        return blocks, cells, known

    def region(self, block: int) -> tuple[slice, ...]:
        """Return the array region that a block covers, as slices."""
        places = np.unravel_index(block, self.grid) if self.dims else ()
        return tuple(
            slice(int(edges[place]), int(edges[place + 1]))
            for edges, place in zip(self.edges, places, strict=True)
        )


def find_dims(session: Session, group: str, columns: Sequence[str], template: Template) -> tuple[str, ...]:
    """Return the dimensions of the rows to write, taken from the template or from the existing arrays."""
    if template.dims is not None:
        chosen: tuple[str, ...] = template.dims
    else:
        tables = _find_existing(session, group)
        holding = [t for t in tables if {c.name for c in t.variables} & set(columns)]
        fitting = holding or [t for t in tables if set(t.dims) <= set(columns)]
        if len(fitting) != 1:
            raise make_invalid_rows_error(
                f"group {group} does not determine the dimensions of {', '.join(columns)}; pass them with the"
                " option dims, such as time,lat,lon"
            )
        chosen = fitting[0].dims
    for dim in chosen:
        if dim not in columns:
            raise make_unknown_name_error("column", dim, list(columns), "for a dimension of the rows")
    return chosen


def _find_existing(session: Session, group: str) -> list[ArrayTable]:
    workspace = session._workspace
    path = "/" + group.strip("/")
    if workspace.node(path) is None and not workspace.has_nodes_below(path):
        return []
    return list(find_tables(session, group).tables)


def prepare(
    session: Session,
    group: str,
    schema: pa.Schema,
    dims: tuple[str, ...],
    keys: Mapping[str, Values],
    template: Template,
    mode: str,
) -> WriteTarget:
    """Create or extend the target arrays for rows with the given coordinate keys.

    Raise an error for unexpected coordinates.
    """
    return _Preparation(session, "/" + group.strip("/"), schema, dims, template, mode).run(keys)


class _Preparation:
    """The preparation of a group's arrays for a write."""

    def __init__(
        self,
        session: Session,
        group: str,
        schema: pa.Schema,
        dims: tuple[str, ...],
        template: Template,
        mode: str,
    ) -> None:
        import zarr

        self._session = session
        self._path = group
        self._dims = dims
        self._template = template
        self._schema = schema
        self._tables = _find_existing(session, group)
        columns = {c.name: c for table in self._tables for c in table.columns if c.array is not None}
        coordinates = {name for name, c in columns.items() if c.role is not Role.VARIABLE}
        skipped = coordinates | {name + NUMERIC for name in coordinates} | set(dims)
        self._names = [name for name in schema.names if name not in skipped]
        if not self._names:
            raise make_invalid_rows_error(
                f"the rows have only coordinates ({', '.join(schema.names)}) and no variable to write"
            )
        self._group: Any = zarr.open_group(session.store, path=group.strip("/") or None, mode="a")
        self._arrays: dict[str, ArrayInfo] = {
            name: column.array for name, column in columns.items() if column.array is not None
        }
        self._fresh: set[str] = set()
        if mode == OVERWRITE:
            self._drop_variables(coordinates)

    def _drop_variables(self, coordinates: set[str]) -> None:
        for name in self._names:
            if name in self._arrays:
                del self._group[name]
                del self._arrays[name]
        used = {dim for name, info in self._arrays.items() if name not in coordinates for dim in info.dims}
        for dim in self._dims:
            if dim in self._arrays and dim not in used:
                del self._group[dim]
                del self._arrays[dim]

    def run(self, keys: Mapping[str, Values]) -> WriteTarget:
        shape, lookups = [], []
        for dim in self._dims:
            lookup, size = self._prepare_dimension(dim, keys[dim])
            lookups.append(lookup)
            shape.append(size)
        variables = [self._prepare_variable(name, tuple(shape)) for name in self._names]
        edges = share_edges(shape, [(each.axes, self._arrays[each.name].edges) for each in variables])
        drops = self._template.late == DROP
        return WriteTarget(self._dims, tuple(shape), tuple(lookups), tuple(variables), tuple(edges), drops)

    # Dimensions

    def _prepare_dimension(self, dim: str, keys: Values) -> tuple[CoordinateIndex, int]:
        size = self._find_size(dim)
        if size is None:
            self._create_coordinate(dim, keys)
            return CoordinateIndex.build(dim, keys, self._has_times(dim)), len(keys)
        known = self._read_keys(dim, size)
        lookup = CoordinateIndex.build(dim, known, self._has_times(dim))
        fresh = keys[~lookup.find(keys)[1]] if len(keys) else keys
        if not len(fresh):
            return lookup, size
        fresh = self._order_new_keys(dim, known, fresh)
        if not len(fresh):  # all new rows are late and are dropped
            return lookup, size
        self._extend(dim, size, fresh)
        longer = np.concatenate([known, fresh.astype(known.dtype)])
        if self._template.late == INSERT:
            longer = self._sort_labels(dim, longer, falls=_is_falling(known))
        return CoordinateIndex.build(dim, longer, self._has_times(dim)), size + len(fresh)

    def _has_times(self, dim: str) -> bool:
        info = self._arrays.get(dim)
        return info is not None and info.coding.arrow == TIMESTAMP

    def _find_size(self, dim: str) -> int | None:
        for info in self._arrays.values():
            if dim in info.dims:
                return info.shape[info.dims.index(dim)]
        return None

    def _read_keys(self, dim: str, size: int) -> Values:
        info = self._arrays.get(dim)
        if info is None:
            return np.arange(size)
        raw = np.asarray(self._group[dim][...])
        values, missing = info.coding.decode(raw)
        if missing is not None:
            raise make_invalid_rows_error(
                f"coordinate {dim} has missing values, so the position of a row is unknown"
            )
        if info.coding.arrow == TIMESTAMP:
            return values.astype(np.int64)
        if values.dtype.kind in "UT":
            return values.astype(object)
        return values.astype(np.int64) if values.dtype.kind in "iub" else values

    def _order_new_keys(self, dim: str, known: Values, fresh: Values) -> Values:
        """Return new keys in the order in which they are appended to the dimension. Raise an error if they
        cannot be appended."""
        growing = self._template.append_dim or self._dims[0]
        times = self._has_times(dim)
        shown = format_key(fresh[0], times)
        if dim != growing:
            raise make_invalid_rows_error(
                f"{dim} {shown} is not a coordinate of group {self._path}, and only {growing} can be extended"
                "; select another dimension with the option appendDim"
            )
        falls = _is_falling(known)
        ordered = np.sort(fresh)[::-1] if falls else np.sort(fresh)
        if self._template.late == DROP and len(known):
            return np.asarray(ordered[ordered < known[-1]] if falls else ordered[ordered > known[-1]])
        if self._template.late == INSERT:
            steps = known[1:] < known[:-1] if falls else known[1:] > known[:-1]
            if not steps.all():
                raise make_invalid_rows_error(
                    f"{dim} of group {self._path} is not sorted, so {dim} {shown} cannot be placed in it; "
                    "use the"
                    " option late to drop such rows"
                )
            return ordered
        if len(known) and not (ordered[0] < known[-1] if falls else ordered[0] > known[-1]):
            first, last = (format_key(key, times) for key in (ordered[0], known[-1]))
            raise make_invalid_rows_error(
                f"{dim} {first} lies between coordinates of group {self._path}; {dim} can only be extended"
                f" after {last}; the option late inserts or drops such rows"
            )
        return ordered

    def _sort_labels(self, dim: str, labels: Values, *, falls: bool) -> Values:
        """Sort a dimension to which new labels were appended, moving the data of all arrays. Return the
        sorted labels.
        """
        order = np.argsort(labels)[:: -1 if falls else 1]
        moved = np.flatnonzero(order != np.arange(len(labels)))
        if len(moved):
            first = int(moved[0])
            for info in self._arrays.values():
                if dim in info.dims:
                    _reorder(self._group[info.name], info, info.dims.index(dim), first, order[first:] - first)
        return np.asarray(labels[order])

    def _extend(self, dim: str, size: int, fresh: Values) -> None:
        longer = size + len(fresh)
        for name, info in list(self._arrays.items()):
            if dim not in info.dims:
                continue
            shape = tuple(longer if own == dim else n for own, n in zip(info.dims, info.shape, strict=True))
            self._group[name].resize(shape)
            # Keep the existing encoding: for times, it may depend on the existing values.
            self._arrays[name] = replace(self._describe(name), coding=info.coding)
        info_of = self._arrays.get(dim)
        if info_of is not None:
            column = _to_column(fresh, info_of.coding)
            self._group[dim][size:longer] = encode_values(column, info_of.coding, dim)

    def _create_coordinate(self, dim: str, keys: Values) -> None:
        kind = self._schema.field(dim).type
        times = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        dtype: Any = "string" if keys.dtype == object else keys.dtype
        self._group.create_array(
            dim,
            shape=(len(keys),),
            chunks=(max(len(keys), _COORDINATE_CHUNK),),
            dtype=dtype,
            dimension_names=(dim,),
            attributes=dict(_TIME_ATTRIBUTES) if times else {},
        )
        self._group[dim][:] = keys
        self._record_variable(dim)

    # Variables

    def _prepare_variable(self, name: str, shape: tuple[int, ...]) -> Variable:
        if name not in self._arrays:
            self._create(name, shape)
        info = self._arrays[name]
        if frozenset(info.dims) != frozenset(self._dims):
            own, given = ", ".join(info.dims), ", ".join(self._dims)
            raise make_invalid_rows_error(
                f"{info.path} has the dimensions ({own}), and the rows have ({given})"
            )
        axes = tuple(self._dims.index(dim) for dim in info.dims)
        return Variable(name, info.path, axes, info.coding, name in self._fresh)

    def _create(self, name: str, shape: tuple[int, ...]) -> None:
        template = self._template
        kind = self._schema.field(name).type
        times = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        dtype = (
            np.dtype("i8")
            if times
            else _choose_dtype(kind, template.dtype.get(name, template.dtype.get("")), name)
        )
        given = template.fill_value.get(name, template.fill_value.get(""))
        attributes: dict[str, Any] = dict(_TIME_ATTRIBUTES) if times else {}
        fill: Any = np.nan if dtype.kind == "f" else None
        if times:
            fill = int(NO_TIME)
        elif given is not None:
            try:
                fill = dtype.type(given).item()
            except (TypeError, ValueError, OverflowError):
                raise make_invalid_rows_error(
                    f"the fill value {given!r} of {name} is not a valid {dtype}"
                ) from None
            attributes["_FillValue"] = fill
        self._group.create_array(
            name,
            shape=shape,
            chunks=self._choose_chunks(shape),
            dtype="string" if dtype.kind in "TO" else dtype,
            fill_value=fill if fill is not None else None,
            dimension_names=self._dims,
            attributes=attributes,
        )
        self._record_variable(name)

    def _choose_chunks(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the chunk shape given by the template. By default, a chunk covers as many whole trailing
        dimensions as fit a size limit."""
        chunks = []
        room = _CHUNK_CELLS
        for dim, size in zip(reversed(self._dims), reversed(shape), strict=True):
            chosen = int(self._template.chunks.get(dim, 0)) or max(min(size, room), 1)
            chunks.append(chosen)
            room = max(room // chosen, 1)
        return tuple(reversed(chunks))

    def _record_variable(self, name: str) -> None:
        self._arrays[name] = self._describe(name)
        self._fresh.add(name)

    def _describe(self, name: str) -> ArrayInfo:
        path = f"{self._path.rstrip('/')}/{name}"
        return describe_array(path, json.loads(self._session._workspace.array(path).user_data), self._session)


def _choose_dtype(kind: pa.DataType, asked: str | None, name: str) -> np.dtype[Any]:
    if asked is not None:
        try:
            return np.dtype(asked)
        except TypeError:
            raise make_invalid_rows_error(
                f"{asked!r} for {name} is not a data type; use for example float32 or int16"
            ) from None
    if pa.types.is_string(kind):
        return np.dtype(object)
    if pa.types.is_boolean(kind):
        return np.dtype(bool)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    if pa.types.is_decimal(kind):
        return np.dtype("f8")
    raise InvalidInputError(
        f"column {name} has type {kind}, which no array can store; cast it, or drop it",
        kind=ErrorKind.INVALID_ARRAY_METADATA,
    )


def _to_column(keys: Values, coding: Coding) -> pa.Array:
    if coding.arrow == TIMESTAMP:
        return pa.array(keys.astype(np.int64), pa.int64()).cast(TIMESTAMP)
    return pa.array(keys.tolist()) if keys.dtype == object else pa.array(keys)


def format_key(key: Any, times: bool) -> str:
    """Format a coordinate key of the target arrays for messages."""
    return str(np.datetime64(int(key), "us")).removesuffix(".000000") if times else str(key)
