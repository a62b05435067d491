"""Snapshot files to values and back, and single nodes of a large snapshot without reading the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import U8, Blobs, Ragged, splits_of
from icefloe.encoding.flatbuffers.builder import build
from icefloe.encoding.flatbuffers.cursor import Cursor, Slots
from icefloe.encoding.flatbuffers.reader import Payload, read_root, read_tables
from icefloe.encoding.flatbuffers.schema import Table
from icefloe.encoding.flatbuffers.tables import Tables, Union
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.id_columns import is_member
from icefloe.format.metadata import metadata_items, one_list, read_metadata
from icefloe.format.schema import ARRAY_NODE, ARRAY_NODE_DATA, MANIFEST_FILE_V1, NODE_SNAPSHOT, SNAPSHOT
from icefloe.format.snapshot import ManifestFiles, Nodes, NodeSnapshot, Snapshot, node_at
from icefloe.format.spec import Spec
from icefloe.ids import SnapshotId

LAZY_FROM: Final = 1000
"""Snapshots of so many nodes are not read as a whole until somebody asks for more than single nodes."""

_HEAD: Final = Table("Snapshot", {name: f for name, f in SNAPSHOT.fields.items() if name != "nodes"})
_SHAPE_V1: Any = ARRAY_NODE_DATA.fields["shape"].dtype  # type: ignore[attr-defined]
_U32_MAX = np.uint64(0xFFFFFFFF)


def decode_snapshot(payload: Payload, spec: Spec) -> Snapshot:
    """The value behind a snapshot file of either version."""
    place = payload.place
    root = read_root(payload, _HEAD)
    parent = SnapshotId(root["parent_id"][0].tobytes()) if root.has("parent_id")[0] else None
    files = _manifest_files(root, place)
    return Snapshot(
        id=SnapshotId(root["id"][0].tobytes()),
        parent_id=parent if spec.parent_in_snapshot else None,
        flushed_at_us=int(root["flushed_at"][0]),
        message=root["message"].texts(f"{place}: Snapshot.message")[0],
        metadata=read_metadata(root["metadata"].items, spec, place),
        manifest_files=files,
        nodes=_nodes(payload, files),
        extra=root["extra"][0] if "extra" in root.columns else None,
    )


def _nodes(payload: Payload, files: ManifestFiles) -> Nodes:
    slots = Cursor.root(payload, SNAPSHOT).children("nodes")

    def load(positions: NDArray[np.int64]) -> Tables:
        nodes = _with_counts(read_tables(payload, NODE_SNAPSHOT, positions), payload)
        _check_manifests(nodes, files, payload.place)
        return nodes

    if slots is None or len(slots) < LAZY_FROM:
        return Nodes(load(slots.positions() if slots else np.zeros(0, np.int64)), payload.place)
    return PackedNodes(slots, load, payload.place)


class PackedNodes(Nodes):
    """The nodes of a large snapshot as they were read: finds one in a few steps, gives columns when asked.

    A look-up checks the tables it touches; all nodes are checked when columns are built.
    """

    __slots__ = ("_read", "_slots")

    def __init__(self, slots: Slots, read: Callable[[NDArray[np.int64]], Tables], place: str) -> None:
        self._place = place
        self._load = lambda: read(slots.positions())
        self._sorted = None
        self._slots = slots
        self._read = read

    def __len__(self) -> int:
        return len(self._slots)  # caches weigh a snapshot by it: no reason to read all nodes

    def __contains__(self, path: str) -> bool:
        return (self._sorted is None and self._search(path) is not None) or super().__contains__(path)

    def find(self, path: str) -> NodeSnapshot | None:
        # docstring inherited
        position = self._search(path) if self._sorted is None else None
        if position is None:  # some releases wrote nodes in another order: only all nodes can tell
            return super().find(path)
        return node_at(self._read(np.array([position])), 0, self._place)

    def _search(self, path: str) -> int | None:
        """Where the node at a path stands, as long as the order by bytes leads there."""
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


def encode_snapshot(snapshot: Snapshot, spec: Spec, place: str) -> U8:
    """The payload of a snapshot file."""
    _check_manifests(snapshot.nodes.columns, snapshot.manifest_files, place)
    columns: dict[str, Any] = {
        "id": np.frombuffer(snapshot.id, np.uint8)[None],
        "nodes": one_list(_with_shapes(snapshot.nodes.columns, spec)),
        "flushed_at": np.array([snapshot.flushed_at_us], np.uint64),
        "message": Blobs.from_texts([snapshot.message]),
        "metadata": one_list(metadata_items(snapshot.metadata, spec)),
    }
    if spec.parent_in_snapshot and snapshot.parent_id is not None:
        columns["parent_id"] = np.frombuffer(snapshot.parent_id, np.uint8)[None]
    files = snapshot.manifest_files.columns
    if spec.counts_chunks:
        columns["manifest_files_v2"] = one_list(files)
        columns["manifest_files"] = one_list(_manifest_structs(files.take(slice(0, 0))))
    else:
        columns["manifest_files"] = one_list(_manifest_structs(files))
    if snapshot.extra is not None and spec.counts_chunks:
        columns["extra"] = Blobs.from_list([snapshot.extra])
    return build(SNAPSHOT, Tables(1, columns, {}), place)


def _manifest_files(root: Tables, place: str) -> ManifestFiles:
    if "manifest_files_v2" in root.columns and len(root["manifest_files_v2"].items):
        tables = root["manifest_files_v2"].items
        if not tables.has("id").all():
            raise FormatError(f"{place}: a manifest file without an id", kind=ErrorKind.INVALID_FILE_FORMAT)
        return ManifestFiles(tables, place)
    structs = root["manifest_files"].items
    ids = np.ascontiguousarray(structs["id"]).view(np.uint8).reshape(-1, 12)
    columns = {"id": ids, "size_bytes": structs["size_bytes"], "num_chunk_refs": structs["num_chunk_refs"]}
    return ManifestFiles(Tables(len(structs), columns, {}), place)


def _manifest_structs(files: Tables) -> NDArray[Any]:
    structs = np.zeros(len(files), MANIFEST_FILE_V1)
    if len(files):
        structs["id"] = np.ascontiguousarray(files["id"]).view("V12").reshape(-1)
        structs["size_bytes"] = files["size_bytes"]
        structs["num_chunk_refs"] = files["num_chunk_refs"]
    return structs


def _check_manifests(nodes: Tables, files: ManifestFiles, place: str) -> None:
    """Refuse arrays whose manifests are not listed."""
    arrays = nodes["node_data"].tables.get(ARRAY_NODE) if len(nodes) else None
    if arrays is None or not len(arrays["manifests"].items):
        return
    refs = arrays["manifests"].items
    if not is_member(refs["object_id"], files.ids).all():
        raise FormatError(
            f"{place}: an array uses a manifest that the snapshot does not list",
            kind=ErrorKind.MANIFEST_INFO_NOT_FOUND,
        )


def _with_counts(nodes: Tables, payload: Payload) -> Tables:
    """Nodes with the shape in today's form, numbers of chunks, whichever form the file has."""
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
                splits_of(np.concatenate([columns["shape_v2"].lengths[modern], old.lengths])),
            )
            columns["shape_v2"] = both.take(np.argsort(np.argsort(~modern, kind="stable"), kind="stable"))
        else:
            columns["shape_v2"] = old
    present = {name: mask for name, mask in arrays.present.items() if name != "shape_v2"}
    tables = {**union.tables, ARRAY_NODE: Tables(len(arrays), columns, present)}
    return Tables(len(nodes), {**nodes.columns, "node_data": Union(union.kinds, tables)}, nodes.present)


def _count_chunks(shape: Ragged, payload: Payload) -> Ragged:
    # V1 may hold a wrong chunk_length (spec, DimensionShape), but always one that gives the right count.
    lengths, chunks = shape.items["array_length"], shape.items["chunk_length"]
    if ((chunks == 0) & (lengths > 0)).any():
        payload.fail("DimensionShape.chunk_length is 0 in a dimension that has elements")
    counts = (lengths // np.maximum(chunks, 1)) + (lengths % np.maximum(chunks, 1) != 0)
    counts = np.minimum(counts, _U32_MAX)  # beyond that no chunk has an index
    tables = Tables(len(lengths), {"array_length": lengths, "num_chunks": counts.astype(np.uint32)}, {})
    return Ragged(tables, shape.splits)


def _with_shapes(nodes: Tables, spec: Spec) -> Tables:
    """Nodes with the shape in the form that files of `spec` hold."""
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
