"""Inspect metadata files: return their content as dictionaries, in the official package's form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from icefloe._internal.ids import ManifestId, NodeId, ObjectId, SnapshotId, encode_column
from icefloe._internal.times import from_microseconds
from icefloe.core.assets import AssetStore
from icefloe.core.commit.flush import merge_logs
from icefloe.core.refs.base import read_only_format
from icefloe.encoding.envelope import open_header
from icefloe.format.files import (
    MANIFESTS,
    REPO_PATH,
    SNAPSHOTS,
    TRANSACTIONS,
    read_manifest,
    read_repo_info,
    read_snapshot,
    read_transaction_log,
)
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.format.transaction_log import LISTS, TransactionLog
from icefloe.format.updates import RepoStatus, Update
from icefloe.ops import UpdateType
from icefloe.storage.base import ObjectNotFoundError

_FILE_TYPES = {1: "snapshot", 2: "manifest", 4: "transaction-log", 6: "repo-info"}


def inspect_snapshot(assets: AssetStore, id: SnapshotId) -> dict[str, Any]:
    """Return the content of a snapshot file as a dictionary, with its nodes and manifests."""
    path = f"{SNAPSHOTS}/{id}"
    data = _decode_contents(assets, path)
    snapshot = read_snapshot(data, id)
    return {
        "id": str(id),
        "header": _read_header(data, path),
        "flushed_at": _time(snapshot.flushed_at_us),
        "commit_message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "manifests": [
            {"id": str(i.id), "size_bytes": i.size_bytes, "num_chunk_refs": i.num_chunk_refs}
            for i in snapshot.manifest_files
        ],
        "nodes": [_describe_node(node) for node in snapshot.nodes],
    }


def inspect_repo_info(assets: AssetStore) -> dict[str, Any]:
    """Return the content of the repo info file as a dictionary, with refs, history and latest operations."""
    data, _ = assets.storage.get(REPO_PATH)
    info = read_repo_info(data)
    header = _read_header(data, REPO_PATH)
    found: dict[str, Any] = {
        "header": header,
        "spec_version": header["spec_version"],
        "branches": {name: str(info.branches[name]) for name in sorted(info.branches)},
        "tags": {name: str(info.tags[name]) for name in sorted(info.tags)},
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": [_describe_snapshot(each) for each in info.snapshots],
        "metadata": dict(info.metadata),
        "latest_updates": [_update(each) for each in info.latest_updates],
    }
    return found | _drop_unset(repo_before_updates=info.repo_before_updates)


def inspect_manifest(assets: AssetStore, id: ManifestId) -> dict[str, Any]:
    """Return the content of a manifest file as a dictionary, with the number of references of each array."""
    path = f"{MANIFESTS}/{id}"
    data = _decode_contents(assets, path)
    manifest = read_manifest(data, id)
    arrays = [{"node_id": str(node), **_counts(manifest, node)} for node in manifest.nodes]
    dictionary = manifest.location_dictionary
    return {
        "id": str(id),
        "header": _read_header(data, path),
        "size_bytes": manifest.nbytes,
        "num_arrays": len(arrays),
        "total_chunk_refs": sum(each["num_chunk_refs"] for each in arrays),
        "total_inline": sum(each["num_inline"] for each in arrays),
        "total_native": sum(each["num_native"] for each in arrays),
        "total_virtual": sum(each["num_virtual"] for each in arrays),
        "arrays": arrays,
        "compression": {
            "uses_location_compression": dictionary is not None,
            **_drop_unset(dictionary_size_bytes=None if dictionary is None else len(dictionary)),
            "num_compressed_refs": sum(map(manifest.count_compressed, manifest.nodes)),
        },
    }


def inspect_transaction_log(
    assets: AssetStore, id: SnapshotId, pruned: Iterable[SnapshotId] = ()
) -> dict[str, Any]:
    """Return the content of a transaction log as a dictionary, merged with the logs of expired snapshots."""
    path = f"{TRANSACTIONS}/{id}"
    data = _decode_contents(assets, path)
    logs = [read_transaction_log(data, id)]
    merged: list[SnapshotId] = []
    missing: list[SnapshotId] = []
    for each in pruned:
        try:
            logs.insert(len(merged), assets.transaction_log(each))
            merged.append(each)
        except ObjectNotFoundError:
            missing.append(each)
    shown = {"header": _read_header(data, path)} | _log(merge_logs(id, logs) if merged else logs[0])
    if merged or missing:
        shown["synthetic_composite"] = {
            "note": "the changes of expired snapshots are merged into this log",
            "merged_pruned_ancestor_tx_logs": list(map(str, merged)),
            "missing_tx_logs": list(map(str, missing)),
        }
    return shown


def _decode_contents(assets: AssetStore, path: str) -> bytes:
    if not assets.spec.writable:  # before version 1, files had different names and headers
        raise read_only_format("inspecting files")
    return assets.storage.get(path)[0]


def _read_header(data: bytes, path: str) -> dict[str, str]:
    header = open_header(data, path)
    name, _, version = header.implementation.partition("-")
    return {
        "written_by": header.implementation,
        "app_name": name,
        "app_version": version,
        "spec_version": f"{header.spec}.0",
        "file_type": _FILE_TYPES[header.file_type],
        "compression": "zstd",
    }


def _describe_node(node: NodeSnapshot) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": str(node.id), "path": node.path}
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        return shown | {"node_type": "group"}
    names = data.names
    return shown | {
        "node_type": "array",
        "shape": [
            {**_drop_unset(name=name), "array_length": size.array_length, "num_chunks": size.num_chunks}
            for name, size in zip(names, data.shape, strict=False)
        ],
        "manifest_refs": [
            {"id": str(ref.id), "extents": [[extent.start, extent.stop] for extent in ref.extents]}
            for ref in data.manifests
        ],
    }


def _counts(manifest: PackedManifest, node: NodeId) -> dict[str, int]:
    refs = manifest.array(node)
    kinds = {"num_inline": INLINE, "num_native": NATIVE, "num_virtual": VIRTUAL}
    counts = {name: int(np.count_nonzero(refs.kind == kind)) for name, kind in kinds.items()}
    return {"num_chunk_refs": len(refs)} | counts


def _log(log: TransactionLog) -> dict[str, Any]:
    return {
        **{name: encode_column(getattr(log, name)) for name in LISTS},
        "updated_chunks": [
            {"node_id": str(node), "chunks": coords.tolist()} for node, coords in log.updated_chunks
        ],
        "moved_nodes": [{"from": move.from_path, "to": move.to_path} for move in log.moved_nodes],
    }


def _describe_snapshot(info: SnapshotInfo) -> dict[str, Any]:
    return {
        "id": str(info.id),
        **_drop_unset(parent_id=None if info.parent_id is None else str(info.parent_id)),
        "flushed_at": _time(info.flushed_at_us),
        "message": info.message,
        "metadata": dict(info.metadata),
    }


def _update(update: Update) -> dict[str, Any]:
    kind = update.update_type
    name = type(kind).__name__
    values = {item.name: _to_plain(getattr(kind, item.name)) for item in fields(kind)}
    return {
        "update_type": {
            "type": name if isinstance(kind, UpdateType.FeatureFlagChanged) else f"{name}Update",
            **values,
        },
        "updated_at": _time(update.updated_at_us),
        **_drop_unset(backup_path=update.backup_path),
    }


def _to_plain(value: Any) -> Any:
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, RepoStatus):
        name = value.availability.name.title().replace("_", "")
        reason = value.limited_availability_reason
        return {
            "availability": name,
            "limited_availability_reason": reason,
            "set_at": _time(value.set_at_us),
        }
    return value


def _drop_unset(**values: Any) -> dict[str, Any]:
    """Drop the values that are None, which the official form omits."""
    return {name: value for name, value in values.items() if value is not None}


def _time(since_1970_us: int) -> str:
    return from_microseconds(since_1970_us).isoformat().replace("+00:00", "Z")
