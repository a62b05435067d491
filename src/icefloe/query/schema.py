"""Describe the arrays of a group as tables, with one row per cell and one column per coordinate and variable.

Variables with the same dimensions form one table.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.query.decode import Coding, find_coding
from icefloe.query.spark_types import to_ddl
from icefloe.session import Session

NUMERIC: Final = "_numeric"
"""The suffix of the column that holds the stored numbers of times in a non-standard calendar."""


class Role(Enum):
    """The role of a column in the schema of a table: dimension, coordinate or variable."""

    DIMENSION = "dimension"
    """A dimension coordinate, or the index along the dimension if there is no coordinate."""
    AUXILIARY = "auxiliary coordinate"
    VARIABLE = "variable"


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """The array that holds the values of a table column, with its metadata."""

    name: str
    path: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    edges: tuple[NDArray[np.int64], ...]
    """The chunk boundaries along each dimension, including both ends."""
    coding: Coding
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column in the schema of a table: a coordinate, an index or a variable."""

    name: str
    role: Role
    axes: tuple[int, ...]
    """The table dimensions along which the column varies, in the array's dimension order."""
    array: ArrayInfo | None
    """The array that holds the values; None for an index column."""
    coding: Coding | None
    numeric: bool = False
    """True if the column holds the stored numbers of times that another column shows as text."""

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of the column."""
        if self.numeric:
            return pa.float64()
        return pa.int64() if self.coding is None else self.coding.arrow


@dataclass(frozen=True, slots=True)
class ArrayTable:
    """The schema of a table formed by arrays with the same dimensions. It has one row per cell and one column
    per array.
    """

    group: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """The table's columns as an Arrow schema."""
        return pa.schema([(column.name, column.arrow) for column in self.columns])

    @property
    def ddl(self) -> str:
        """The table's columns as Spark SQL DDL."""
        return to_ddl(self.schema)

    @property
    def variables(self) -> tuple[Column, ...]:
        """The columns that are variables, not coordinates or indices."""
        return tuple(column for column in self.columns if column.role is Role.VARIABLE)

    def column(self, name: str) -> Column:
        """Return a column by name. Case is ignored if only one column matches."""
        for column in self.columns:
            if column.name == name:
                return column
        folded = [column for column in self.columns if column.name.lower() == name.lower()]
        if len(folded) == 1:
            return folded[0]
        raise make_unknown_name_error(
            "column", name, [column.name for column in self.columns], f"in group {self.group}"
        )

    def select_columns(self, names: Iterable[str]) -> ArrayTable:
        """Return a table schema with only the given columns, in the given order."""
        found = (self.column(name) for name in names)
        return replace(self, columns=tuple({column.name: column for column in found}.values()))

    def edges(self) -> list[NDArray[np.int64]]:
        """Return the chunk boundaries shared by all variables of the table along each dimension, including
        both ends.
        """
        return share_edges(
            self.shape, [(c.axes, c.array.edges) for c in self.variables if c.array is not None]
        )


def share_edges(
    shape: Sequence[int], arrays: Iterable[tuple[Sequence[int], Sequence[NDArray[np.int64]]]]
) -> list[NDArray[np.int64]]:
    """Return the chunk boundaries shared by several arrays, given the axes and boundaries of each."""
    borders: dict[int, NDArray[np.int64]] = {}
    for axes, edges in arrays:
        for axis, own in zip(axes, edges, strict=True):
            borders[axis] = np.intersect1d(borders[axis], own) if axis in borders else own
    return [borders.get(axis, np.array([0, size], np.int64)) for axis, size in enumerate(shape)]


