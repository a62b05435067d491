"""Decode a repository in a folder to the form of the official `inspect_` methods.

`assert_seen_alike` compares it with the output of the official package for the same files.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from zarr.core.buffer import default_buffer_prototype

from icefloe._internal.ids import ManifestId, NodeId, ObjectId, SnapshotId
from icefloe.format import files, refs_v1
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL, ArrayManifest, Manifest
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.repo_info import RepoInfo, SnapshotInfo
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot, Snapshot
from icefloe.format.transaction_log import LISTS, TransactionLog
from icefloe.format.updates import RepoStatus, Update
from icefloe.ops import UpdateType
from tests.support.compat import official

_TIMES = {"flushed_at", "updated_at", "set_at"}


class Folder:
    """Decodes the files of a repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def snapshot(self, id: SnapshotId) -> Snapshot:
        """Return a snapshot file."""
        return files.read_snapshot(self._bytes(files.SNAPSHOTS, id), id)

    def manifest(self, id: ManifestId) -> PackedManifest:
        """Return a manifest file."""
        return files.read_manifest(self._bytes(files.MANIFESTS, id), id)

    def log(self, id: SnapshotId) -> TransactionLog:
        """Return a transaction log."""
        return files.read_transaction_log(self._bytes(files.TRANSACTIONS, id), id)

    def repo_info(self) -> RepoInfo:
        """Return the repo info file."""
        return files.read_repo_info((self.folder / files.REPO_PATH).read_bytes())

    def refs(self) -> dict[str, dict[str, SnapshotId]]:
        """Branches and tags of a V1 repository."""
        found: dict[str, dict[str, SnapshotId]] = {"branch": {}, "tag": {}}
        parsed = [refs_v1.RefFile.parse(path) for path in self._paths()]
        known = [ref for ref in parsed if ref is not None]
        gone = {(ref.kind, ref.name) for ref in known if ref.deleted}
        for ref in known:
            if (ref.kind, ref.name) not in gone:
                data = (self.folder / ref.path).read_bytes()
                found[ref.kind][ref.name] = refs_v1.decode_ref(data, ref.path)
        return found

    def ids(self, kind: str) -> list[str]:
        """Return the names of all files of a kind."""
        return sorted(path.name for path in (self.folder / kind).glob("*"))

    def refs_of(self, node: NodeSnapshot) -> ArrayManifest | None:
        """Return all chunk references of an array; None where it has none."""
        assert isinstance(node.node_data, ArrayNodeData)
        rank = len(node.node_data.shape)
        parts = [self.manifest(ref.id).array(node.id, rank) for ref in node.node_data.manifests]
        return ArrayManifest.concat(parts) if parts else None

    def decode_everything(self) -> None:
        """Decode each file, also those that nothing points to."""
        for name in self.ids(files.SNAPSHOTS):
            self.snapshot(SnapshotId.parse(name))
        for name in self.ids(files.TRANSACTIONS):
            self.log(SnapshotId.parse(name))
        for name in self.ids(files.MANIFESTS):
            assert isinstance(self.manifest(ManifestId.parse(name)).unpack(), Manifest)
        for name in self.ids(files.OVERWRITTEN):
            if not name.startswith("repo."):
                continue  # V1 repositories keep their old config.yaml there
            files.read_repo_info((self.folder / files.OVERWRITTEN / name).read_bytes(), name)

    def _bytes(self, kind: str, id: ObjectId) -> bytes:
        return (self.folder / kind / str(id)).read_bytes()

    def _paths(self) -> Iterator[str]:
        for path in (self.folder / refs_v1.REFS).rglob("*"):
            yield str(path.relative_to(self.folder))


def assert_seen_alike(folder: Path, repository: Any) -> None:
    """Our decoder and the official package find the same in all files that are in use."""
    ours = Folder(folder)
    ours.decode_everything()
    if official.has_repo_info(repository):
        info = ours.repo_info()
        theirs = repository.inspect_repo_info()
        seen = _repo_info(info)
        assert seen == _with_times({key: theirs.get(key) for key in seen})
        snapshots = [entry.id for entry in info.snapshots]
        # For a snapshot with pruned ancestors the official answer joins their logs with its own, and the
        # first snapshot of a migrated repository has none.
        joined = {entry.id for entry in info.snapshots if entry.pruned_ancestor_tx_logs}
        logged = set(map(SnapshotId.parse, ours.ids(files.TRANSACTIONS))) - joined
    else:
        history, refs = official.history(repository), ours.refs()
        assert {name: str(id) for name, id in refs["branch"].items()} == history["branches"]
        assert {name: str(id) for name, id in refs["tag"].items()} == history["tags"]
        found = {entry[0] for line in history["ancestry"].values() for entry in line}
        snapshots, logged = [SnapshotId.parse(id) for id in sorted(found)], set()
    for id in snapshots:
        _assert_snapshot_alike(ours, repository, id)
        if id in logged:
            log, theirs = _log(ours.log(id)), repository.inspect_transaction_log(str(id))
            for array in theirs["updated_chunks"]:
                array["chunks"].sort()  # not sorted by releases 0.2.18 to 1.1.21
            assert log == {key: theirs[key] for key in log}


