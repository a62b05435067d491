"""Repositories in the formats before version 1, made from the contents of any repository."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe._internal.times import from_microseconds
from icefloe.core.workspace import Workspace
from icefloe.format.manifest import ChunkRef, NativeRef
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot, Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.repository import Repository
from icefloe.storage.base import Storage
from tests.support.legacy.files import (
    FORMATS,
    OlderArray,
    OlderFiles,
    OlderFormat,
    OlderLog,
    OlderNode,
    OlderSnapshot,
    References,
    Single,
)

__all__ = ["FORMATS", "OlderFormat", "write_older"]

_INTEGERS: Final = {
    f"{sign.lower()}int{bits}": f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)
}
_FLOATS: Final = {"float16": "Float16", "float32": "Float32", "float64": "Float64"}
_COMPLEX: Final = {"complex64": "Complex64", "complex128": "Complex128"}


def write_older(
    repo: Repository, storage: Storage, form: OlderFormat, deleted_tags: Mapping[str, str] | None = None
) -> None:
    """Write all that branches and tags of a repository lead to, as releases of another time would have.

    Arrays must have regular chunk grids and data types of that time. `deleted_tags` are snapshot ids by name;
    ValueError for a format that has none.
    """
    if deleted_tags and not form.deleted_tags:
        raise ValueError(
            f"{form.name} has no deleted tags, and {', '.join(sorted(deleted_tags))} would be one"
        )
    _Writer(repo, storage, form).write(deleted_tags or {})


class _Writer:
    def __init__(self, repo: Repository, storage: Storage, form: OlderFormat) -> None:
        self.refs, self.assets = repo._refs, repo._assets
        self.storage = storage
        self.form = form
        self.files = OlderFiles(form)
        self._numbers: dict[NodeId, NodeId] = {}
        self._chunks: set[bytes] = set()

    def write(self, deleted_tags: Mapping[str, str]) -> None:
        """Write the whole repository."""
        branches, tags = self.refs.branches(), self.refs.tags()
        gone = {name: SnapshotId.parse(id) for name, id in deleted_tags.items()}
        histories: dict[SnapshotId, list[SnapshotInfo]] = {}
        for tip in {*branches.values(), *tags.values(), *gone.values()}:
            line = list(self.refs.ancestry(tip))
            for at, info in enumerate(line):
                histories.setdefault(info.id, line[at + 1 :])
                self._write_snapshot(info, line[at + 1 :])
        for name, tip in branches.items():
            line = [*reversed(histories[tip]), self.refs.snapshot(tip)]
            for number, info in enumerate(line):
                ref = self.files.ref(info.id, _time(info.flushed_at_us))
                self.storage.put(self.files.branch_path(name, number), ref)
        for name, target in {**tags, **gone}.items():
            path = self.files.tag_path(name)
            self.storage.put(path, self.files.ref(target, _time(self.refs.snapshot(target).flushed_at_us)))
            if name in gone:
                self.storage.put(f"{path}.deleted", b"")

    def _write_snapshot(self, info: SnapshotInfo, ancestors: Sequence[SnapshotInfo]) -> None:
        snapshot = self.assets.snapshot(info.id)
        workspace = Workspace(snapshot, self.assets)
        references: dict[NodeId, dict[tuple[int, ...], ChunkRef]] = {}
        for node in snapshot.nodes:
            if isinstance(node.node_data, ArrayNodeData) and node.node_data.manifests:
                refs = workspace.refs(node)
                coords = map(tuple, refs.coords.tolist())
                references[self._node_id(node.id)] = {at: refs.ref(row) for row, at in enumerate(coords)}
        files = self._write_manifests(info.id, {node: refs for node, refs in references.items() if refs})
        nodes = [self._node(node, files) for node in snapshot.nodes]
        folders = self.form.folders
        value = OlderSnapshot(
            info.id,
            _time(info.flushed_at_us),
            info.message,
            [(one.id, _time(one.flushed_at_us), one.message) for one in ancestors],
            info.metadata,
            nodes,
            list({entry["id"]: entry for entry in files.values()}.values()),
        )
        self.storage.put(self.files.path(folders.snapshots, info.id), self.files.snapshot(value))
        if self.form.logs and ancestors:
            log = self._log(self.assets.transaction_log(info.id), snapshot)
            self.storage.put(self.files.path(folders.transactions, info.id), self.files.log(log))

    def _write_manifests(self, snapshot: SnapshotId, references: References) -> dict[NodeId, dict[str, Any]]:
        """Write one manifest for all arrays or one per array, and return their entries for the snapshot."""
        each = [[node] for node in references] if self.form.id_in_manifest else [list(references)]
        found: dict[NodeId, dict[str, Any]] = {}
        for nodes in each:
            if not nodes:
                continue
            own = {node: references[node] for node in nodes}
            id = ManifestId(sha256(snapshot + b"".join(nodes)).digest()[: ManifestId.SIZE])
            data = self.files.manifest(id, own)
            self.storage.put(self.files.path(self.form.folders.manifests, id), data)
            rows = sum(map(len, own.values()))
            entry = {"id": bytes(id), "size": len(data), "rows": rows}
            found |= dict.fromkeys(nodes, entry)
            for refs in own.values():
                self._copy_chunks(refs.values())
        return found

    def _copy_chunks(self, refs: Any) -> None:
        for ref in refs:
            if isinstance(ref, NativeRef) and bytes(ref.chunk_id) not in self._chunks:
                self._chunks.add(bytes(ref.chunk_id))
                data, _ = self.assets.storage.get(f"chunks/{ref.chunk_id}")
                self.storage.put(self.files.path(self.form.folders.chunks, ref.chunk_id), data)

    def _node_id(self, id: NodeId) -> NodeId:
        if not self.form.counted_nodes:
            return id
        number = len(self._numbers) + 1
        return self._numbers.setdefault(id, NodeId(number.to_bytes(NodeId.SIZE, "big")))

    def _node(self, node: NodeSnapshot, files: Mapping[NodeId, Mapping[str, Any]]) -> OlderNode:
        document = json.loads(node.user_data)
        attributes = document.get("attributes") or None
        id = self._node_id(node.id)
        if not isinstance(node.node_data, ArrayNodeData):
            return OlderNode(id, node.path, attributes)
        counts = [dimension.num_chunks for dimension in node.node_data.shape]
        manifests = [(files[id]["id"], ([0] * len(counts), counts))] if id in files else []
        array = OlderArray(
            document["shape"],
            _data_type(document["data_type"]),
            document["chunk_grid"]["configuration"]["chunk_shape"],
            _fill_value(document["data_type"], document["fill_value"]),
            [(codec["name"], codec.get("configuration")) for codec in document["codecs"]],
            None,
            document.get("dimension_names"),
            manifests,
        )
        return OlderNode(id, node.path, attributes, array)

    def _log(self, log: TransactionLog, snapshot: Snapshot) -> OlderLog:
        def ids(column: Any) -> list[NodeId]:
            return [self._node_id(NodeId(row.tobytes())) for row in column]

        return OlderLog(
            ids(log.new_groups),
            ids(log.new_arrays),
            ids(log.deleted_groups),
            ids(log.deleted_arrays),
            ids([*log.new_groups, *log.new_arrays, *log.updated_groups]),
            ids(log.updated_arrays),
            {self._node_id(node): coords.tolist() for node, coords in log.updated_chunks},
        )


def _time(since_1970_us: int) -> str:
    return from_microseconds(since_1970_us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _data_type(stored: Any) -> Any:
    if isinstance(stored, Mapping) and stored.get("name") == "raw_bytes":
        return {"rawbits": stored["configuration"]["length_bytes"] * 8}
    return {"variable_length_bytes": "bytes"}.get(stored, stored)


def _fill_value(data_type: Any, value: Any) -> dict[str, Any]:
    """Return a fill value with the name of its type, numbers in the precision that they had in files."""
    if isinstance(data_type, Mapping):
        return {"RawBits": list(base64.standard_b64decode(value))}
    if data_type in ("bytes", "variable_length_bytes"):
        return {"Bytes": list(base64.standard_b64decode(value))}
    if data_type in _FLOATS:
        return {_FLOATS[data_type]: _float(value, single=data_type != "float64")}
    if data_type in _COMPLEX:
        return {_COMPLEX[data_type]: [_float(part, single=data_type == "complex64") for part in value]}
    return {{"bool": "Bool", "string": "String"}.get(data_type) or _INTEGERS[data_type]: value}


def _float(value: Any, *, single: bool) -> Any:
    number = float(str(value).replace("Infinity", "inf"))
    return Single(number) if single else number
