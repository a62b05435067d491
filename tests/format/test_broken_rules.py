"""Files that are well-formed but violate the specification, and values that the encoder rejects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe.encoding import flexbuffers, msgpack
from icefloe.encoding.envelope import FileType, Header, seal
from icefloe.errors import ErrorKind, FormatError
from icefloe.format import files
from icefloe.format.manifest import NATIVE, ArrayManifest, InlineRef, Manifest
from icefloe.format.repo_info import RepoInfo, SnapshotInfo, SnapshotInfos
from icefloe.format.schema import MANIFEST, REPO, SNAPSHOT, TRANSACTION_LOG
from icefloe.format.snapshot import (
    ArrayNodeData,
    DimensionShape,
    ManifestFiles,
    ManifestRef,
    Nodes,
    NodeSnapshot,
    Snapshot,
)
from icefloe.format.spec import V1, V2, Spec
from icefloe.format.transaction_log import LISTS, MoveOperation, NodeType, TransactionLog
from icefloe.format.updates import RepoAvailability
from tests.support.format import flatbuffer_writer
from tests.support.format.damaged_files import Sample, outcome, read, refused
from tests.support.format.flatbuffer_writer import Graph, Number, Pointers, Table, Vector, Written

SEEDS = (None, 1, 2, 3)
Row = dict[str, Any]


def file_of(file_type: FileType, payload: bytes, spec: Spec = V2) -> Sample:
    id = ManifestId(bytes(12)) if file_type is FileType.MANIFEST else SnapshotId(bytes(12))
    data = seal(np.frombuffer(payload, np.uint8), Header("broken", spec.number, file_type), 1)
    return Sample("broken", file_type, id, data)


def sample(schema: Any, row: Mapping[str, Any], seed: int | None = None, spec: Spec = V2) -> Sample:
    types = {"Snapshot": FileType.SNAPSHOT, "Manifest": FileType.MANIFEST, "Repo": FileType.REPO_INFO}
    payload = flatbuffer_writer.write(schema, row, seed)
    return file_of(types.get(schema.name, FileType.TRANSACTION_LOG), payload, spec)


def node_id(number: int) -> bytes:
    return number.to_bytes(8, "big")


def object_id(number: int) -> bytes:
    return number.to_bytes(12, "big")


# Manifests


def ref(*coords: int, **fields: Any) -> Row:
    return {"index": list(coords), **(fields or {"inline": b"x"})}


def manifest(*refs: Row, **fields: Any) -> Row:
    return {"id": bytes(12), "arrays": [{"node_id": node_id(1), "refs": list(refs)}], **fields}


REFERENCES = {
    "not in ascending order": [ref(1), ref(0)],
    "not in ascending order at": [ref(1, 0), ref(0, 1)],
    "ascending": [ref(1), ref(1)],
    "coordinates of different lengths": [ref(0), ref(0, 1)],
    "exactly one is allowed": [ref(0, inline=b"", chunk_id=bytes(12))],
    "inline and location": [ref(0, inline=b"", location="s3://a")],
    "compressed_location and location": [ref(0, location="a", compressed_location=b"a")],
    "no inline data": [ref(0, offset=5, length=5)],
    "no location": [ref(0), ref(1, extra=b"x"), ref(2)],
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("message", REFERENCES)
def test_invalid_references_are_rejected(message: str, seed: int | None) -> None:
    assert message in refused(sample(MANIFEST, manifest(*REFERENCES[message]), seed)).message


def test_lookup_detects_unsorted_references() -> None:
    shuffled = [ref(i) for i in (0, 1, 9, 3, 4, 2, 6)]
    packed = files.read_manifest(sample(MANIFEST, manifest(*shuffled)).data, ManifestId(bytes(12)))

    with pytest.raises(FormatError, match=r"^manifests/0{20}: .* not in ascending order"):
        packed.find(NodeId(node_id(1)), (5,))


def test_references_of_another_rank_can_be_dropped() -> None:
    packed = files.read_manifest(
        sample(MANIFEST, manifest(ref(0), ref(0, 1), ref(2))).data, ManifestId(bytes(12))
    )

    found = packed.array(NodeId(node_id(1)), rank=1)

    assert found.coords.tolist() == [[0], [2]]


def test_references_of_another_rank_are_dropped_for_scalars() -> None:
    packed = files.read_manifest(sample(MANIFEST, manifest(ref(0), ref(1))).data, ManifestId(bytes(12)))

    found = packed.array(NodeId(node_id(1)), rank=0)

    assert found.coords.shape == (0, 0)


@pytest.mark.parametrize("nodes", [(2, 1), (1, 1)])
def test_arrays_in_a_manifest_must_be_sorted(nodes: tuple[int, int]) -> None:
    arrays = [{"node_id": node_id(node), "refs": []} for node in nodes]

    assert "Manifest.arrays" in refused(sample(MANIFEST, {"id": bytes(12), "arrays": arrays})).message


@pytest.mark.parametrize("algorithm", [2, 255])
def test_unknown_compression_of_locations_is_rejected(algorithm: int) -> None:
    row = manifest(ref(0, compressed_location=b"x"), compression_algorithm=algorithm)

    assert "compression" in refused(sample(MANIFEST, row)).message


def test_location_that_declares_gigabytes_is_rejected() -> None:
    claim = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\0\0"

    error = refused(sample(MANIFEST, manifest(ref(0, compressed_location=claim))))

    assert "declares" in error.message


def test_manifest_with_only_version_1_fields_is_read() -> None:
    """Releases up to 1.1.21 know neither compression_algorithm nor location_dictionary."""
    assert not isinstance(
        outcome(sample(MANIFEST, manifest(ref(0, location="s3://a")), spec=V1)), FormatError
    )


# Snapshots


def array(*manifests: Row, rank: int = 1, **fields: Any) -> tuple[int, Row]:
    shape = [{"array_length": 9, "num_chunks": 9}] * rank
    return 1, {"shape": [], "shape_v2": shape, "manifests": list(manifests), **fields}


def node(path: str, data: tuple[int, Row] = (2, {}), number: int = 1) -> Row:
    return {"id": node_id(number), "path": path, "user_data": b"{}", "node_data": data}


def snapshot(*nodes: Row, **fields: Any) -> Row:
    row: Row = {"id": bytes(12), "nodes": list(nodes), "message": "", "metadata": [], "manifest_files": []}
    row["manifest_files_v2"] = [{"id": object_id(i), "size_bytes": 1, "num_chunk_refs": 1} for i in range(3)]
    return row | fields


def extent(number: int, *pairs: tuple[int, int]) -> Row:
    return {"object_id": object_id(number), "extents": list(pairs)}


SNAPSHOTS: dict[str, Row] = {
    "two nodes at /a": snapshot(node("/a"), node("/b"), node("/a")),
    "must start with '/'": snapshot(node("a")),
    "'..'": snapshot(node("/a/../b")),
    "cover the same chunks": snapshot(node("/a", array(extent(0, (0, 5)), extent(1, (4, 6))))),
    "manifests of /b cover": snapshot(node("/a"), node("/b", array(extent(0), extent(1), rank=0))),
    "that the snapshot does not list": snapshot(node("/a", array(extent(7, (0, 1))))),
    "manifest files are not in ascending order": snapshot(
        manifest_files_v2=[{"id": object_id(i)} for i in (1, 0)]
    ),
    "a manifest file has no id": snapshot(manifest_files_v2=[{"size_bytes": 1}]),
    "duplicate metadata 'a'": snapshot(
        metadata=[{"name": "a", "value": flexbuffers.dumps(1)} for _ in range(2)]
    ),
    "metadata 'a'": snapshot(metadata=[{"name": "a", "value": b"\xff\xff\xff"}]),
    "chunk_length is 0": snapshot(node("/a", (1, {"shape": [(5, 0)], "manifests": []}))),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("message", SNAPSHOTS)
def test_snapshots_that_break_a_rule_are_rejected(message: str, seed: int | None) -> None:
    assert message in refused(sample(SNAPSHOT, SNAPSHOTS[message], seed)).message


def test_unlisted_manifest_has_its_own_error_kind() -> None:
    error = refused(sample(SNAPSHOT, SNAPSHOTS["that the snapshot does not list"]))

    assert error.kind == ErrorKind.MANIFEST_INFO_NOT_FOUND


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_of_a_snapshot_are_found_in_any_order(seed: int | None) -> None:
    """Releases before 1.1.3 sorted nodes by segments; official readers cannot find all of them."""
    found = read(sample(SNAPSHOT, snapshot(node("/"), node("/a"), node("/a/b"), node("/a-b")), seed))

    assert isinstance(found, Snapshot)
    assert found.nodes.paths() == ["/", "/a", "/a-b", "/a/b"]
    assert all(found.nodes.find(path) is not None for path in found.nodes.paths())


def test_large_snapshot_in_component_order_is_read() -> None:
    paths = [path for i in range(600) for path in (f"/{i:04}", f"/{i:04}/b", f"/{i:04}-b")]
    file = sample(SNAPSHOT, snapshot(*map(node, paths)))

    for path in (paths[1], paths[2], paths[-1], paths[-2]):
        nodes = files.read_snapshot(file.data, SnapshotId(bytes(12))).nodes
        found = nodes.find(path)
        assert found is not None
        assert found.path == path


def test_manifests_written_before_a_rank_change_are_read() -> None:
    stale, current = extent(0, (0, 5)), extent(1, (0, 5), (0, 5))
    file = sample(SNAPSHOT, snapshot(node("/a", array(stale, current, rank=2))))

    found = files.read_snapshot(file.data, SnapshotId(bytes(12))).nodes.find("/a")

    assert found is not None
    assert isinstance(found.node_data, ArrayNodeData)
    assert [len(ref.extents) for ref in found.node_data.manifests] == [1, 2]


def test_chunk_counts_beyond_32_bits_are_clipped() -> None:
    file = sample(SNAPSHOT, snapshot(node("/a", (1, {"shape": [(1 << 62, 1)], "manifests": []}))))

    found = files.read_snapshot(file.data, SnapshotId(bytes(12))).nodes.find("/a")

    assert found is not None
    assert isinstance(found.node_data, ArrayNodeData)
    assert found.node_data.shape == (DimensionShape(1 << 62, (1 << 32) - 1),)


def test_large_snapshot_is_checked_when_columns_are_built() -> None:
    file = sample(SNAPSHOT, snapshot(*(node(f"/{i % 1200:04}") for i in range(1201))))

    nodes = files.read_snapshot(file.data, SnapshotId(bytes(12))).nodes

    with pytest.raises(FormatError, match=r"^snapshots/0{20}: two nodes at /0000"):
        list(nodes)


def test_paths_are_normalized() -> None:
    """Official releases stored some paths as users typed them."""
    found = read(sample(SNAPSHOT, snapshot(node("/a//b/"), node("/./c"))))

    assert isinstance(found, Snapshot)
    assert found.nodes.paths() == ["/a/b", "/c"]


def test_version_1_shapes_in_a_version_2_snapshot_are_read() -> None:
    mixed = [node("/a", (1, {"shape": [(10, 3)], "manifests": []})), node("/b", array())]
    found = outcome(sample(SNAPSHOT, snapshot(*mixed)))

    assert isinstance(found, Snapshot)
    shapes = [n.node_data.shape for n in found.nodes if isinstance(n.node_data, ArrayNodeData)]
    assert shapes == [(DimensionShape(10, 4),), (DimensionShape(9, 9),)]


def test_version_1_manifest_files_in_a_version_2_snapshot_are_read() -> None:
    entry = (object_id(5), 0, 77, 3, 0)
    found = outcome(sample(SNAPSHOT, snapshot(manifest_files=[entry], manifest_files_v2=None)))

    assert isinstance(found, Snapshot)
    assert [(file.id, file.size_bytes, file.num_chunk_refs) for file in found.manifest_files] == [
        (ManifestId(object_id(5)), 77, 3)
    ]


def test_parent_in_a_version_2_snapshot_is_ignored() -> None:
    found = read(sample(SNAPSHOT, snapshot(parent_id=object_id(3))))

    assert isinstance(found, Snapshot)
    assert found.parent_id is None


def test_metadata_of_version_1_is_messagepack() -> None:
    row = snapshot(metadata=[{"name": "a", "value": msgpack.dumps({"b": 1})}])

    found = read(sample(SNAPSHOT, row, spec=V1))

    assert isinstance(found, Snapshot)
    assert found.metadata == {"a": {"b": 1}}


# Transaction logs


def log(**fields: Any) -> Row:
    return {"id": bytes(12), **{name: [] for name in LISTS}, "updated_chunks": [], **fields}


def move(start: str, end: str, number: int = 1, **fields: Any) -> Row:
    return {"from": start, "to": end, "node_id": node_id(number), "node_type": 1, **fields}


LOGS: dict[str, Row] = {
    "MoveOperation.from is missing": log(moved_nodes=[move("/a", "/b") | {"from": None}]),
    "MoveOperation.to is missing": log(moved_nodes=[move("/a", "/b", to=None)]),
    "MoveOperation.node_id is missing": log(moved_nodes=[move("/a", "/b", node_id=None)]),
    "node_type 2 is unknown": log(moved_nodes=[move("/a", "/b", node_type=2)]),
    "moved to itself": log(moved_nodes=[move("/a", "/a")]),
    "more than one move leads to /b": log(moved_nodes=[move("/a", "/b", 1), move("/c", "/b", 2)]),
    "more than one move begins at /a": log(moved_nodes=[move("/a", "/b", 1), move("/a", "/c", 2)]),
    "more than one move is of node": log(moved_nodes=[move("/a", "/b", 1), move("/c", "/d", 1)]),
    "not canonical": log(moved_nodes=[move("/a/", "/b")]),
}


def test_transaction_log_of_a_rank_change_keeps_both_ranks() -> None:
    chunks = [{"coords": coords} for coords in ([0], [0, 0], [2, 2], [1], [1])]
    file = sample(TRANSACTION_LOG, log(updated_chunks=[{"node_id": node_id(1), "chunks": chunks}]))

    found = files.read_transaction_log(file.data, SnapshotId(bytes(12)))

    assert [coords.tolist() for _, coords in found.updated_chunks] == [[[0], [1]], [[0, 0], [2, 2]]]
    again = files.read_transaction_log(files.write_transaction_log(found, V2), SnapshotId(bytes(12)))
    assert again == found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("message", LOGS)
def test_invalid_transaction_logs_are_rejected(message: str, seed: int | None) -> None:
    assert message in refused(sample(TRANSACTION_LOG, LOGS[message], seed)).message


def test_unsorted_transaction_logs_are_sorted() -> None:
    """Python 0.2.18 to 1.1.21 wrote such logs when manifests were split."""
    chunks = [{"coords": [2]}, {"coords": [0]}, {"coords": [2]}]
    row = log(
        new_groups=[node_id(2), node_id(1)],
        updated_chunks=[{"node_id": node_id(n), "chunks": chunks} for n in (2, 1, 2)],
        moved_nodes=[move("/x", "/a-b", 1), move("/y", "/a/b", 2)],
    )

    found = outcome(sample(TRANSACTION_LOG, row))

    assert isinstance(found, TransactionLog)
    assert found.new_groups.tolist() == [list(node_id(1)), list(node_id(2))]
    assert [(node, c.tolist()) for node, c in found.updated_chunks] == [
        (NodeId(node_id(n)), [[0], [2]]) for n in (1, 2)
    ]
    assert [move.to_path for move in found.moved_nodes] == ["/a/b", "/a-b"]


def test_node_listed_several_times_in_a_transaction_log_is_accepted() -> None:
    """The log of an amended commit is a plain union."""
    row = log(new_arrays=[node_id(1)], updated_arrays=[node_id(1)], deleted_arrays=[node_id(1)])

    assert isinstance(outcome(sample(TRANSACTION_LOG, row)), TransactionLog)


# Repo info


def info(*ids: int, **fields: Any) -> Row:
    listed = [
        {"id": object_id(i), "parent_offset": row - 1, "flushed_at": i, "message": str(i)}
        for row, i in enumerate(ids or (1, 2))
    ]
    return {
        "spec_version": 2,
        "tags": [],
        "branches": [{"name": "main", "snapshot_index": 0}],
        "deleted_tags": [],
        "snapshots": listed,
        "status": {},
        "latest_updates": [{"update_type": (1, {}), "updated_at": 1}],
        **fields,
    }


def refs(*names: str, index: int = 0) -> list[Row]:
    return [{"name": name, "snapshot_index": index} for name in names]


def with_parents(*parents: int) -> Row:
    row = info(*range(len(parents)))
    for entry, parent in zip(row["snapshots"], parents, strict=True):
        entry["parent_offset"] = parent
    return row


REPO_INFOS: dict[str, Row] = {
    "Repo.branches is not in ascending order": info(branches=refs("main", "a")),
    "Repo.branches is not in ascending order at": info(branches=refs("main", "main")),
    "Repo.tags is not in ascending order": info(tags=refs("b", "a")),
    "Repo.deleted_tags is not in ascending order": info(deleted_tags=["b", "a"]),
    "snapshots are not in ascending order": info(2, 1),
    "snapshots are not in ascending order of": info(1, 1),
    "branches: main points to a snapshot": info(branches=refs("main", index=2)),
    "tags: t points to a snapshot": info(tags=refs("t", index=99)),
    "there is no branch main": info(branches=refs("other")),
    "tag t exists although": info(tags=refs("t"), deleted_tags=["t"]),
    "a parent that is not in the list": with_parents(-1, 2),
    "a parent that is not in": with_parents(-2, 0),
    "its own ancestor": with_parents(1, 2, 0),
    "is its own ancestor": with_parents(-1, 1),
    "Repo.enabled_feature_flags is not in ascending order": info(enabled_feature_flags=[3, 2]),
    "Repo.disabled_feature_flags is not in ascending order": info(disabled_feature_flags=[2, 2]),
    "both enabled and disabled": info(enabled_feature_flags=[3], disabled_feature_flags=[3]),
    "Repo.spec_version is 1": info(spec_version=1),
    "version 3 of the Icechunk format": info(spec_version=3),
    "metadata 'm'": info(metadata=[{"name": "m", "value": b""}]),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("message", REPO_INFOS)
def test_invalid_repo_infos_are_rejected(message: str, seed: int | None) -> None:
    assert message in refused(sample(REPO, REPO_INFOS[message], seed)).message


@pytest.mark.parametrize("kind", [17, 18, 255])
def test_unknown_update_type_is_rejected(kind: int) -> None:
    root = Graph().table(REPO, info())
    updates = root.slots[REPO.fields["latest_updates"].slot]
    assert isinstance(updates, Pointers)
    update = updates.targets[0]
    assert isinstance(update, Table)
    update.slots[0] = Number(bytes([kind]), 1)

    assert f"unknown type {kind}" in refused(file_of(FileType.REPO_INFO, bytes(Written(root)))).message


def test_unknown_availability_is_treated_as_offline() -> None:
    found = read(sample(REPO, info(status={"availability": 9, "set_at": 1})))

    assert isinstance(found, RepoInfo)
    assert found.status.availability is RepoAvailability.OFFLINE


# Values that the encoder rejects


def native(coords: list[list[int]]) -> ArrayManifest:
    return ArrayManifest.of_sorted(np.array(coords, np.uint32), NATIVE)


def test_encoder_rejects_unsorted_references() -> None:
    value = Manifest(ManifestId(bytes(12)), {NodeId(bytes(8)): native([[1], [0]])})

    with pytest.raises(FormatError, match="not in ascending order") as caught:
        files.write_manifest(value, V2)
    assert caught.value.kind == ErrorKind.SERIALIZATION


def test_encoder_rejects_an_unknown_kind_of_reference() -> None:
    value = ArrayManifest.of_sorted(np.zeros((1, 1), np.uint32), 4)

    with pytest.raises(FormatError, match="unknown kind 4"):
        files.write_manifest(Manifest(ManifestId(bytes(12)), {NodeId(bytes(8)): value}), V2)


def test_encoder_sorts_arrays_metadata_refs_and_flags() -> None:
    nodes = {NodeId(node_id(n)): ArrayManifest.from_refs({(0,): InlineRef(b"x")}, 1) for n in (2, 1)}
    value = Manifest(ManifestId(bytes(12)), nodes)

    packed = files.read_manifest(files.write_manifest(value, V2), value.id)

    assert packed.nodes == tuple(sorted(nodes))


def array_node(*manifests: ManifestRef) -> NodeSnapshot:
    data = ArrayNodeData((DimensionShape(9, 9),), manifests)
    return NodeSnapshot(NodeId(bytes(8)), "/a", b"{}", data)


def test_overlapping_extents_are_rejected() -> None:
    parts = [ManifestRef(ManifestId(object_id(i)), (range(i, i + 2),)) for i in range(2)]

    with pytest.raises(FormatError, match="cover the same chunks"):
        Nodes.of([array_node(*parts)])


def test_encoder_rejects_an_unlisted_manifest() -> None:
    nodes = Nodes.of([array_node(ManifestRef(ManifestId(bytes(12)), (range(1),)))])
    value = Snapshot(SnapshotId(bytes(12)), None, 0, "", {}, ManifestFiles.of([]), nodes)

    with pytest.raises(FormatError) as caught:
        files.write_snapshot(value, V2)
    assert caught.value.kind == ErrorKind.MANIFEST_INFO_NOT_FOUND


@pytest.mark.parametrize(
    "moves",
    [
        [("/a", "/a", 1)],
        [("/a", "/b", 1), ("/c", "/b", 2)],
        [("/a", "/b", 1), ("/b", "/c", 1)],
        [("/a/", "/b", 1)],
    ],
)
def test_encoder_rejects_impossible_moves(moves: list[tuple[str, str, int]]) -> None:
    made = [MoveOperation(a, b, NodeId(node_id(n)), NodeType.GROUP) for a, b, n in moves]

    with pytest.raises(FormatError):
        files.write_transaction_log(TransactionLog.of(SnapshotId(bytes(12)), moved_nodes=made), V2)


@pytest.mark.parametrize("parents", [(0, 5), (1, 0)])
def test_snapshots_with_an_invalid_ancestry_are_rejected(parents: tuple[int, int]) -> None:
    ids = [SnapshotId(object_id(i)) for i in range(6)]

    with pytest.raises(FormatError):
        SnapshotInfos.of([SnapshotInfo(ids[i], ids[parents[i]], 0, "") for i in range(2)])


def test_duplicate_snapshot_is_rejected() -> None:
    entry = SnapshotInfo(SnapshotId(bytes(12)), None, 0, "")

    with pytest.raises(FormatError) as caught:
        SnapshotInfos.of([entry, entry])
    assert caught.value.kind == ErrorKind.DUPLICATE_SNAPSHOT_ID


UPDATES: dict[str, list[Row]] = {
    "ops log is empty": [],
    "not in order": [{"update_type": (1, {}), "updated_at": t} for t in (1, 1)],
    "already has a backup": [{"update_type": (1, {}), "updated_at": 1, "backup_path": "x"}],
}


@pytest.mark.parametrize("message", UPDATES)
def test_ops_log_that_official_writers_cannot_extend_is_only_read(message: str) -> None:
    found: Any = read(sample(REPO, info(latest_updates=UPDATES[message])))

    with pytest.raises(FormatError, match=message):
        files.write_repo_info(found, V2)


# Positions and lengths


def test_offsets_outside_the_file_or_backward_are_rejected() -> None:
    written = Written(Graph().table(MANIFEST, manifest(ref(0), ref(1))))
    size = len(written.out)
    places = range(0, size - 3, 4)

    for at in places:
        for value in (0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, size, size - at, 0):
            outcome(file_of(FileType.MANIFEST, written.patched(at, "<I", value)))


def test_vtable_offset_to_any_position_is_rejected_or_valid() -> None:
    for schema, row in ((MANIFEST, manifest(ref(0))), (SNAPSHOT, snapshot(node("/a"))), (REPO, info())):
        written = Written(Graph().table(schema, row))
        for position in set(written.positions.values()):
            for value in (0, 4, -4, position, -(1 << 31)):
                file = sample(schema, row)
                outcome(file.with_payload(written.patched(position, "<i", value)))


@pytest.mark.parametrize("schema", [MANIFEST, SNAPSHOT, TRANSACTION_LOG, REPO], ids=lambda s: s.name)
def test_huge_vectors_are_rejected(schema: Any) -> None:
    rows: dict[str, Row] = {
        "Manifest": manifest(ref(0)),
        "Snapshot": snapshot(node("/a", array())),
        "TransactionLog": log(updated_chunks=[{"node_id": node_id(1), "chunks": [{"coords": [1]}]}]),
        "Repo": info(deleted_tags=["t"]),
    }
    root = Graph().table(schema, rows[schema.name])
    written = Written(root)
    for thing in [value for value in root.slots.values() if isinstance(value, Pointers | Vector)]:
        for count in (0x7FFFFFFF, 0xFFFFFFFF, len(written.out), 1 << 20):
            file = sample(schema, rows[schema.name])
            refused(file.with_payload(written.patched(written.at(thing), "<I", count)))


TEXTS: list[tuple[Any, Row]] = [
    (MANIFEST, manifest(ref(0, location="s3://mark"))),
    (MANIFEST, manifest(ref(0, location="s3://a", checksum_etag="mark"))),
    (SNAPSHOT, snapshot(message="mark")),
    (SNAPSHOT, snapshot(node("/mark"))),
    (SNAPSHOT, snapshot(node("/a", array(dimension_names=[{"name": "mark"}])))),
    (SNAPSHOT, snapshot(metadata=[{"name": "mark", "value": flexbuffers.dumps(1)}])),
    (SNAPSHOT, snapshot(metadata=[{"name": "a", "value": flexbuffers.dumps("mark")}])),
    (SNAPSHOT, snapshot(metadata=[{"name": "a", "value": flexbuffers.dumps({"mark": 1})}])),
    (TRANSACTION_LOG, log(moved_nodes=[move("/mark", "/b")])),
    (TRANSACTION_LOG, log(moved_nodes=[move("/a", "/mark")])),
    (REPO, info(branches=refs("main", "mark"))),
    (REPO, info(tags=refs("mark"))),
    (REPO, info(deleted_tags=["mark"])),
    (REPO, info(repo_before_updates="mark")),
    (REPO, info(status={"limited_availability_reason": "mark"})),
    (REPO, info(metadata=[{"name": "mark", "value": flexbuffers.dumps(1)}])),
    (REPO, info(latest_updates=[{"update_type": (1, {}), "updated_at": 1, "backup_path": "mark"}])),
    (REPO, info(latest_updates=[{"update_type": (5, {"name": "mark"}), "updated_at": 1}])),
    (REPO, info(snapshots=[{"id": bytes(12), "parent_offset": -1, "message": "mark"}])),
    (
        REPO,
        info(
            latest_updates=[
                {"update_type": (16, {"status": {"limited_availability_reason": "mark"}}), "updated_at": 1}
            ]
        ),
    ),
]


@pytest.mark.parametrize("bad", [b"m\xffrk", b"mar\xc3", b"\xed\xa0\x80k"])
@pytest.mark.parametrize(("schema", "row"), TEXTS, ids=lambda value: getattr(value, "name", ""))
def test_text_that_is_not_utf8_is_rejected(schema: Any, row: Row, bad: bytes) -> None:
    file = sample(schema, row)
    payload = file.payload
    assert payload.count(b"mark") == 1

    error = refused(file.with_payload(payload.replace(b"mark", bad)))

    assert "UTF-8" in error.message
