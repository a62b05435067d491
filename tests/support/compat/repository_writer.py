"""Write whole repositories from plain arrays and groups, with nothing but the encoders.

This is not an engine: no conditions, no conflicts, one writer, a local folder. The changes of a commit are
found by comparison with the previous commit, and can be compared with the diff of the official package.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.format import files, refs_v1
from icefloe.format.config_flexbuffers import encode_config
from icefloe.format.config_yaml import encode_config_yaml
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import (
    ArrayManifest,
    ChunkRef,
    InlineRef,
    LastModified,
    Manifest,
    NativeRef,
    VirtualRef,
)
from icefloe.format.repo_info import RepoInfo, SnapshotInfo, SnapshotInfos
from icefloe.format.snapshot import (
    ArrayNodeData,
    DimensionShape,
    GroupNodeData,
    ManifestFileInfo,
    ManifestFiles,
    ManifestRef,
    Nodes,
    NodeSnapshot,
    Snapshot,
)
from icefloe.format.spec import V2, Spec
from icefloe.format.transaction_log import MoveOperation, NodeType, TransactionLog
from icefloe.format.updates import RepoStatus, StoredUpdate, Update, Updates
from icefloe.ops import UpdateType

Coords = tuple[int, ...]
Kind = Literal["native", "inline", "virtual", "absent"]
Layout = Literal["each", "together", "split"]

VIRTUAL_MTIME = 1_700_000_000
SPLIT_EVERY = 2
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class GroupInput:
    """A group to be written."""

    path: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayInput:
    """An array to write, and the kind of storage of each chunk."""

    path: str
    data: NDArray[Any]
    chunks: tuple[int, ...]
    kind: Kind | Callable[[Coords], Kind] = "native"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dimension_names: tuple[str | None, ...] | None = None

    @property
    def grid(self) -> tuple[int, ...]:
        """Return the number of chunks of each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.data.shape, self.chunks, strict=True))

    def chunk_bytes(self) -> Iterator[tuple[Coords, Kind, bytes]]:
        """Yield the uncompressed chunks, those at the edges filled up with zeros."""
        for coords in np.ndindex(self.grid):
            kind = self.kind if isinstance(self.kind, str) else self.kind(coords)
            if kind == "absent":
                continue
            window = tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, self.chunks, strict=True))
            part = self.data[window]
            whole = np.zeros(self.chunks, self.data.dtype)
            whole[tuple(slice(0, n) for n in part.shape)] = part
            yield coords, kind, whole.tobytes()

    def document(self) -> dict[str, Any]:
        """Return the zarr.json."""
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.data.shape),
            "data_type": self.data.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": dict(self.attributes),
            "storage_transformers": [],
        }
        if self.dimension_names is not None:
            document["dimension_names"] = list(self.dimension_names)
        return document


NodeInput = GroupInput | ArrayInput


@dataclass(slots=True)
class _Stored:
    """A node as the last commit left it."""

    id: NodeId
    given: NodeInput
    chunks: dict[Coords, bytes] = field(default_factory=dict)
    refs: dict[Coords, ChunkRef] = field(default_factory=dict)
    manifests: tuple[ManifestRef, ...] = ()


