"""Snapshots: all nodes of a repository at one commit, and the manifests of its arrays."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe._internal.paths import ROOT, normalize
from icefloe.encoding.columns import Blobs
from icefloe.encoding.flatbuffers.reader import Payload, read_tables
from icefloe.encoding.flatbuffers.records import FEW, Records
from icefloe.encoding.flatbuffers.row_builder import Blocks, Row
from icefloe.encoding.flatbuffers.schema import TableSchema
from icefloe.encoding.flatbuffers.tables import Tables, Union, from_rows, to_rows
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.extents import find_overlapping
from icefloe.format.id_columns import are_ids_ascending, find_id, is_member, sort_ids, to_ids, view_id_keys
from icefloe.format.metadata import Metadata
from icefloe.format.schema import ARRAY_NODE, ARRAY_NODE_DATA, GROUP_NODE, MANIFEST_FILE_INFO, NODE_SNAPSHOT


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A snapshot's reference to the manifest that covers one region of an array's chunk grid."""

    id: ManifestId
    extents: tuple[range, ...]
    """The range of chunk indices along each dimension; None if the writer omitted the extents."""


@dataclass(frozen=True, slots=True)
class DimensionShape:
    """The length of one dimension of an array, in elements and in chunks."""

    array_length: int
    num_chunks: int


@dataclass(frozen=True, slots=True)
class ArrayNodeData:
    """The snapshot fields of an array besides its zarr.json: shape, dimension names and manifests."""

    shape: tuple[DimensionShape, ...]
    manifests: tuple[ManifestRef, ...] = ()
    dimension_names: tuple[str | None, ...] | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """The shape of the array in elements."""
        return tuple(dimension.array_length for dimension in self.shape)

    @property
    def names(self) -> tuple[str | None, ...]:
        """The dimension names of the array; None for a dimension without a name."""
        return self.dimension_names or (None,) * len(self.shape)


@dataclass(frozen=True, slots=True)
class GroupNodeData:
    """The snapshot fields of a group besides its zarr.json. There are none."""


NodeData: TypeAlias = ArrayNodeData | GroupNodeData


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A node in a snapshot: a group or an array."""

    id: NodeId
    path: str
    user_data: bytes
    """The zarr.json of the node."""
    node_data: NodeData
    extra: bytes | None = None

    @property
    def array(self) -> ArrayNodeData:
        """The array data of the node. Raises TypeError if the node is a group."""
        if not isinstance(self.node_data, ArrayNodeData):
            raise TypeError(f"{self.path} is a group")
        return self.node_data


@dataclass(frozen=True, slots=True)
class ManifestFileInfo:
    """The entry of a manifest file in a snapshot's list of manifest files."""

    id: ManifestId
    size_bytes: int
    num_chunk_refs: int
    extra: bytes | None = None