def make_unknown_name_error(
    what: str,
    name: str,
    known: Sequence[str],
    where: str = "",
    kind: ErrorKind = ErrorKind.NODE_NOT_FOUND,
) -> InvalidInputError:
    """Create the error for an unknown name, suggesting the most similar known name."""
    folded = {each.lower(): each for each in known}
    begun = [
        each for each in folded if each and (each.startswith(name.lower()) or name.lower().startswith(each))
    ]
    close = difflib.get_close_matches(name.lower(), folded, 1) or begun
    near = folded[close[0]] if close else None
    place = f" {where}" if where else ""
    hint = f"did you mean {near!r}?" if near else f"known names are {', '.join(known) or 'none'}"
    return InvalidInputError(f"there is no {what} {name!r}{place}; {hint}", kind=kind)


def list_arrays(session: Session, group: str) -> tuple[dict[str, NodeSnapshot], Mapping[str, Any]]:
    """List the arrays that are direct children of a group, by name, and the group's attributes."""
    path = "/" + group.strip("/")
    workspace = session._workspace
    node = workspace.node(path)
    if node is None and not (path == "/" or workspace.has_nodes_below(path)):
        raise NodeNotFoundError(
            f"there is no group {path} in snapshot {session.snapshot_id}", kind=ErrorKind.NODE_NOT_FOUND
        )
    if node is not None and isinstance(node.node_data, ArrayNodeData):
        raise InvalidInputError(
            f"{path} is an array; pass its group, and select the array with the option variables",
            kind=ErrorKind.NOT_A_GROUP,
        )
    prefix = path.rstrip("/") + "/"
    found = {name: workspace.node(prefix + name) for name in workspace.children(path)}
    arrays = {
        name: each
        for name, each in found.items()
        if each is not None and isinstance(each.node_data, ArrayNodeData)
    }
    attributes = json.loads(node.user_data).get("attributes", {}) if node is not None else {}
    return arrays, attributes


@dataclass(frozen=True, slots=True)
class GroupTables:
    """The schemas of all tables in a group, one per set of dimensions, with the largest table first."""

    group: str
    tables: tuple[ArrayTable, ...]
    refused: Mapping[str, InvalidInputError]
    """The errors for arrays that cannot become columns, keyed by array name."""

    def choose(self, variables: Sequence[str] | None) -> ArrayTable:
        """Return the table that contains the given variables. If no variables are given, return the group's
        only table.
        """
        if not variables:
            return self._get_only_table()
        known = {column.name for table in self.tables for column in table.columns}
        for name in variables:
            if name in self.refused:
                raise self.refused[name]
            if name not in known:
                raise make_unknown_name_error("variable", name, sorted(known), f"in group {self.group}")
        fitting = [t for t in self.tables if {column.name for column in t.columns}.issuperset(variables)]
        if len(fitting) > 1:  # only coordinates are selected, and each table has different rows
            raise make_ambiguous_table_error(self.group, fitting)
        for table in fitting:
            kept = [column.name for column in table.columns if column.role is not Role.VARIABLE]
            return table.select_columns([*kept, *variables])
        raise InvalidInputError(
            f"{', '.join(variables)} have different dimensions and do not form one table: "
            f"{describe_tables(self.tables)}",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )

    def _get_only_table(self) -> ArrayTable:
        for problem in self.refused.values():
            raise problem
        if len(self.tables) == 1:
            return self.tables[0]
        if not self.tables:
            raise InvalidInputError(
                f"group {self.group} has no arrays that form a table; select another with the option group",
                kind=ErrorKind.NODE_NOT_FOUND,
            )
        raise make_ambiguous_table_error(self.group, self.tables)


def make_ambiguous_table_error(group: str, tables: Sequence[ArrayTable]) -> InvalidInputError:
    """Create the error raised if a group has several tables and the variables do not identify one of them."""
    array = next((column.name for table in tables for column in table.variables), "name")
    return InvalidInputError(
        f"group {group} has {len(tables)} tables, because its variables have different dimensions: "
        f"{describe_tables(tables)}; select one with the option variables, or in SQL by naming a variable"
        f" or an array, such as repo{group.rstrip('/').replace('/', '.')}.{array}",
        kind=ErrorKind.INVALID_ARRAY_METADATA,
    )