class RepositoryWriter:
    """A writer of a repository, which can be opened after `finish`."""

    def __init__(
        self,
        folder: Path,
        spec: Spec = V2,
        *,
        layout: Layout = "each",
        level: int = 3,
        compression: LocationCompression | None = None,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.layout = layout
        self.level = level
        self.compression = compression
        self.branches: dict[str, SnapshotId] = {"main": INITIAL_SNAPSHOT_ID}
        self.tags: dict[str, SnapshotId] = {}
        self.deleted_tags: dict[str, SnapshotId] = {}
        self.infos: dict[SnapshotId, SnapshotInfo] = {}
        self.updates: list[Update] = []
        self.manifest_files: dict[ManifestId, ManifestFileInfo] = {}
        self.now_us = time.time_ns() // 1000 - 3600 * _SECOND_US
        self._trees: dict[SnapshotId, dict[str, _Stored]] = {INITIAL_SNAPSHOT_ID: {}}
        self._moves: list[MoveOperation] = []
        self._create()

    # What a repository consists of.

    def commit(
        self,
        message: str,
        nodes: Sequence[NodeInput],
        *,
        branch: str = "main",
        metadata: Mapping[str, Any] | None = None,
    ) -> SnapshotId:
        """Return a commit after which the repository has exactly these nodes."""
        parent, id = self.branches[branch], SnapshotId.random()
        before, after = self._trees[parent], {}
        for node in nodes:
            after[node.path] = self._store(node, before.get(node.path))
        self._write_manifests([stored for stored in after.values() if not stored.manifests])
        self._put_log(_changes(id, before, after, self._moves))
        self._put_snapshot(id, parent, message, metadata or {}, after)
        self._trees[id] = after
        self.branches[branch] = id
        self._moves = []
        self.log(UpdateType.NewCommit(branch, str(id)))
        return id

    def move(self, from_path: str, to_path: str, branch: str = "main") -> None:
        """Rename a node without children, in the commit that comes next."""
        tree = self._trees[self.branches[branch]] = dict(self._trees[self.branches[branch]])
        stored = tree[to_path] = tree.pop(from_path)
        kind = NodeType.ARRAY if isinstance(stored.given, ArrayInput) else NodeType.GROUP
        self._moves.append(MoveOperation(from_path, to_path, stored.id, kind))

    def create_branch(self, name: str, snapshot: SnapshotId) -> None:
        """Create a branch."""
        self.branches[name] = snapshot
        self.log(UpdateType.BranchCreated(name))

    def create_tag(self, name: str, snapshot: SnapshotId) -> None:
        """Create a tag."""
        self.tags[name] = snapshot
        self.log(UpdateType.TagCreated(name))

    def delete_tag(self, name: str) -> None:
        """Delete a tag."""
        self.deleted_tags[name] = self.tags.pop(name)
        self.log(UpdateType.TagDeleted(name, str(self.deleted_tags[name])))

    def log(self, update: StoredUpdate) -> None:
        """Add an entry to the ops log, one second after the previous one."""
        self.updates.append(Update(update, self.tick()))

    def tick(self) -> int:
        """Return a second later, in microseconds."""
        self.now_us += _SECOND_US
        return self.now_us

    def finish(self, config: dict[str, Any] | None = None, **repo_info: Any) -> None:
        """Write what names the snapshots: the repo info file, or the files of V1."""
        if self.spec.refs_in_repo_info:
            self._finish_repo_info(config, repo_info)
        else:
            self._finish_refs(config)

    # Files.

    def _create(self) -> None:
        metadata = {"__icechunk": {"is_root": True}} if self.spec.refs_in_repo_info else {"__root": True}
        self._put_snapshot(INITIAL_SNAPSHOT_ID, None, "Repository initialized", metadata, {})
        if self.spec.refs_in_repo_info:
            self._put_log(TransactionLog.of(INITIAL_SNAPSHOT_ID))
        self.log(UpdateType.RepoInitialized())

    def _put_snapshot(
        self,
        id: SnapshotId,
        parent: SnapshotId | None,
        message: str,
        metadata: Mapping[str, Any],
        tree: Mapping[str, _Stored],
    ) -> None:
        used = {ref.id for stored in tree.values() for ref in stored.manifests}
        listed = ManifestFiles.of(self.manifest_files[manifest] for manifest in used)
        nodes = Nodes.of(_node(stored) for stored in tree.values())
        info = SnapshotInfo(id, parent, self.tick(), message, metadata)
        snapshot = Snapshot(id, parent, info.flushed_at_us, message, metadata, listed, nodes)
        self.infos[id] = info
        self._write(files.SNAPSHOTS, id, files.write_snapshot(snapshot, self.spec, self.level))

    def _put_log(self, log: TransactionLog) -> None:
        self._write(files.TRANSACTIONS, log.id, files.write_transaction_log(log, self.spec, self.level))

    def _store(self, node: NodeInput, before: _Stored | None) -> _Stored:
        """Store a node, and keep the references of unchanged chunks."""
        if before is not None and before.given is node:
            return before
        stored = _Stored(before.id if before else NodeId.random(), node)
        if isinstance(node, GroupInput):
            return stored
        for coords, kind, data in node.chunk_bytes():
            stored.chunks[coords] = data
            same = before is not None and before.chunks.get(coords) == data
            stored.refs[coords] = before.refs[coords] if before and same else self._put_chunk(kind, data)
        if before is not None and before.refs == stored.refs:
            stored.manifests = before.manifests
        return stored

    def _put_chunk(self, kind: Kind, data: bytes) -> ChunkRef:
        if kind == "inline":
            return InlineRef(data)
        if kind == "native":
            chunk = ChunkId.random()
            self._write(files.CHUNKS, chunk, data)
            return NativeRef(chunk, 0, len(data))
        return self.put_virtual(data)

    def put_virtual(self, data: bytes) -> VirtualRef:
        """Return a chunk in the middle of a file beside the repository."""
        place = self.virtual_folder / f"{ChunkId.random()}.bin"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"head" + data + b"tail")
        os.utime(place, (VIRTUAL_MTIME, VIRTUAL_MTIME))
        return VirtualRef(f"file://{place}", 4, len(data), LastModified(VIRTUAL_MTIME))

    @property
    def virtual_folder(self) -> Path:
        """Where virtual chunks are."""
        return self.folder.parent / "virtual"

    @property
    def virtual_prefix(self) -> str:
        """The URL prefix of virtual chunks, for a container."""
        return f"file://{self.virtual_folder}/"

    def _write_manifests(self, changed: Sequence[_Stored]) -> None:
        parts = [
            (stored, part)
            for stored in changed
            if isinstance(stored.given, ArrayInput) and stored.refs
            for part in self._parts(
                stored.given, ArrayManifest.from_refs(stored.refs, stored.given.data.ndim)
            )
        ]
        batches = [parts] if self.layout == "together" and parts else [[part] for part in parts]
        for batch in batches:
            id = self.put_manifest({stored.id: refs for stored, refs in batch})
            for stored, refs in batch:
                stored.manifests += (ManifestRef(id, refs.extents()),)

    def _parts(self, array: ArrayInput, refs: ArrayManifest) -> list[ArrayManifest]:
        if self.layout != "split" or not array.grid:
            return [refs]
        rest = [range(n) for n in array.grid[1:]]
        starts = range(0, array.grid[0], SPLIT_EVERY)
        parts = refs.split([[range(start, start + SPLIT_EVERY), *rest] for start in starts])
        return [part for part in parts if len(part)]

    def put_manifest(self, arrays: Mapping[NodeId, ArrayManifest]) -> ManifestId:
        """Return a manifest file."""
        manifest = Manifest(ManifestId.random(), arrays)
        data = files.write_manifest(manifest, self.spec, self.level, self.compression)
        self._write(files.MANIFESTS, manifest.id, data)
        count = sum(map(len, arrays.values()))
        self.manifest_files[manifest.id] = ManifestFileInfo(manifest.id, len(data), count)
        return manifest.id

    def _finish_repo_info(self, config: dict[str, Any] | None, repo_info: Mapping[str, Any]) -> None:
        info = RepoInfo(
            **{
                "snapshots": SnapshotInfos.of(self.infos.values()),
                "branches": self.branches,
                "tags": self.tags,
                "deleted_tags": frozenset(self.deleted_tags),
                "status": RepoStatus(set_at_us=self.updates[0].updated_at_us),
                "latest_updates": Updates.of(self.updates[::-1]),
                "config": None if config is None else encode_config(config),
                **repo_info,
            }
        )
        (self.folder / files.REPO_PATH).write_bytes(files.write_repo_info(info, self.spec, self.level))

    def _finish_refs(self, config: dict[str, Any] | None) -> None:
        named = [(refs_v1.RefKind.BRANCH, self.branches), (refs_v1.RefKind.TAG, self.tags)]
        for kind, refs in [*named, (refs_v1.RefKind.TAG, self.deleted_tags)]:
            for name, snapshot in refs.items():
                self._write("", refs_v1.RefFile(kind, name).path, refs_v1.encode_ref(snapshot))
        for name in self.deleted_tags:
            self._write("", refs_v1.RefFile(refs_v1.RefKind.TAG, name, deleted=True).path, b"")
        if config is not None:
            (self.folder / files.CONFIG_PATH).write_bytes(encode_config_yaml(config))

    def _write(self, kind: str, name: object, data: bytes) -> None:
        path = self.folder / kind / str(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def local_container(prefix: str) -> dict[str, Any]:
    """Return the configuration of a repository with virtual chunks in a local folder."""
    store = {"local_file_system": prefix.removeprefix("file://").rstrip("/")}
    container = {"name": None, "url_prefix": prefix, "store": store}
    return {"virtual_chunk_containers": {prefix: container}}


def _node(stored: _Stored) -> NodeSnapshot:
    given = stored.given
    if isinstance(given, GroupInput):
        document = {"zarr_format": 3, "node_type": "group", "attributes": dict(given.attributes)}
        return NodeSnapshot(stored.id, given.path, _json(document), GroupNodeData())
    shape = tuple(DimensionShape(n, chunks) for n, chunks in zip(given.data.shape, given.grid, strict=True))
    data = ArrayNodeData(shape, stored.manifests, given.dimension_names)
    return NodeSnapshot(stored.id, given.path, _json(given.document()), data)


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def _changes(
    id: SnapshotId,
    before: Mapping[str, _Stored],
    after: Mapping[str, _Stored],
    moves: Sequence[MoveOperation],
) -> TransactionLog:
    """Return the differences between two trees."""
    old = {stored.id: stored for stored in before.values()}
    new = {stored.id: stored for stored in after.values()}
    lists: dict[str, Any] = {}
    chunks: dict[NodeId, Any] = {}
    for node in old.keys() | new.keys():
        was, now = old.get(node), new.get(node)
        kind = "arrays" if isinstance((now or was).given, ArrayInput) else "groups"  # type: ignore[union-attr]
        if was is None or now is None:
            lists.setdefault(f"{'new' if was is None else 'deleted'}_{kind}", []).append(node)
        elif _node(was).user_data != _node(now).user_data:
            lists.setdefault(f"updated_{kind}", []).append(node)
        if now is None:
            continue
        earlier = was.refs if was else {}
        changed = [c for c in earlier.keys() | now.refs.keys() if earlier.get(c) != now.refs.get(c)]
        if changed:
            chunks[node] = np.array(changed, np.uint32).reshape(len(changed), -1)
    return TransactionLog.of(id, chunks, moves, **lists)
