"""The FlatBuffers schemas of specification 2.1. V1 files use a subset of the same tables."""

from __future__ import annotations

from typing import Final

from icefloe.encoding.flatbuffers.schema import (
    TableSchema,
    blob,
    child,
    children,
    i32,
    struct,
    text,
    texts,
    u8,
    u16,
    u32,
    u64,
    union,
    vector,
)

OBJECT_ID: Final = 12
NODE_ID: Final = 8

MANIFEST_FILE_V1: Final = [
    ("id", "V12"),
    ("pad", "<u4"),
    ("size_bytes", "<u8"),
    ("num_chunk_refs", "<u4"),
    ("end", "<u4"),
]
"""The struct `ManifestFileInfo` with explicit padding."""

METADATA_ITEM = TableSchema("MetadataItem", {"name": text(0, required=True), "value": blob(1, required=True)})

# manifest.fbs

CHUNK_REF = TableSchema(
    "ChunkRef",
    {
        "index": vector(0, "<u4", 4, required=True),
        "inline": blob(1, shared=True),
        "offset": u64(2),
        "length": u64(3),
        "chunk_id": struct(4, OBJECT_ID),
        "location": text(5, shared=True),
        "checksum_etag": text(6, shared=True),
        "checksum_last_modified": u32(7),
        "compressed_location": blob(8, shared=True),
        "extra": blob(9),
    },
)

ARRAY_MANIFEST = TableSchema(
    "ArrayManifest",
    {
        "node_id": struct(0, NODE_ID, required=True),
        "refs": children(1, CHUNK_REF, required=True),
        "extra": blob(2),
    },
)

MANIFEST = TableSchema(
    "Manifest",
    {
        "id": struct(0, OBJECT_ID, required=True),
        "arrays": children(1, ARRAY_MANIFEST, required=True),
        "location_dictionary": blob(2),
        "compression_algorithm": u8(3, default=1),
        "extra": blob(4),
    },
)

# snapshot.fbs

DIMENSION_SHAPE_V2 = TableSchema("DimensionShapeV2", {"array_length": u64(0), "num_chunks": u32(1)})
DIMENSION_NAME = TableSchema("DimensionName", {"name": text(0)})

MANIFEST_REF = TableSchema(
    "ManifestRef",
    {
        "object_id": struct(0, OBJECT_ID, required=True),
        "extents": vector(1, [("from", "<u4"), ("to", "<u4")], 4, required=True),
    },
)

ARRAY_NODE_DATA = TableSchema(
    "ArrayNodeData",
    {
        "shape": vector(0, [("array_length", "<u8"), ("chunk_length", "<u8")], 8, required=True),
        "dimension_names": children(1, DIMENSION_NAME),
        "manifests": children(2, MANIFEST_REF, required=True),
        "shape_v2": children(3, DIMENSION_SHAPE_V2),
    },
)

GROUP_NODE_DATA = TableSchema("GroupNodeData", {})

ARRAY_NODE: Final = 1
GROUP_NODE: Final = 2

NODE_SNAPSHOT = TableSchema(
    "NodeSnapshot",
    {
        "id": struct(0, NODE_ID, required=True),
        "path": text(1, required=True),
        "user_data": blob(2, required=True),
        "node_data": union(3, {ARRAY_NODE: ARRAY_NODE_DATA, GROUP_NODE: GROUP_NODE_DATA}, required=True),
        "extra": blob(5),
    },
)

MANIFEST_FILE_INFO = TableSchema(
    "ManifestFileInfoV2",
    {"id": struct(0, OBJECT_ID), "size_bytes": u64(1), "num_chunk_refs": u32(2), "extra": blob(3)},
)

SNAPSHOT = TableSchema(
    "Snapshot",
    {
        "id": struct(0, OBJECT_ID, required=True),
        "parent_id": struct(1, OBJECT_ID),
        "nodes": children(2, NODE_SNAPSHOT, required=True),
        "flushed_at": u64(3),
        "message": text(4, required=True),
        "metadata": children(5, METADATA_ITEM, required=True),
        "manifest_files": vector(6, MANIFEST_FILE_V1, 8, required=True),
        "manifest_files_v2": children(7, MANIFEST_FILE_INFO),
        "extra": blob(8),
    },
)

# transaction_log.fbs

CHUNK_INDICES = TableSchema("ChunkIndices", {"coords": vector(0, "<u4", 4, required=True)})