def find_tables(session: Session, group: str = "/") -> GroupTables:
    """Find the tables that the arrays of a group form, with their schemas.

    A group that contains only coordinates forms one table.
    """
    path = "/" + group.strip("/")
    nodes, attributes = list_arrays(session, group)
    metadata = {name: json.loads(node.user_data) for name, node in nodes.items()}
    coordinates = _find_coordinates(metadata, attributes)
    arrays = _Group(session, path, nodes, metadata, coordinates)
    sets: dict[frozenset[str], list[str]] = {}
    refused: dict[str, InvalidInputError] = {}
    for name, document in metadata.items():
        try:
            arrays.info(name)
        except InvalidInputError as problem:
            refused[name] = problem
            continue
        if name not in coordinates:
            sets.setdefault(frozenset(get_dims(name, document)), []).append(name)
    if not sets:
        own = [frozenset(get_dims(name, metadata[name])) for name in metadata if name not in refused]
        sets = {max(own, key=len): []} if own else {}
    tables = [arrays.table(names, dims) for dims, names in sets.items()]
    ordered = sorted(tables, key=lambda table: (-len(table.dims), -len(table.variables), table.dims))
    return GroupTables(path, tuple(ordered), refused)


def describe_tables(tables: Sequence[ArrayTable]) -> str:
    """Describe tables by their dimensions and variables, for error messages."""
    return "; ".join(
        f"({', '.join(table.dims)}): {', '.join(column.name for column in table.variables)}"
        for table in tables
    )


