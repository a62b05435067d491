"""Select the part of a hierarchy to export: a group, some of its arrays, and ranges of their dimensions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from icefloe._internal.extras import format_install_command
from icefloe._internal.paths import LEDGERS, ROOT, get_parent, is_within, join, normalize
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.session import Session

Indexers = Mapping[str, slice | int]
"""The selection by index for each dimension: a slice or a single index."""
Labels = Mapping[str, Any]
"""The selection by label for each dimension: a single label, or an inclusive slice of labels."""

_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Selected:
    """An array to export, with the selected index range along each dimension."""

    node: NodeSnapshot
    spans: tuple[range, ...]

    @property
    def is_whole(self) -> bool:
        """True if the whole array is exported."""
        return all(len(span) == size for span, size in zip(self.spans, self.node.array.lengths, strict=True))


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """The groups and arrays to export. The first group becomes the root of the export."""

    top: str
    groups: tuple[NodeSnapshot, ...]
    arrays: tuple[Selected, ...]

    def name(self, path: str) -> str:
        """Return the path of a selected node relative to the root of the export."""
        return path.removeprefix(self.top).strip("/")


def select(
    session: Session,
    group: str,
    variables: Iterable[str] | None,
    isel: Indexers | None,
    sel: Labels | None,
) -> ExportSelection:
    """Select the groups, arrays and elements to export. Errors name the group, variable or label that is
    missing.
    """
    top = normalize(group if group.startswith("/") else f"/{group}")
    nodes = list(_list_nodes(session, top))
    arrays = [node for node in nodes if isinstance(node.node_data, ArrayNodeData)]
    if variables is not None:
        arrays = _with_coordinates(arrays, top, list(variables))
    spans = _find_spans(session, arrays, top, isel or {}, sel or {})
    chosen = tuple(_select_node(node, spans) for node in arrays)
    groups = [node for node in nodes if not isinstance(node.node_data, ArrayNodeData)]
    if variables is not None:
        groups = [
            node for node in groups if node.path == top or any(is_within(a.path, node.path) for a in arrays)
        ]
    return ExportSelection(top, tuple(groups), chosen)


def make_too_long_error(name: str, place: str, limit: str) -> InvalidInputError:
    """Create the error for a name that is too long for the export target."""
    shown = name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}..."
    return InvalidInputError(
        f"the name {shown!r} of {len(name.encode())} bytes is too long for {place} ({limit}); choose what "
        "to export with `variables`, or rename it with Session.move",
        kind=ErrorKind.INVALID_PATH,
    )


def _list_nodes(session: Session, top: str) -> Iterator[NodeSnapshot]:
    workspace = session._workspace
    node = workspace.node(top)
    if node is None:
        raise NodeNotFoundError(f"node not found: there is no group {top}", kind=ErrorKind.NODE_NOT_FOUND)
    if isinstance(node.node_data, ArrayNodeData):
        raise InvalidInputError(
            f"{top} is an array; export its group with variables=[...]", kind=ErrorKind.NOT_A_GROUP
        )
    for path in workspace.below(top):
        found = workspace.node(path)
        if found is not None and not (top == ROOT and is_within(path, LEDGERS)):
            yield found


def _with_coordinates(arrays: list[NodeSnapshot], top: str, names: list[str]) -> list[NodeSnapshot]:
    """Find arrays by name, and include their dimension coordinates."""
    known = {node.path: node for node in arrays}
    wanted: dict[str, NodeSnapshot] = {}
    for name in names:
        path = normalize(f"{top}/{name}")
        if path not in known:
            there = ", ".join(sorted(node.path for node in arrays)) or "none"
            raise NodeNotFoundError(
                f"node not found: no array {path}; arrays are {there}", kind=ErrorKind.NODE_NOT_FOUND
            )
        wanted[path] = known[path]
        above = get_parent(path) or ROOT
        listed = str(json.loads(known[path].user_data).get("attributes", {}).get("coordinates", "")).split()
        for other in (*known[path].array.names, *listed):
            coordinate = join(above, other) if other and "/" not in other else None
            if coordinate in known:
                wanted[coordinate] = known[coordinate]
    return [node for node in arrays if node.path in wanted]


def _find_spans(
    session: Session, arrays: list[NodeSnapshot], top: str, isel: Indexers, sel: Labels
) -> dict[str, range]:
    """Find the selected index range of each dimension. All arrays must agree on the length of a dimension."""
    sizes: dict[str, int] = {}
    for node in arrays:
        for name, size in zip(node.array.names, node.array.lengths, strict=True):
            if name is None or name not in {*isel, *sel}:
                continue
            if sizes.setdefault(name, size) != size:
                raise InvalidInputError(
                    f"dimension {name} has {sizes[name]} elements in one array and {size} in {node.path}; "
                    "export a smaller group, or some variables",
                    kind=ErrorKind.INVALID_CHUNK_INDEX,
                )
    both = isel.keys() & sel.keys()
    if both:
        raise InvalidInputError(
            f"dimension {sorted(both)[0]} is selected both by index and by label",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    for name in (*isel, *sel):
        if name not in sizes:
            there = sorted({each for node in arrays for each in node.array.names if each is not None})
            raise InvalidInputError(
                f"the exported arrays have no dimension {name!r}; dimensions are"
                f" {', '.join(there) or 'none'}",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
    found = {name: _resolve_span(name, wanted, sizes[name]) for name, wanted in isel.items()}
    if sel:
        found |= find_positions(session, top, sel)
    return found


def _resolve_span(name: str, wanted: slice | int, size: int) -> range:
    if not isinstance(wanted, slice):
        if not -size <= wanted < size:
            raise InvalidInputError(
                f"{name}={wanted} is out of bounds for a dimension with {size} elements",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
        return range(wanted % size, wanted % size + 1)
    if wanted.step not in (None, 1):
        raise InvalidInputError(
            f"{name}={wanted}: exports do not support steps", kind=ErrorKind.INVALID_CHUNK_INDEX
        )
    return range(*wanted.indices(size))


def _select_node(node: NodeSnapshot, spans: Mapping[str, range]) -> Selected:
    chosen = tuple(
        range(size) if name is None else spans.get(name, range(size))
        for name, size in zip(node.array.names, node.array.lengths, strict=True)
    )
    found = Selected(node, tuple(span if len(span) else range(0) for span in chosen))
    grid = json.loads(node.user_data)["chunk_grid"]["name"]
    if not found.is_whole and grid != "regular":
        raise InvalidInputError(
            f"{node.path} has a {grid} chunk grid, so only the whole array can be exported",
            kind=ErrorKind.UNIMPLEMENTED,
        )
    return found


def find_positions(session: Session, group: str, sel: Labels) -> dict[str, range]:
    """Convert selected labels to index ranges. Label slices include both ends."""
    return {
        name: _find_position(_index(session, join(group, name)), name, label) for name, label in sel.items()
    }


def _index(session: Session, path: str) -> Any:
    """Decode one coordinate as xarray does, and return its index. Return None if it does not exist."""
    try:
        import xarray
    except ImportError as cause:
        raise ImportError(
            f"selecting by label requires xarray: {format_install_command('xarray')}"
        ) from cause
    import zarr

    node = session._workspace.node(path)
    if node is None or not isinstance(node.node_data, ArrayNodeData) or len(node.node_data.shape) != 1:
        return None
    dimension = path.rpartition("/")[2]
    array: Any = zarr.open_array(session.store, path=path.strip("/"), mode="r")
    raw = xarray.Variable(dimension, array[...], dict(array.attrs))
    return xarray.conventions.decode_cf_variable(dimension, raw).to_index_variable().to_index()


def _find_position(index: Any, name: str, label: Any) -> range:
    if index is None or not len(index):
        raise InvalidInputError(
            f"dimension {name} has no coordinate with labels; select by index",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    try:
        if isinstance(label, slice):
            found = index.slice_indexer(label.start, label.stop)
        else:
            found = index.get_loc(label)
    except (KeyError, TypeError, ValueError):
        raise InvalidInputError(
            f"{name}={label}: not found in a coordinate from {index[0]} to {index[-1]}"
            f"{_suggest_nearest(index, label)}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        ) from None
    if isinstance(found, slice) and found.step in (None, 1):
        return range(*found.indices(len(index)))
    if isinstance(found, int):
        return range(found, found + 1)
    raise InvalidInputError(
        f"{name}={label} selects elements that are not consecutive", kind=ErrorKind.INVALID_CHUNK_INDEX
    )


def _suggest_nearest(index: Any, label: Any) -> str:
    """Return a hint with the nearest existing label, or an empty hint if the labels cannot be ordered."""
    try:
        (found,) = index.get_indexer([label], method="nearest")
    except (KeyError, TypeError, ValueError):
        return ""
    return f"; the nearest is {index[found]}" if found >= 0 else ""