ARRAY_UPDATED_CHUNKS = TableSchema(
    "ArrayUpdatedChunks",
    {"node_id": struct(0, NODE_ID, required=True), "chunks": children(1, CHUNK_INDICES, required=True)},
)

MOVE_OPERATION = TableSchema(
    "MoveOperation", {"from": text(0), "to": text(1), "node_id": struct(2, NODE_ID), "node_type": u8(3)}
)

TRANSACTION_LOG = TableSchema(
    "TransactionLog",
    {
        "id": struct(0, OBJECT_ID, required=True),
        "new_groups": vector(1, "V8", 1, required=True),
        "new_arrays": vector(2, "V8", 1, required=True),
        "deleted_groups": vector(3, "V8", 1, required=True),
        "deleted_arrays": vector(4, "V8", 1, required=True),
        "updated_arrays": vector(5, "V8", 1, required=True),
        "updated_groups": vector(6, "V8", 1, required=True),
        "updated_chunks": children(7, ARRAY_UPDATED_CHUNKS, required=True),
        "moved_nodes": children(8, MOVE_OPERATION),
        "extra": blob(9),
    },
)

# repo.fbs

REF = TableSchema("Ref", {"name": text(0, required=True), "snapshot_index": u32(1)})

SNAPSHOT_INFO = TableSchema(
    "SnapshotInfo",
    {
        "id": struct(0, OBJECT_ID, required=True),
        "parent_offset": i32(1),
        "flushed_at": u64(2),
        "message": text(3, required=True),
        "metadata": children(4, METADATA_ITEM),
        "pruned_ancestor_tx_logs": vector(5, "V12", 1),  # spec 2.1
    },
)

REPO_STATUS = TableSchema(
    "RepoStatus", {"availability": u8(0), "set_at": u64(1), "limited_availability_reason": text(2)}
)

_NAME = text(0, required=True)
_PREVIOUS = struct(1, OBJECT_ID, required=True)

UPDATE_KINDS: Final = {
    1: TableSchema("RepoInitializedUpdate", {}),
    2: TableSchema("RepoMigratedUpdate", {"from_version": u8(0), "to_version": u8(1)}),
    3: TableSchema("ConfigChangedUpdate", {}),
    4: TableSchema("MetadataChangedUpdate", {}),
    5: TableSchema("TagCreatedUpdate", {"name": _NAME}),
    6: TableSchema("TagDeletedUpdate", {"name": _NAME, "previous_snap_id": _PREVIOUS}),
    7: TableSchema("BranchCreatedUpdate", {"name": _NAME}),
    8: TableSchema("BranchDeletedUpdate", {"name": _NAME, "previous_snap_id": _PREVIOUS}),
    9: TableSchema("BranchResetUpdate", {"name": _NAME, "previous_snap_id": _PREVIOUS}),
    10: TableSchema("NewCommitUpdate", {"branch": _NAME, "new_snap_id": struct(1, OBJECT_ID, required=True)}),
    11: TableSchema(
        "CommitAmendedUpdate",
        {
            "branch": _NAME,
            "previous_snap_id": _PREVIOUS,
            "new_snap_id": struct(2, OBJECT_ID, required=True),
        },
    ),
    12: TableSchema("NewDetachedSnapshotUpdate", {"new_snap_id": struct(0, OBJECT_ID, required=True)}),
    13: TableSchema("GCRanUpdate", {}),
    14: TableSchema("ExpirationRanUpdate", {}),
    15: TableSchema("FeatureFlagChangedUpdate", {"id": u16(0), "new_value": u8(1), "is_set": u8(2)}),
    16: TableSchema("RepoStatusChangedUpdate", {"status": child(0, REPO_STATUS)}),
}

UPDATE = TableSchema(
    "Update",
    {"update_type": union(0, UPDATE_KINDS, required=True), "updated_at": u64(2), "backup_path": text(3)},
)

REPO = TableSchema(
    "Repo",
    {
        "spec_version": u8(0),
        "tags": children(1, REF, required=True),
        "branches": children(2, REF, required=True),
        "deleted_tags": texts(3, required=True),
        "snapshots": children(4, SNAPSHOT_INFO, required=True),
        "status": child(5, REPO_STATUS, required=True),
        "metadata": children(6, METADATA_ITEM),
        "latest_updates": children(7, UPDATE, required=True),
        "repo_before_updates": text(8),
        "config": blob(9),
        "enabled_feature_flags": vector(10, "<u2", 2),
        "disabled_feature_flags": vector(11, "<u2", 2),
        "extra": blob(12),
    },
)