_NO_NODES: Final = Tables(0, {}, {})
_TODAYS_ARRAY: Final = TableSchema(
    "ArrayNodeData", {name: field for name, field in ARRAY_NODE_DATA.fields.items() if name != "shape"}
)
_CURRENT_NODE: Final = TableSchema(
    "NodeSnapshot",
    {
        **NODE_SNAPSHOT.fields,
        "node_data": replace(
            NODE_SNAPSHOT.fields["node_data"],  # type: ignore[call-arg]
            tables={GROUP_NODE: TableSchema("GroupNodeData", {}), ARRAY_NODE: _TODAYS_ARRAY},
        ),
    },
)
"""The `NodeSnapshot` schema without the V1 form of the array shape."""


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Validated columns of nodes, and the row of each path."""

    columns: Tables
    rows: Mapping[str, int]


class Nodes:
    """All nodes of a snapshot by path, sorted by the UTF-8 bytes of the path.

    Small hierarchies are stored as objects, large ones as columns. Columns are also created on demand.

    Parameters
    ----------
    columns
        The nodes, in any order.
    place
        The name of the file, for errors.

    Raises
    ------
    FormatError
        If the nodes violate the specification.
    """

    __slots__ = ("_load", "_place", "_sorted", "few", "written")

    few: Mapping[str, NodeSnapshot] | None
    """The nodes by path, in order; only set if there are few nodes."""
    written: Blocks | None
    """The encoded tables of the nodes, in order; None until a snapshot file is written."""

    def __init__(self, columns: Tables, place: str = "snapshot") -> None:
        self.few = None
        self.written = None
        self._place = place
        self._load: Callable[[], Tables] = lambda: columns
        self._sorted: _Sorted | None = _sort_nodes(columns, place)

    @property
    def columns(self) -> Tables:
        """The nodes of a snapshot as columns of `NodeSnapshot` tables."""
        return self._list_all().columns

    @property
    def _rows(self) -> Mapping[str, Any]:
        return self._list_all().rows if self.few is None else self.few

    def _list_all(self) -> _Sorted:
        if self._sorted is None:
            self._sorted = _sort_nodes(self._load(), self._place)
        return self._sorted

    @staticmethod
    def of(nodes: Iterable[NodeSnapshot], place: str = "snapshot") -> Nodes:
        """Create the nodes of a snapshot from unsorted nodes."""
        given = list(nodes)
        if len(given) > FEW:
            return Nodes(from_rows(NODE_SNAPSHOT, [make_node_row(node) for node in given]), place)
        made = object.__new__(Nodes)
        made.few = few = _sort_few(given, place)
        made.written = None
        made._place = place
        made._load = lambda: from_rows(NODE_SNAPSHOT, [make_node_row(node) for node in few.values()])
        made._sorted = None
        return made

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[NodeSnapshot]:
        if self.few is not None:
            return iter(self.few.values())
        return map(make_node, to_rows(NODE_SNAPSHOT, self.columns, self._place))

    def __contains__(self, path: str) -> bool:
        return path in self._rows

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Nodes) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def paths(self) -> list[str]:
        """Return the paths of all nodes of a snapshot, in order."""
        return list(self._rows)

    def find(self, path: str) -> NodeSnapshot | None:
        """Return the node at a path of the snapshot; None if there is none."""
        if self.few is not None:
            return self.few.get(path)
        row = self._rows.get(path)
        return None if row is None else get_node_at(self.columns, row, self._place)

    def with_changes(self, put: Iterable[NodeSnapshot], remove: Iterable[str] = ()) -> Nodes:
        """Return a copy of these nodes in which some paths are added or replaced, and other paths are
        removed.
        """
        fresh = list(put)
        gone = {*remove, *(node.path for node in fresh)}
        if self.few is not None:
            return Nodes.of([*(node for path, node in self.few.items() if path not in gone), *fresh])
        if self.written is not None and len(gone) <= FEW and self.written.dropped <= len(self):
            return SplicedNodes.over(self, self.written, fresh, gone)
        keep = np.ones(len(self), np.bool_)
        keep[[self._rows[path] for path in gone if path in self._rows]] = False
        parts = [self.columns.take(keep), from_rows(NODE_SNAPSHOT, [make_node_row(node) for node in fresh])]
        return Nodes(Tables.concat([part for part in parts if len(part)] or parts[:1]), self._place)

    def find_arrays_of(self, manifests: Collection[ManifestId]) -> list[tuple[str, NodeId, int, ManifestId]]:
        """Find the arrays whose only manifest is one of the given manifests. Return path, id, dimensions and
        manifest of each.
        """
        if self.few is not None:
            return [
                (path, node.id, len(node.array.shape), node.array.manifests[0].id)
                for path, node in self.few.items()
                if isinstance(node.node_data, ArrayNodeData)
                and len(node.array.manifests) == 1
                and node.array.manifests[0].id in manifests
            ]
        rows, arrays, single = self._find_single_manifests()
        if arrays is None or not len(rows) or not manifests:
            return []
        used = arrays["manifests"].items["object_id"][arrays["manifests"].splits[:-1][single]]
        wanted = is_member(used, sort_ids(np.frombuffer(b"".join(manifests), np.uint8).reshape(-1, 12)))
        shapes, paths, ids = arrays.columns.get("shape_v2"), self.paths(), self.columns["id"]
        ranks = np.zeros(len(rows), np.int64) if shapes is None else shapes.lengths[single]
        return [
            (paths[row], NodeId(ids[row].tobytes()), rank, ManifestId(id.tobytes()))
            for row, rank, id in zip(rows[wanted].tolist(), ranks[wanted].tolist(), used[wanted], strict=True)
        ]

    def _find_single_manifests(self) -> tuple[NDArray[np.int64], Tables | None, NDArray[np.bool_]]:
        """Return the rows of the arrays that have exactly one manifest, the columns of all arrays, and a mask
        of the selected arrays.
        """
        union = self.columns["node_data"] if len(self) else None
        arrays = None if union is None else union.tables.get(ARRAY_NODE)
        if union is None or arrays is None:
            return np.zeros(0, np.int64), None, np.zeros(0, np.bool_)
        single = arrays["manifests"].lengths == 1
        return np.flatnonzero(union.kinds == ARRAY_NODE)[single], arrays, single

    def with_manifests(self, ids: Mapping[str, ManifestId]) -> Nodes:
        """Return a copy of these nodes with another manifest for some of the arrays that have exactly one
        manifest.
        """
        if not ids:
            return self
        if self.few is not None:
            changed = []
            for path, id in ids.items():
                node = self.few[path]
                refs = (replace(node.array.manifests[0], id=id),)
                changed.append(replace(node, node_data=replace(node.array, manifests=refs)))
            return self.with_changes(changed)
        rows, arrays, single = self._find_single_manifests()
        if arrays is None:
            raise KeyError(next(iter(ids)))
        manifests, paths = arrays["manifests"], self.paths()
        column = manifests.items["object_id"].copy()
        places = dict(zip(rows.tolist(), manifests.splits[:-1][single].tolist(), strict=True))
        chosen = [(places[self._rows[path]], id) for path, id in ids.items()]
        column[[place for place, _ in chosen]] = np.frombuffer(
            b"".join(id for _, id in chosen), np.uint8
        ).reshape(-1, 12)
        items = replace(manifests.items, columns={**manifests.items.columns, "object_id": column})
        union = self.columns["node_data"]
        data = replace(arrays, columns={**arrays.columns, "manifests": replace(manifests, items=items)})
        tables = {**self.columns.columns, "node_data": Union(union.kinds, {**union.tables, ARRAY_NODE: data})}
        copy = object.__new__(Nodes)
        copy.few = copy.written = None
        copy._place, copy._load = self._place, self._load
        copy._sorted = _Sorted(replace(self.columns, columns=tables), {p: row for row, p in enumerate(paths)})
        return copy


class SplicedNodes(Nodes):
    """The nodes of a large snapshot after a few changes, which reuse the encoded tables of unchanged
    nodes.
    """

    __slots__ = ("_paths", "used")

    used: Mapping[ManifestId, int]
    """For each manifest, the number of references from arrays."""

    def __init__(self, paths: list[str], used: Mapping[ManifestId, int], written: Blocks, place: str) -> None:
        self.few = None
        self.written = written
        self.used = used
        self._paths = paths
        self._place = place
        self._load = lambda: self._read(written, slice(None))
        self._sorted = None

    @staticmethod
    def over(
        base: Nodes, written: Blocks, fresh: Sequence[NodeSnapshot], gone: Collection[str]
    ) -> SplicedNodes:
        """Create the nodes of a new snapshot from those of its base, with some paths removed and some nodes
        added.
        """
        used = Counter(base.used if isinstance(base, SplicedNodes) else _count_manifests(base))
        for path in gone:
            used.subtract(_get_manifests(base.find(path)))
        for node in fresh:
            used.update(_get_manifests(node))
        paths = base.paths()
        rows = sorted(row for path in gone if (row := _find_row(path, paths)) is not None)
        for row in reversed(rows):
            del paths[row]
        kept = written.without(rows)
        places: list[tuple[int, NodeSnapshot]] = []
        for path, node in _sort_few(fresh, base._place).items():
            row = bisect_left(paths, path)
            places.append((row - len(places), node))  # the row before any of the new nodes was inserted
            paths.insert(row, path)
        added = kept.upsert(
            [row for row, _ in places],
            [False] * len(places),
            NODE_SNAPSHOT,
            [_table_row(node) for _, node in places],
            base._place,
        )
        return SplicedNodes(paths, +used, added, base._place)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, path: str) -> bool:
        return _find_row(path, self._paths) is not None

    def paths(self) -> list[str]:
        # docstring inherited
        return list(self._paths)

    def find(self, path: str) -> NodeSnapshot | None:
        # docstring inherited
        row = _find_row(path, self._paths)
        if row is None or self.written is None:
            return None
        return get_node_at(self._read(self.written, slice(row, row + 1)), 0, self._place)

    def _read(self, written: Blocks, rows: slice) -> Tables:
        return read_tables(Payload(written.buffer, self._place), _CURRENT_NODE, written.positions[rows])


def _find_row(path: str, paths: Sequence[str]) -> int | None:
    row = bisect_left(paths, path)
    return row if row < len(paths) and paths[row] == path else None


def _get_manifests(node: NodeSnapshot | None) -> list[ManifestId]:
    data = None if node is None else node.node_data
    return [ref.id for ref in data.manifests] if isinstance(data, ArrayNodeData) else []


def _count_manifests(nodes: Nodes) -> dict[ManifestId, int]:
    arrays = nodes.columns["node_data"].tables.get(ARRAY_NODE)
    if arrays is None or not len(arrays["manifests"].items):
        return {}
    keys, counts = np.unique(view_id_keys(arrays["manifests"].items["object_id"]), return_counts=True)
    return dict(zip(to_ids(keys, ManifestId), counts.tolist(), strict=True))


def _table_row(node: NodeSnapshot) -> Row:
    """Return a node as a row in the current format, without the V1 form of the shape."""
    row = make_node_row(node)
    kind, data = row["node_data"]
    return row if kind == GROUP_NODE else {**row, "node_data": (kind, {**data, "shape": ()})}


def _sort_few(nodes: Sequence[NodeSnapshot], place: str) -> dict[str, NodeSnapshot]:
    """Check and sort a few nodes, like `_sort_nodes`."""
    paths = [node.path for node in nodes]
    canonical = canonicalize_paths(paths, place)
    if canonical is not paths:
        nodes = [replace(node, path=path) for node, path in zip(nodes, canonical, strict=True)]
    found = {node.path: node for node in sorted(nodes, key=attrgetter("path"))}
    if len(found) != len(nodes):
        ((twice, _),) = Counter(node.path for node in nodes).most_common(1)
        raise FormatError(f"{place}: two nodes at {twice}", kind=ErrorKind.INVALID_FILE_FORMAT)
    split = [n for n in nodes if isinstance(n.node_data, ArrayNodeData) and len(n.node_data.manifests) > 1]
    columns = from_rows(NODE_SNAPSHOT, [make_node_row(node) for node in split]) if split else _NO_NODES
    _check_extents(columns, [node.path for node in split], place)
    return found


def _sort_nodes(columns: Tables, place: str) -> _Sorted:
    paths = columns["path"].texts(f"{place}: NodeSnapshot.path") if len(columns) else []
    canonical = canonicalize_paths(paths, place)
    if canonical is not paths:
        paths = canonical
        columns = Tables(len(columns), {**columns.columns, "path": Blobs.from_texts(paths)}, columns.present)
    in_order = sorted(paths)  # code points sort like their UTF-8 bytes
    if paths != in_order:
        columns = columns.take(np.array(sorted(range(len(paths)), key=paths.__getitem__)))
        paths = in_order
    rows = {path: row for row, path in enumerate(paths)}
    if len(rows) != len(paths):
        twice = next(path for path, after in pairwise(paths) if path == after)
        raise FormatError(f"{place}: two nodes at {twice}", kind=ErrorKind.INVALID_FILE_FORMAT)
    _check_extents(columns, paths, place)
    return _Sorted(columns, rows)


def _check_extents(columns: Tables, paths: Sequence[str], place: str) -> None:
    if not len(columns):
        return
    arrays = columns["node_data"].tables.get(ARRAY_NODE)
    if arrays is None:
        return
    bad = find_overlapping(arrays["manifests"])
    if bad is not None:
        row = int(np.flatnonzero(columns["node_data"].kinds == ARRAY_NODE)[bad])
        raise FormatError(
            f"{place}: manifests of {paths[row]} cover the same chunks",
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )


def canonicalize_paths(paths: Sequence[str], place: str) -> Sequence[str]:
    """Drop `.` and empty segments from node paths, like official readers. Canonical paths are returned
    unchanged.
    """
    if _is_all_canonical([path for path in paths if path != ROOT]):
        return paths
    try:
        return [normalize(path) for path in paths]
    except InvalidInputError as error:
        raise FormatError(f"{place}: {error.message}", kind=ErrorKind.INVALID_FILE_FORMAT) from None


def _is_all_canonical(paths: Sequence[str]) -> bool:
    """Return True if all paths are certainly canonical, judging from their concatenation. False may be a
    false alarm.
    """
    whole = "/".join(paths) + "/"
    suspicious = "///" in whole or "/./" in whole or "/../" in whole
    starts = {path[:1] for path in paths}
    return not suspicious and starts <= {"/"} and whole.count("//") == max(len(paths) - 1, 0)


def get_node_at(columns: Tables, row: int, place: str) -> NodeSnapshot:
    """Return the node in one row of the columns."""
    return make_node(to_rows(NODE_SNAPSHOT, columns.take(slice(row, row + 1)), place)[0])


def make_node_row(node: NodeSnapshot) -> dict[str, Any]:
    """Encode a node as a row of a `NodeSnapshot` table."""
    row = {"id": node.id, "path": node.path, "user_data": node.user_data, "extra": node.extra}
    if isinstance(node.node_data, GroupNodeData):
        return row | {"node_data": (GROUP_NODE, {})}
    data = node.node_data
    array = {
        "shape_v2": [{"array_length": d.array_length, "num_chunks": d.num_chunks} for d in data.shape],
        "manifests": [
            {"object_id": ref.id, "extents": [(r.start, r.stop) for r in ref.extents]}
            for ref in data.manifests
        ],
    }
    if data.dimension_names is not None:
        array["dimension_names"] = [{"name": name or None} for name in data.dimension_names]
    return row | {"node_data": (ARRAY_NODE, array)}


def make_node(row: Row) -> NodeSnapshot:
    """Decode a node from a row of a `NodeSnapshot` table."""
    kind, data = row["node_data"]
    node_data: NodeData = GroupNodeData()
    if kind == ARRAY_NODE:
        names = data["dimension_names"]
        node_data = ArrayNodeData(
            shape=tuple(DimensionShape(d["array_length"], d["num_chunks"]) for d in data["shape_v2"] or ()),
            manifests=tuple(
                ManifestRef(ManifestId(ref["object_id"]), tuple(range(*pair) for pair in ref["extents"]))
                for ref in data["manifests"]
            ),
            dimension_names=None if names is None else tuple(entry["name"] or None for entry in names),
        )
    return NodeSnapshot(NodeId(row["id"]), row["path"], row["user_data"], node_data, row["extra"])


class ManifestFiles:
    """The list of manifest files in a snapshot, sorted by id."""

    __slots__ = ("ids", "records")

    ids: NDArray[np.uint8]
    """The ids of the manifest files, of shape (n, 12)."""

    def __init__(self, records: Records) -> None:
        self.records = records
        if records.few:
            self.ids = np.frombuffer(b"".join(row["id"] for row in records.rows()), np.uint8).reshape(-1, 12)
        else:
            self.ids = records.columns["id"]
        if not are_ids_ascending(self.ids):
            raise FormatError(
                f"{records.place}: manifest files are not in ascending order of their ids",
                kind=ErrorKind.INVALID_FILE_FORMAT,
            )

    @staticmethod
    def of(infos: Iterable[ManifestFileInfo]) -> ManifestFiles:
        """Create a snapshot's list of manifest files from unsorted entries."""
        ordered = sorted({info.id: info for info in infos}.items())
        return ManifestFiles(_make_file_records([_make_file_row(info) for _, info in ordered]))

    def keep(self, used: Collection[ManifestId], written: Iterable[ManifestFileInfo]) -> ManifestFiles:
        """Return a copy of the list with only the entries that are still used, plus the entries of new
        manifest files.
        """
        new = sorted(written, key=attrgetter("id"))
        if self.records.few:
            kept = {bytes(row["id"]): row for row in self.records.rows() if ManifestId(row["id"]) in used}
            kept |= {bytes(info.id): _make_file_row(info) for info in new}
            return ManifestFiles(_make_file_records([kept[id] for id in sorted(kept)]))
        column = np.frombuffer(b"".join(sorted(used)), np.uint8).reshape(-1, 12)
        parts = [self.records.columns.take(is_member(self.ids, column))]
        parts.append(from_rows(MANIFEST_FILE_INFO, list(map(_make_file_row, new))))
        filled = [part for part in parts if len(part)]
        if not filled:
            return ManifestFiles.of([])
        joined = Tables.concat(filled)
        ordered = joined.take(view_id_keys(joined["id"]).argsort(kind="stable"))
        return ManifestFiles(Records(MANIFEST_FILE_INFO, self.records.place, columns=ordered))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[ManifestFileInfo]:
        return map(_make_file_info, self.records.rows())

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, ManifestFiles) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def find(self, manifest_id: ManifestId) -> ManifestFileInfo | None:
        """Return the entry of a manifest file; None if it is not listed."""
        row = self.row(manifest_id)
        return None if row is None else _make_file_info(self.records.row(row))

    def row(self, manifest_id: ManifestId) -> int | None:
        """Return the row of a manifest file; None if it is not listed."""
        return find_id(self.ids, manifest_id)