def _assert_snapshot_alike(ours: Folder, repository: Any, id: SnapshotId) -> None:
    snapshot = ours.snapshot(id)
    theirs = official.inspect(repository.inspect_snapshot(str(id)))
    seen = _snapshot(snapshot)
    if not any("shape" in node for node in theirs["nodes"]):
        for node in seen["nodes"]:
            node.pop("shape", None)  # older releases do not tell it
    lost = _lost(theirs["nodes"])
    theirs["nodes"].sort(key=_path)
    assert seen == _with_times({key: theirs[key] for key in seen})
    session = repository.readonly_session(snapshot_id=str(id))
    for node in snapshot.nodes:
        if node.path in lost:
            continue
        assert _document(session, node.path) == node.user_data
        if isinstance(node.node_data, ArrayNodeData):
            _assert_refs_alike(session, node, ours.refs_of(node))
    for info in snapshot.manifest_files:
        manifest = ours.manifest(info.id)
        assert sum(manifest.count(node) for node in manifest.nodes) == info.num_chunk_refs
        if hasattr(repository, "inspect_manifest"):
            _assert_manifest_alike(manifest, repository.inspect_manifest(str(info.id)))


def _lost(nodes: list[dict[str, Any]]) -> set[str]:
    """Return the nodes that a binary search misses in files of releases with another sort order."""
    return {
        node["path"] for row, node in enumerate(nodes) if bisect_left(nodes, _path(node), key=_path) != row
    }


def _path(node: Mapping[str, Any]) -> bytes:
    path: str = node["path"]
    return path.encode()


def _assert_manifest_alike(ours: PackedManifest, theirs: Mapping[str, Any]) -> None:
    counts = {}
    for node in ours.nodes:
        kinds = np.bincount(ours.array(node).kind, minlength=4)
        counts[str(node)] = (int(kinds[INLINE]), int(kinds[NATIVE]), int(kinds[VIRTUAL]))
    assert counts == {
        array["node_id"]: (array["num_inline"], array["num_native"], array["num_virtual"])
        for array in theirs["arrays"]
    }


def _assert_refs_alike(session: Any, node: NodeSnapshot, refs: ArrayManifest | None) -> None:
    path = node.path.strip("/")
    if not hasattr(session.store, "array_chunk_iterator"):
        coords = asyncio.run(_collect(session.chunk_coordinates(node.path)))
        found = sorted(map(tuple, refs.coords.tolist())) if refs is not None else []
        assert found == sorted(map(tuple, coords))
        return
    batches = asyncio.run(_collect(session.store.array_chunk_iterator(path)))
    theirs = {}
    for coords, kinds, locations, offsets, lengths, inline in batches:
        for row in range(len(coords)):
            kind = int(kinds[row])
            place = inline[row] if kind == INLINE else (locations[row], int(offsets[row]), int(lengths[row]))
            theirs[tuple(coords[row].tolist())] = (kind, place)
    assert _refs(refs, _containers(session.config)) == theirs


def _containers(config: Any) -> dict[str, str]:
    """Return the prefixes of relative locations, with the URLs that the official package shows instead."""
    containers = config.virtual_chunk_containers or {}
    return {f"vcc://{c.name}/": c.url_prefix for c in containers.values() if getattr(c, "name", None)}


def _refs(refs: ArrayManifest | None, containers: Mapping[str, str]) -> dict[tuple[int, ...], Any]:
    found: dict[tuple[int, ...], Any] = {}
    for row in range(len(refs) if refs is not None else 0):
        assert refs is not None
        ref, kind = refs.ref(row), int(refs.kind[row])
        place: Any = getattr(ref, "data", None)
        if kind == NATIVE:
            place = (str(ref.chunk_id), ref.offset, ref.length)  # type: ignore[union-attr]
        elif kind == VIRTUAL:
            location = ref.location  # type: ignore[union-attr]
            for begin, prefix in containers.items():
                location = location.replace(begin, prefix, 1) if location.startswith(begin) else location
            place = (location, ref.offset, ref.length)  # type: ignore[union-attr]
        found[tuple(refs.coords[row].tolist())] = (kind, place)
    return found