def get_dims(name: str, metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dimension names of an array.

    Unnamed dimensions are called dim_0, dim_1, ...
    """
    rank = len(metadata["shape"])
    names = metadata.get("dimension_names") or [None] * rank
    return tuple(given or f"dim_{axis}" for axis, given in enumerate(names))


def _find_coordinates(metadata: Mapping[str, Mapping[str, Any]], attributes: Mapping[str, Any]) -> set[str]:
    """Return the names of the coordinates, by xarray's rules: variables named after their dimension, or
    listed in a `coordinates` attribute."""
    found = {name for name, document in metadata.items() if get_dims(name, document) == (name,)}
    for owner in (attributes, *(document.get("attributes", {}) for document in metadata.values())):
        named = owner.get("coordinates")
        if isinstance(named, str):
            found.update(name for name in named.split() if name in metadata)
    return found


def describe_array(path: str, metadata: Mapping[str, Any], session: Session) -> ArrayInfo:
    """Create the `ArrayInfo` of an array from its metadata."""
    name = path.rpartition("/")[2]
    attributes = metadata.get("attributes", {})
    shape = tuple(metadata["shape"])
    return ArrayInfo(
        name,
        path,
        get_dims(name, metadata),
        shape,
        tuple(_read_edges(path, metadata, session)),
        find_coding(_parse_dtype(metadata["data_type"], path), attributes, path),
        attributes,
    )


def _read_edges(path: str, metadata: Mapping[str, Any], session: Session) -> list[NDArray[np.int64]]:
    shape = metadata["shape"]
    grid = metadata["chunk_grid"]
    if grid["name"] == "regular":
        sizes = grid["configuration"]["chunk_shape"]
        starts = [np.arange(0, length, max(size, 1)) for length, size in zip(shape, sizes, strict=True)]
        return [np.append(start, length) for start, length in zip(starts, shape, strict=True)]
    import zarr

    array: Any = zarr.open_array(session.store, path=path, mode="r")
    return [np.cumsum([0, *sizes]) for sizes in array.write_chunk_sizes]


def _parse_dtype(data_type: Any, path: str) -> np.dtype[Any]:
    if isinstance(data_type, str) and data_type in _PLAIN_TYPES:
        return np.dtype(data_type)
    from zarr.dtype import parse_dtype

    try:
        return np.dtype(parse_dtype(data_type, zarr_format=3).to_native_dtype())
    except (ValueError, TypeError) as error:
        raise InvalidInputError(
            f"{path} has the data type {json.dumps(data_type)}, which cannot be read: {error}",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        ) from None


_PLAIN_TYPES: Final = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)


class _Group:
    """The arrays of a group, from which tables are built."""

    def __init__(
        self,
        session: Session,
        path: str,
        nodes: Mapping[str, NodeSnapshot],
        metadata: Mapping[str, Mapping[str, Any]],
        coordinates: set[str],
    ) -> None:
        self._session = session
        self._path = path
        self._nodes = nodes
        self._metadata = metadata
        self._coordinates = sorted(coordinates)
        self._infos: dict[str, ArrayInfo] = {}

    def table(self, names: Sequence[str], dims: frozenset[str]) -> ArrayTable:
        """Build a table from variables with the given dimensions."""
        infos = [self.info(name) for name in names]
        order = infos[0].dims if infos else self._find_order(dims)
        sizes = self._check_sizes(infos, order)
        columns = [column for dim in order for column in self._make_dimension(dim, order)]
        for name in self._coordinates:
            own = get_dims(name, self._metadata[name])
            if name not in order and dims.issuperset(own):
                columns += self._make_columns(self.info(name), Role.AUXILIARY, order)
        for info in infos:
            columns += self._make_columns(info, Role.VARIABLE, order)
        return ArrayTable(self._path, order, tuple(sizes[dim] for dim in order), tuple(columns))

    def _find_order(self, dims: frozenset[str]) -> tuple[str, ...]:
        return next(
            own
            for name, document in self._metadata.items()
            if (own := get_dims(name, document)) and frozenset(own) == dims
        )

    def info(self, name: str) -> ArrayInfo:
        """Return the ArrayInfo of an array. Raise InvalidInputError if the array cannot be a column."""
        if name not in self._infos:
            info = describe_array(self._nodes[name].path, self._metadata[name], self._session)
            if len(set(info.dims)) < len(info.dims):
                raise InvalidInputError(
                    f"{info.path} has a dimension twice, ({', '.join(info.dims)}), so it cannot be a table",
                    kind=ErrorKind.INVALID_ARRAY_METADATA,
                )
            if name in self._coordinates and info.coding.times is not None and len(info.dims) <= 1:
                info = replace(info, coding=info.coding.fit_values(read_array(self._session, info)))
            self._infos[name] = info
        return self._infos[name]

    def _check_sizes(self, infos: Sequence[ArrayInfo], order: Sequence[str]) -> dict[str, int]:
        named = [self.info(dim) for dim in order if dim in self._coordinates]
        sizes: dict[str, int] = {}
        for info in (*infos, *named):
            for dim, size in zip(info.dims, info.shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    raise InvalidInputError(
                        f"dimension {dim} of group {self._path} has length {sizes[dim]} in one array and"
                        f" {size} in {info.name}",
                        kind=ErrorKind.INVALID_ARRAY_METADATA,
                    )
        return sizes

    def _make_dimension(self, dim: str, order: Sequence[str]) -> list[Column]:
        if dim in self._coordinates and get_dims(dim, self._metadata[dim]) == (dim,):
            return self._make_columns(self.info(dim), Role.DIMENSION, order)
        return [Column(dim, Role.DIMENSION, (order.index(dim),), None, None)]

    def _make_columns(self, info: ArrayInfo, role: Role, order: Sequence[str]) -> list[Column]:
        axes = tuple(order.index(dim) for dim in info.dims)
        columns = [Column(info.name, role, axes, info, info.coding)]
        if info.coding.times is not None and info.coding.arrow == pa.string():
            columns.append(Column(info.name + NUMERIC, role, axes, info, info.coding, numeric=True))
        return columns


def read_array(session: Session, info: ArrayInfo) -> NDArray[Any]:
    """Read all stored values of an array. Intended for coordinates."""
    import zarr

    array: Any = zarr.open_array(session.store, path=info.path, mode="r")
    return np.asarray(array[...])