def _make_file_records(rows: Sequence[Row]) -> Records:
    if len(rows) <= FEW:
        return Records(MANIFEST_FILE_INFO, "snapshot", rows=rows)
    return Records(MANIFEST_FILE_INFO, "snapshot", columns=from_rows(MANIFEST_FILE_INFO, rows))


def _make_file_row(info: ManifestFileInfo) -> Row:
    return {
        "id": info.id,
        "size_bytes": info.size_bytes,
        "num_chunk_refs": info.num_chunk_refs,
        "extra": info.extra,
    }


def _make_file_info(row: Row) -> ManifestFileInfo:
    return ManifestFileInfo(ManifestId(row["id"]), row["size_bytes"], row["num_chunk_refs"], row["extra"])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: the state of a repository at one commit."""

    id: SnapshotId
    parent_id: SnapshotId | None
    """The id of the parent. Also None if the format records the parent only in the repo info file."""
    flushed_at_us: int
    """The time of the commit, in microseconds since 1970-01-01 UTC."""
    message: str
    metadata: Metadata
    manifest_files: ManifestFiles
    nodes: Nodes
    extra: bytes | None = None


def list_used_manifests(nodes: Nodes) -> list[ManifestId]:
    """Return the ids of all manifests that the arrays of a snapshot refer to, sorted and unique."""
    if isinstance(nodes, SplicedNodes):
        return sorted(nodes.used)
    if nodes.few is not None:
        data = [node.node_data for node in nodes]
        refs = (ref for each in data if isinstance(each, ArrayNodeData) for ref in each.manifests)
        return sorted({ref.id for ref in refs})
    arrays = nodes.columns["node_data"].tables.get(ARRAY_NODE) if len(nodes) else None
    if arrays is None or not len(arrays["manifests"].items):
        return []
    return to_ids(np.unique(view_id_keys(arrays["manifests"].items["object_id"])), ManifestId)
