"""The content of written files, field by field: the order and the fields that the specification requires."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe import __version__
from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe._internal.paths import make_component_key
from icefloe.encoding.envelope import HEADER, MAGIC, FileType, open_header, open_payload
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.reader import Payload, read_root
from icefloe.encoding.flatbuffers.tables import to_rows
from icefloe.format import files
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import ArrayManifest, ChunkRef, InlineRef, Manifest, VirtualRef
from icefloe.format.schema import MANIFEST, REPO, SNAPSHOT, TRANSACTION_LOG
from icefloe.format.snapshot import GroupNodeData, ManifestFiles, Nodes, NodeSnapshot, Snapshot
from icefloe.format.spec import V1, V2, Spec
from icefloe.format.transaction_log import LISTS
from tests.support.format import strategies

SPECS = pytest.mark.parametrize("spec", [V1, V2], ids=["V1", "V2"])


def fields_of(data: bytes, table: fb.TableSchema) -> dict[str, Any]:
    """Return the root table of a file without sorting or default values."""
    payload = Payload(open_payload(data, "written"), "written")
    (row,) = to_rows(table, read_root(payload, table), "written")
    return row


def ascending(values: list[Any]) -> bool:
    return all(before < after for before, after in pairwise(values))


@SPECS
@given(data=st.data())
def test_snapshot_lists_are_sorted(spec: Spec, data: st.DataObject) -> None:
    value: Snapshot = data.draw(strategies.snapshots(spec))

    row = fields_of(files.write_snapshot(value, spec), SNAPSHOT)

    assert ascending([node["path"].encode() for node in row["nodes"]])
    assert ascending([item["name"].encode() for item in row["metadata"]])
    assert ascending([entry["id"] for entry in row["manifest_files_v2"] or ()])
    assert ascending([bytes(entry[0]) for entry in row["manifest_files"]])


@given(strategies.snapshots(V2))
def test_version_2_snapshot_has_only_version_2_fields(value: Snapshot) -> None:
    row = fields_of(files.write_snapshot(value, V2), SNAPSHOT)

    assert row["parent_id"] is None
    assert row["manifest_files"] == []
    assert len(row["manifest_files_v2"]) == len(value.manifest_files)
    assert all(entry["id"] is not None for entry in row["manifest_files_v2"])
    for node in row["nodes"]:
        kind, array = node["node_data"]
        if kind == 1:
            assert array["shape"] == []
            assert array["shape_v2"] is not None


@given(strategies.snapshots(V1))
def test_version_1_snapshot_has_only_version_1_fields(value: Snapshot) -> None:
    row = fields_of(files.write_snapshot(value, V1), SNAPSHOT)

    assert row["parent_id"] == (None if value.parent_id is None else bytes(value.parent_id))
    assert row["manifest_files_v2"] is None
    assert len(row["manifest_files"]) == len(value.manifest_files)
    assert row["extra"] is None
    arrays = [node["node_data"][1] for node in row["nodes"] if node["node_data"][0] == 1]
    assert all(array["shape_v2"] is None for array in arrays)


def test_nodes_are_written_in_the_order_of_their_bytes() -> None:
    nodes = [
        NodeSnapshot(NodeId(bytes(8)), path, b"{}", GroupNodeData())
        for path in ("/a/b", "/a", "/ab", "/a-b", "/")
    ]
    value = Snapshot(SnapshotId(bytes(12)), None, 0, "", {}, ManifestFiles.of([]), Nodes.of(nodes))

    row = fields_of(files.write_snapshot(value, V2), SNAPSHOT)

    assert [node["path"] for node in row["nodes"]] == ["/", "/a", "/a-b", "/a/b", "/ab"]


@SPECS
@given(data=st.data())
def test_manifest_lists_are_sorted_with_one_payload_per_reference(spec: Spec, data: st.DataObject) -> None:
    value: Manifest = data.draw(strategies.manifests())
    compression = data.draw(st.sampled_from([None, LocationCompression(min_num_chunks=1)]))

    row = fields_of(files.write_manifest(value, spec, compression=compression), MANIFEST)

    assert ascending([array["node_id"] for array in row["arrays"]])
    for array in row["arrays"]:
        assert ascending([ref["index"] for ref in array["refs"]])
        for ref in array["refs"]:
            payloads = [ref[name] for name in ("inline", "chunk_id", "location", "compressed_location")]
            assert sum(payload is not None for payload in payloads) == 1
            assert ref["checksum_etag"] is None or not ref["checksum_last_modified"]
            if not spec.compressed_locations:
                assert ref["compressed_location"] is None


@pytest.mark.parametrize(("spec", "compressed"), [(V1, False), (V2, True)], ids=["V1", "V2"])
def test_locations_are_compressed_only_with_a_dictionary(spec: Spec, compressed: bool) -> None:
    refs: dict[tuple[int, ...], ChunkRef] = {
        (i,): VirtualRef(f"s3://bucket/prefix/{i % 7}/file-{i:04}.nc", i, 1) for i in range(2000)
    }
    value = Manifest(ManifestId(bytes(12)), {NodeId(bytes(8)): ArrayManifest.from_refs(refs, 1)})

    row = fields_of(files.write_manifest(value, spec, compression=LocationCompression()), MANIFEST)

    assert row["compression_algorithm"] == (1 if compressed else 0)
    assert (row["location_dictionary"] is not None) == compressed
    written = row["arrays"][0]["refs"]
    assert all((ref["compressed_location"] is not None) == compressed for ref in written)
    assert all((ref["location"] is None) == compressed for ref in written)


def test_manifest_declares_uncompressed_locations() -> None:
    refs = ArrayManifest.from_refs({(0,): InlineRef(b"x")}, 1)

    row = fields_of(
        files.write_manifest(Manifest(ManifestId(bytes(12)), {NodeId(bytes(8)): refs}), V2), MANIFEST
    )

    assert row["compression_algorithm"] == 0


@SPECS
@given(data=st.data())
def test_transaction_log_lists_are_sorted(spec: Spec, data: st.DataObject) -> None:
    value = data.draw(strategies.transaction_logs(spec))

    row = fields_of(files.write_transaction_log(value, spec), TRANSACTION_LOG)

    assert row["id"] == bytes(value.id)
    assert all(ascending(row[name]) for name in LISTS)
    assert ascending([array["node_id"] for array in row["updated_chunks"]])
    for array in row["updated_chunks"]:
        coords = [chunk["coords"] for chunk in array["chunks"]]
        assert ascending(coords)
        assert len(set(map(len, coords))) <= 1
    moves = row["moved_nodes"]
    assert (moves is not None) == spec.moves
    assert ascending([make_component_key(move["to"]) for move in moves or ()])
    assert all(None not in move.values() for move in moves or ())


@given(strategies.repo_infos())
def test_repo_info_lists_are_sorted(value: Any) -> None:
    row = fields_of(files.write_repo_info(value, V2), REPO)

    assert row["spec_version"] == 2
    for name in ("tags", "branches"):
        assert ascending([ref["name"].encode() for ref in row[name]])
    assert ascending([name.encode() for name in row["deleted_tags"]])
    assert ascending([entry["id"] for entry in row["snapshots"]])
    assert ascending(row["enabled_feature_flags"] or [])
    assert ascending(row["disabled_feature_flags"] or [])
    assert row["latest_updates"][0]["backup_path"] is None
    assert ascending([-update["updated_at"] for update in row["latest_updates"]])
    assert all(entry["metadata"] is not None for entry in row["snapshots"])
    assert row["metadata"] is not None


WRITTEN: dict[FileType, Any] = {
    FileType.SNAPSHOT: (strategies.snapshots(V2), files.write_snapshot),
    FileType.MANIFEST: (strategies.manifests(), files.write_manifest),
    FileType.TRANSACTION_LOG: (strategies.transaction_logs(V2), files.write_transaction_log),
    FileType.REPO_INFO: (strategies.repo_infos(), files.write_repo_info),
}


@pytest.mark.parametrize("file_type", FileType)
@settings(max_examples=5)
@given(data=st.data())
def test_every_file_has_the_standard_envelope(file_type: FileType, data: st.DataObject) -> None:
    values, write = WRITTEN[file_type]

    written = write(data.draw(values), V2)

    magic, name, spec, kind, compression = HEADER.unpack_from(written)
    assert magic == MAGIC == bytes.fromhex("494345f09fa78a4348554e4b")
    assert name == f"icefloe-{__version__}".encode().ljust(24)
    assert (spec, kind, compression) == (2, file_type, 1)
    assert open_header(written, "x").file_type is file_type
    assert bytes(open_payload(written, "x")[4:8]) == b"Ichk"
