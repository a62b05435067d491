"""Encode and decode snapshot files, and look up single nodes in large snapshots."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import SnapshotId
from icefloe.encoding.columns import Ragged, to_splits
from icefloe.encoding.flatbuffers.builder import build_column_blocks
from icefloe.encoding.flatbuffers.cursor import Cursor, Slots
from icefloe.encoding.flatbuffers.reader import Payload, read_tables
from icefloe.encoding.flatbuffers.records import FEW, Records
from icefloe.encoding.flatbuffers.row_builder import Blocks, Row, build_row
from icefloe.encoding.flatbuffers.row_reader import read_row
from icefloe.encoding.flatbuffers.schema import TableSchema
from icefloe.encoding.flatbuffers.tables import Tables, Union
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.id_columns import is_member
from icefloe.format.metadata import make_metadata_rows, read_metadata
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.schema import (
    ARRAY_NODE,
    ARRAY_NODE_DATA,
    MANIFEST_FILE_INFO,
    MANIFEST_FILE_V1,
    NODE_SNAPSHOT,
    SNAPSHOT,
)
from icefloe.format.snapshot import (
    ManifestFiles,
    Nodes,
    NodeSnapshot,
    Snapshot,
    canonicalize_paths,
    get_node_at,
    list_used_manifests,
    make_node,
    make_node_row,
)
from icefloe.format.spec import Spec

LAZY_FROM: Final = 1000
"""Snapshots with at least this many nodes are decoded lazily, one node at a time."""

_HEAD: Final = TableSchema("Snapshot", {name: f for name, f in SNAPSHOT.fields.items() if name != "nodes"})
_INFO_FIELDS: Final = ("id", "parent_id", "flushed_at", "message", "metadata")
_INFO: Final = TableSchema("Snapshot", {name: SNAPSHOT.fields[name] for name in _INFO_FIELDS})
_NODES: Final = TableSchema("Snapshot", {"nodes": SNAPSHOT.fields["nodes"]})
_PATHS: Final = TableSchema("NodeSnapshot", {"path": NODE_SNAPSHOT.fields["path"]})
_SHAPE_V1: Any = ARRAY_NODE_DATA.fields["shape"].dtype  # type: ignore[attr-defined]
_U32_MAX = np.uint64(0xFFFFFFFF)


def decode_snapshot(payload: Payload, spec: Spec) -> Snapshot:
    """Decode the payload of a snapshot file, of version 1 or 2."""
    place = payload.place
    root = read_row(payload, _HEAD, ("manifest_files_v2",))
    parent = root["parent_id"]
    files = _read_manifest_files(root, place)
    return Snapshot(
        id=SnapshotId(root["id"]),
        parent_id=SnapshotId(parent) if spec.parent_in_snapshot and parent is not None else None,
        flushed_at_us=root["flushed_at"],
        message=root["message"],
        metadata=read_metadata(root["metadata"], spec, place),
        manifest_files=files,
        nodes=_read_nodes(payload, files),
        extra=root["extra"],
    )


def decode_snapshot_info(payload: Payload, spec: Spec) -> SnapshotInfo:
    """Decode only the metadata of a snapshot (id, parent, time, message) from the payload of its file."""
    root = read_row(payload, _INFO)
    parent = root["parent_id"]
    return SnapshotInfo(
        id=SnapshotId(root["id"]),
        parent_id=SnapshotId(parent) if spec.parent_in_snapshot and parent is not None else None,
        flushed_at_us=root["flushed_at"],
        message=root["message"],
        metadata=read_metadata(root["metadata"], spec, payload.place),
    )


def _read_nodes(payload: Payload, files: ManifestFiles) -> Nodes:
    slots = Cursor.root(payload, SNAPSHOT).children("nodes")

    def load(positions: NDArray[np.int64]) -> Tables:
        nodes = _with_counts(read_tables(payload, NODE_SNAPSHOT, positions), payload)
        _check_manifests(nodes, files, payload.place)
        return nodes

    count = 0 if slots is None else len(slots)
    if count <= FEW:
        rows = read_row(payload, _NODES)["nodes"]
        nodes = Nodes.of([make_node(_add_counts_to_row(row, payload)) for row in rows], payload.place)
        _check_listed(nodes, files, payload.place)
        return nodes
    if slots is None or count < LAZY_FROM:
        return Nodes(load(slots.positions() if slots else np.zeros(0, np.int64)), payload.place)
    return PackedNodes(payload, slots, load)


class PackedNodes(Nodes):
    """The encoded nodes of a large snapshot. Single nodes are found quickly, and columns are created on
    demand.

    A lookup validates only the tables that it touches. All nodes are validated when columns are built.
    """

    __slots__ = ("_ascends", "_payload", "_read", "_slots")

    def __init__(self, payload: Payload, slots: Slots, read: Callable[[NDArray[np.int64]], Tables]) -> None:
        self.few = None
        self.written = None
        self._place = payload.place
        self._load = lambda: read(slots.positions())
        self._sorted = None
        self._payload = payload
        self._slots = slots
        self._read = read
        self._ascends: bool | None = None

    def __len__(self) -> int:
        return len(self._slots)  # needed for the cache weight, which must not decode all nodes

    def __contains__(self, path: str) -> bool:
        return self.find(path) is not None

    def find(self, path: str) -> NodeSnapshot | None:
        # docstring inherited
        if self._sorted is None:
            position = self._search(path)
            if position is not None:
                return get_node_at(self._read(np.array([position])), 0, self._place)
            if self._is_in_order():
                return None
        return super().find(path)

    def _is_in_order(self) -> bool:
        """Return True if nodes are sorted, as binary search requires. Some releases wrote nodes in another
        order.
        """
        if self._ascends is None:
            tables = read_tables(self._payload, _PATHS, self._slots.positions())
            paths = tables["path"].texts(f"{self._place}: NodeSnapshot.path")
            ascends = all(before < after for before, after in pairwise(paths))
            self._ascends = ascends and canonicalize_paths(paths, self._place) is paths
        return self._ascends

    def _search(self, path: str) -> int | None:
        """Find the position of the node at a path by binary search. The nodes must be sorted."""
        target = path.encode("utf-8", "surrogatepass")
        low, high = 0, len(self._slots)
        while low < high:
            middle = (low + high) // 2
            node = self._slots[middle]
            found = node.bytes("path") or b""
            if found == target:
                return node.position
            low, high = (middle + 1, high) if found < target else (low, middle)
        return None


def encode_snapshot(snapshot: Snapshot, spec: Spec, place: str) -> bytes:
    """Encode the payload of a snapshot file."""
    nodes, files = snapshot.nodes, snapshot.manifest_files
    tables: list[Row] | Blocks
    if nodes.few is not None:
        _check_listed(nodes, files, place)
        tables = [_convert_row_shape(make_node_row(node), spec) for node in nodes]
    elif nodes.written is not None and spec.counts_chunks:
        _check_listed(nodes, files, place)
        tables = nodes.written
    else:
        _check_manifests(nodes.columns, files, place)
        tables = build_column_blocks(NODE_SNAPSHOT, _with_shapes(nodes.columns, spec), place)
        if spec.counts_chunks:
            nodes.written = tables
    root = {
        "id": snapshot.id,
        "nodes": tables,
        "flushed_at": snapshot.flushed_at_us,
        "message": snapshot.message,
        "metadata": make_metadata_rows(snapshot.metadata, spec),
        "parent_id": snapshot.parent_id if spec.parent_in_snapshot else None,
        "manifest_files": () if spec.counts_chunks else _make_manifest_structs(files.records.columns),
        "manifest_files_v2": files.records.blocks if spec.counts_chunks else None,
        "extra": snapshot.extra if spec.extras else None,
    }
    return build_row(SNAPSHOT, root, place)


def _read_manifest_files(root: Row, place: str) -> ManifestFiles:
    records = root["manifest_files_v2"]
    if records is None or not len(records):
        rows = [
            {"id": id, "size_bytes": size, "num_chunk_refs": count, "extra": None}
            for id, _, size, count, _ in root["manifest_files"]
        ]
        return ManifestFiles(Records(MANIFEST_FILE_INFO, place, rows=rows))
    lacking = (
        any(row["id"] is None for row in records.rows())
        if records.few
        else not records.columns.has("id").all()
    )
    if lacking:
        raise FormatError(f"{place}: a manifest file has no id", kind=ErrorKind.INVALID_FILE_FORMAT)
    return ManifestFiles(records)


def _make_manifest_structs(files: Tables) -> NDArray[Any]:
    structs = np.zeros(len(files), MANIFEST_FILE_V1)
    if len(files):
        structs["id"] = np.ascontiguousarray(files["id"]).view("V12").reshape(-1)
        structs["size_bytes"] = files["size_bytes"]
        structs["num_chunk_refs"] = files["num_chunk_refs"]
    return structs


def _check_manifests(nodes: Tables, files: ManifestFiles, place: str) -> None:
    """Raise FormatError if an array uses a manifest that is not listed."""
    arrays = nodes["node_data"].tables.get(ARRAY_NODE) if len(nodes) else None
    if arrays is None or not len(arrays["manifests"].items):
        return
    refs = arrays["manifests"].items
    if not is_member(refs["object_id"], files.ids).all():
        _refuse_unlisted(place)


def _check_listed(nodes: Nodes, files: ManifestFiles, place: str) -> None:
    used = list_used_manifests(nodes)
    if len(used) <= FEW and all(files.row(each) is not None for each in used):
        return
    if used and not is_member(np.frombuffer(b"".join(used), np.uint8).reshape(-1, 12), files.ids).all():
        _refuse_unlisted(place)


def _refuse_unlisted(place: str) -> NoReturn:
    raise FormatError(
        f"{place}: an array uses a manifest that the snapshot does not list",
        kind=ErrorKind.MANIFEST_INFO_NOT_FOUND,
    )


def _with_counts(nodes: Tables, payload: Payload) -> Tables:
    """Convert array shapes from the V1 form (chunk lengths) to the current form (numbers of chunks)."""
    if not len(nodes):
        return nodes
    union = nodes["node_data"]
    arrays = union.tables.get(ARRAY_NODE)
    if arrays is None:
        return nodes
    modern = arrays.has("shape_v2")
    columns = {name: column for name, column in arrays.columns.items() if name != "shape"}
    if not modern.all():
        old = _count_chunks(arrays["shape"].take(~modern), payload)
        if modern.any():
            both = Ragged(
                Tables.concat([columns["shape_v2"].take(modern).items, old.items]),
                to_splits(np.concatenate([columns["shape_v2"].lengths[modern], old.lengths])),
            )
            columns["shape_v2"] = both.take(np.argsort(np.argsort(~modern, kind="stable"), kind="stable"))
        else:
            columns["shape_v2"] = old
    present = {name: mask for name, mask in arrays.present.items() if name != "shape_v2"}
    tables = {**union.tables, ARRAY_NODE: Tables(len(arrays), columns, present)}
    return Tables(len(nodes), {**nodes.columns, "node_data": Union(union.kinds, tables)}, nodes.present)


def _add_counts_to_row(row: Row, payload: Payload) -> Row:
    """Convert the array shape of a single node to the current form."""
    kind, data = row["node_data"]
    if kind != ARRAY_NODE or data["shape_v2"] is not None:
        return row
    if any(length and not chunk for length, chunk in data["shape"]):
        payload.fail("DimensionShape.chunk_length is 0 in a dimension that has elements")
    counts = [
        {"array_length": length, "num_chunks": min(-(-length // max(chunk, 1)), int(_U32_MAX))}
        for length, chunk in data["shape"]
    ]
    return {**row, "node_data": (kind, {**data, "shape_v2": counts})}


def _count_chunks(shape: Ragged, payload: Payload) -> Ragged:
    # In V1 chunk_length may be wrong (spec, DimensionShape), but it always yields the right count.
    lengths, chunks = shape.items["array_length"], shape.items["chunk_length"]
    if ((chunks == 0) & (lengths > 0)).any():
        payload.fail("DimensionShape.chunk_length is 0 in a dimension that has elements")
    counts = (lengths // np.maximum(chunks, 1)) + (lengths % np.maximum(chunks, 1) != 0)
    counts = np.minimum(counts, _U32_MAX)  # chunks beyond that have no index
    tables = Tables(len(lengths), {"array_length": lengths, "num_chunks": counts.astype(np.uint32)}, {})
    return Ragged(tables, shape.splits)


def _with_shapes(nodes: Tables, spec: Spec) -> Tables:
    """Convert the array shapes of nodes to the form that files of version `spec` use."""
    if not len(nodes):
        return nodes
    union = nodes["node_data"]
    arrays = union.tables.get(ARRAY_NODE)
    if arrays is None:
        return nodes
    columns, shape = dict(arrays.columns), arrays["shape_v2"]
    if spec.counts_chunks:
        columns["shape"] = Ragged(np.zeros(0, _SHAPE_V1), np.zeros(len(arrays) + 1, np.int64))
    else:
        del columns["shape_v2"]
        structs = np.zeros(len(shape.items), _SHAPE_V1)
        if len(structs):
            lengths, counts = shape.items["array_length"], shape.items["num_chunks"].astype(np.uint64)
            structs["array_length"] = lengths
            divisor = np.maximum(counts, 1)
            structs["chunk_length"] = np.maximum((lengths // divisor) + (lengths % divisor != 0), 1)
        columns["shape"] = Ragged(structs, shape.splits)
    tables = {**union.tables, ARRAY_NODE: Tables(len(arrays), columns, arrays.present)}
    return Tables(len(nodes), {**nodes.columns, "node_data": Union(union.kinds, tables)}, nodes.present)


def _convert_row_shape(row: Row, spec: Spec) -> Row:
    """Convert the array shape of a single node to the form that files of version `spec` use."""
    kind, data = row["node_data"]
    if kind != ARRAY_NODE:
        return row
    if spec.counts_chunks:
        return {**row, "node_data": (kind, {**data, "shape": ()})}
    pairs = [(d["array_length"], max(d["num_chunks"], 1)) for d in data["shape_v2"]]
    shape = [(length, max(-(-length // count), 1)) for length, count in pairs]
    return {**row, "node_data": (kind, {**data, "shape_v2": None, "shape": shape})}