async def _collect(iterator: Any) -> list[Any]:
    return [item async for item in iterator]


def _document(session: Any, path: str) -> bytes:
    key = f"{path.strip('/')}/zarr.json".lstrip("/")
    data = asyncio.run(session.store.get(key, default_buffer_prototype()))
    return bytes(data.to_bytes())


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    manifests = [
        {"id": str(m.id), "size_bytes": m.size_bytes, "num_chunk_refs": m.num_chunk_refs}
        for m in snapshot.manifest_files
    ]
    return {
        "id": str(snapshot.id),
        "flushed_at": _time(snapshot.flushed_at_us),
        "commit_message": snapshot.message,
        "metadata": snapshot.metadata,
        "manifests": manifests,
        "nodes": [_node(node) for node in snapshot.nodes],
    }


def _node(node: NodeSnapshot) -> dict[str, Any]:
    seen: dict[str, Any] = {"id": str(node.id), "path": node.path}
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        return seen | {"node_type": "group"}
    refs = [{"id": str(m.id), "extents": [[r.start, r.stop] for r in m.extents]} for m in data.manifests]
    names = data.dimension_names or (None,) * len(data.shape)
    shape = [
        asdict(dimension) | ({} if name is None else {"name": name})
        for dimension, name in zip(data.shape, names, strict=True)
    ]
    return seen | {"node_type": "array", "shape": shape, "manifest_refs": refs}


def _log(log: TransactionLog) -> dict[str, Any]:
    seen: dict[str, Any] = {
        name: [str(NodeId(row.tobytes())) for row in getattr(log, name)] for name in LISTS
    }
    chunks = [{"node_id": str(node), "chunks": coords.tolist()} for node, coords in log.updated_chunks]
    moves = [{"from": move.from_path, "to": move.to_path} for move in log.moved_nodes]
    return seen | {"updated_chunks": chunks, "moved_nodes": moves}


def _repo_info(info: RepoInfo) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "branches": {name: str(id) for name, id in info.branches.items()},
        "tags": {name: str(id) for name, id in info.tags.items()},
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": [_info(entry) for entry in info.snapshots],
        "metadata": info.metadata,
        "latest_updates": [_update(update) for update in info.latest_updates],
    }
    if info.repo_before_updates is not None:
        seen["repo_before_updates"] = info.repo_before_updates
    return seen


def _info(entry: SnapshotInfo) -> dict[str, Any]:
    seen = {"id": str(entry.id), "flushed_at": _time(entry.flushed_at_us), "message": entry.message}
    seen |= {"metadata": entry.metadata}
    if entry.parent_id is not None:
        seen["parent_id"] = str(entry.parent_id)
    return seen


def _update(update: Update) -> dict[str, Any]:
    kind = update.update_type
    values = {column.name: _value(getattr(kind, column.name)) for column in fields(kind)}
    if isinstance(kind, UpdateType.RepoMigrated):
        values = {name: f"{number}.0" for name, number in values.items()}
    name = type(kind).__name__ + ("" if isinstance(kind, UpdateType.FeatureFlagChanged) else "Update")
    seen: dict[str, Any] = {"update_type": {"type": name, **values}}
    seen["updated_at"] = _time(update.updated_at_us)
    if update.backup_path is not None:
        seen["backup_path"] = update.backup_path
    return seen


def _value(value: Any) -> Any:
    if isinstance(value, SnapshotId):
        return str(value)
    if isinstance(value, RepoStatus):
        name = value.availability.name.title().replace("_", "")
        seen: dict[str, Any] = {"availability": name, "set_at": _time(value.set_at_us)}
        reason = value.limited_availability_reason
        return seen if reason is None else seen | {"limited_availability_reason": reason}
    return value


def _time(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def _with_times(value: Any) -> Any:
    """Return the same JSON with times as times: trailing zeros may be left out of their texts."""
    if isinstance(value, list):
        return [_with_times(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: datetime.fromisoformat(inner) if key in _TIMES and isinstance(inner, str) else _with_times(inner)
        for key, inner in value.items()
    }
