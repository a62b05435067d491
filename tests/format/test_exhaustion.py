"""Small files with parts that are shared so often that a naive reader would need hours or terabytes."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from icefloe._internal.ids import ManifestId, SnapshotId
from icefloe.encoding import flexbuffers
from icefloe.encoding.envelope import FileType, Header, seal
from icefloe.errors import FormatError
from icefloe.format import schema
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import LISTS
from tests.support.format.damaged_files import Sample, outcome, read, refused
from tests.support.format.flatbuffer_writer import Graph, Number, Pointers, Table, Vector, Written

MANY = 30_000
MAX_BYTES = 100 << 20
GRAPH = Graph()
GROUP: tuple[int, dict[str, Any]] = (schema.GROUP_NODE, {})
ARRAY: tuple[int, dict[str, Any]] = (schema.ARRAY_NODE, {"shape": [], "shape_v2": [], "manifests": []})
METADATA = flexbuffers.dumps(list(range(1000, 3000)))


def file_of(file_type: FileType, payload: bytes) -> Sample:
    id = ManifestId(bytes(12)) if file_type is FileType.MANIFEST else SnapshotId(bytes(12))
    return Sample("bomb", file_type, id, seal(np.frombuffer(payload, np.uint8), Header("bomb", 2, file_type)))


def snapshot(slot: int, value: Pointers) -> Sample:
    row = {"id": bytes(12), "nodes": [], "message": "", "metadata": [], "manifest_files": []}
    root = GRAPH.table(schema.SNAPSHOT, row)
    root.slots[slot] = value
    return file_of(FileType.SNAPSHOT, bytes(Written(root)))


def node(path: str = "/a", user_data: bytes = b"{}", data: Any = GROUP) -> Table:
    row = {"id": bytes(8), "path": path, "user_data": user_data, "node_data": data}
    return GRAPH.table(schema.NODE_SNAPSHOT, row)


def array_node(slot: int, value: Pointers) -> Table:
    made = node(data=ARRAY)
    data = made.slots[4]
    assert isinstance(data, Table)
    data.slots[slot] = value
    return made


def nodes_share_a_long_path() -> Sample:
    return snapshot(2, Pointers([node("/a" * 50_000)] * MANY))


def nodes_share_their_metadata() -> Sample:
    return snapshot(2, Pointers([node(user_data=bytes(MANY))] * 900))


def nodes_share_manifests_that_share_extents() -> Sample:
    ref = GRAPH.table(schema.MANIFEST_REF, {"object_id": bytes(12), "extents": [(0, 1)] * 1000})
    return snapshot(2, Pointers([array_node(2, Pointers([ref] * MANY))] * 900))


def very_many_nodes_share_manifests() -> Sample:
    ref = GRAPH.table(schema.MANIFEST_REF, {"object_id": bytes(12), "extents": [(0, 1)]})
    return snapshot(2, Pointers([array_node(2, Pointers([ref] * 1000))] * (2 * MANY)))


def nodes_share_dimensions() -> Sample:
    dimension = GRAPH.table(schema.DIMENSION_SHAPE_V2, {"array_length": 5, "num_chunks": 5})
    return snapshot(2, Pointers([array_node(3, Pointers([dimension] * MANY))] * 500))


def one_metadata_item_over_and_over() -> Sample:
    item = GRAPH.table(schema.METADATA_ITEM, {"name": "n", "value": METADATA})
    return snapshot(5, Pointers([item] * MANY))


def metadata_items_share_a_value() -> Sample:
    value = Vector(len(METADATA), METADATA)
    names = [GRAPH.blob(str(i).encode(), True) for i in range(20_000)]
    return snapshot(5, Pointers([Table({0: name, 1: value}) for name in names]))


def manifest(*arrays: Table) -> Written:
    root = GRAPH.table(schema.MANIFEST, {"id": bytes(12), "arrays": []})
    root.slots[1] = Pointers(arrays)
    return Written(root)


def array_manifest(refs: Pointers, number: int = 0) -> Table:
    made = GRAPH.table(schema.ARRAY_MANIFEST, {"node_id": number.to_bytes(8, "big"), "refs": []})
    made.slots[1] = refs
    return made


def references_share_coordinates_of_high_rank() -> Sample:
    ref = GRAPH.table(schema.CHUNK_REF, {"index": [0] * MANY, "inline": b"x"})
    return file_of(FileType.MANIFEST, bytes(manifest(array_manifest(Pointers([ref] * MANY)))))


def arrays_share_their_references() -> Sample:
    rows = [{"index": [i], "inline": b"x"} for i in range(3000)]
    refs = Pointers([GRAPH.table(schema.CHUNK_REF, row) for row in rows])
    arrays = [array_manifest(refs, number) for number in range(10_000)]
    return file_of(FileType.MANIFEST, bytes(manifest(*arrays)))


def locations_overlap() -> Sample:
    """Return a file in which each word of a range is the length of a string that extends to its end."""
    length = 0x000F0F0F
    stretch = Vector(0, struct.pack("<I", length) * 300_000)
    count = 20_000
    index = [Vector(1, struct.pack("<I", i), 4) for i in range(count)]
    refs = [Table({0: index[i], 5: stretch}) for i in range(count)]
    written = manifest(array_manifest(Pointers(refs)))
    for i, ref in enumerate(refs):
        at = written.field_at(ref, 5)
        struct.pack_into("<I", written.out, at, written.at(stretch) + 4 + 4 * i - at)
    return file_of(FileType.MANIFEST, bytes(written))


def repo(slot: int, value: Pointers) -> Sample:
    row = {
        "spec_version": 2,
        "tags": [],
        "branches": [{"name": "main"}],
        "deleted_tags": [],
        "snapshots": [{"id": bytes(12), "parent_offset": -1, "message": ""}],
        "status": {},
        "latest_updates": [{"update_type": (1, {}), "updated_at": 1}],
    }
    root = GRAPH.table(schema.REPO, row)
    root.slots[slot] = value
    return file_of(FileType.REPO_INFO, bytes(Written(root)))


def updates_share_a_long_name() -> Sample:
    row = {"update_type": (5, {"name": "n" * MANY}), "updated_at": 1}
    return repo(7, Pointers([GRAPH.table(schema.UPDATE, row)] * MANY))


def deleted_tags_are_one_long_name() -> Sample:
    return repo(3, Pointers([GRAPH.blob(b"t" * MANY, True)] * MANY))


def snapshots_share_metadata() -> Sample:
    items = Pointers([GRAPH.table(schema.METADATA_ITEM, {"name": "n", "value": METADATA})])
    none = Number(struct.pack("<i", -1), 4)
    message = GRAPH.blob(b"m", True)
    ids = [Number(i.to_bytes(12, "big"), 1) for i in range(20_000)]
    return repo(4, Pointers([Table({0: id, 1: none, 3: message, 4: items}) for id in ids]))


def log(slot: int, value: Pointers) -> Sample:
    row = {"id": bytes(12), "updated_chunks": [], **{name: [] for name in LISTS}}
    root = GRAPH.table(schema.TRANSACTION_LOG, row)
    root.slots[slot] = value
    return file_of(FileType.TRANSACTION_LOG, bytes(Written(root)))


def arrays_share_updated_chunks() -> Sample:
    chunk = GRAPH.table(schema.CHUNK_INDICES, {"coords": [1] * 1000})
    array = GRAPH.table(schema.ARRAY_UPDATED_CHUNKS, {"node_id": bytes(8), "chunks": []})
    array.slots[1] = Pointers([chunk] * MANY)
    return log(7, Pointers([array] * MANY))


def moves_share_long_paths() -> Sample:
    row = {"from": "/a" * 10_000, "to": "/b" * 10_000, "node_id": bytes(8), "node_type": 0}
    return log(8, Pointers([GRAPH.table(schema.MOVE_OPERATION, row)] * MANY))


BOMBS: list[Callable[[], Sample]] = [
    nodes_share_a_long_path,
    nodes_share_their_metadata,
    nodes_share_manifests_that_share_extents,
    very_many_nodes_share_manifests,
    nodes_share_dimensions,
    one_metadata_item_over_and_over,
    metadata_items_share_a_value,
    references_share_coordinates_of_high_rank,
    arrays_share_their_references,
    locations_overlap,
    updates_share_a_long_name,
    deleted_tags_are_one_long_name,
    snapshots_share_metadata,
    arrays_share_updated_chunks,
    moves_share_long_paths,
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_decompression_bomb_is_rejected_in_bounded_memory(bomb: Callable[[], Sample]) -> None:
    sample = bomb()
    assert len(sample.data) < 1 << 20
    tracemalloc.start()

    refused(sample)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_BYTES


def test_duplicate_move_target_is_found_among_many_moves() -> None:
    rows = [
        {"from": f"/a{i}", "to": f"/b{min(i, 7_998)}", "node_id": i.to_bytes(8, "big")} for i in range(8_000)
    ]
    sample = log(8, Pointers([GRAPH.table(schema.MOVE_OPERATION, row) for row in rows]))

    assert "leads to /b7998" in refused(sample).message


def test_windows_that_overlap_in_one_dimension_are_distinguished() -> None:
    count = 5_000
    rows = [{"object_id": bytes(12), "extents": [(i, count), (i, i + 1)]} for i in range(count)]
    refs = Pointers([GRAPH.table(schema.MANIFEST_REF, row) for row in rows])
    file = {"id": bytes(12), "size_bytes": 1, "num_chunk_refs": 1}
    row = {"id": bytes(12), "nodes": [], "message": "", "metadata": [], "manifest_files": []}
    root = GRAPH.table(schema.SNAPSHOT, {**row, "manifest_files_v2": [file]})
    array = array_node(2, refs)
    data = array.slots[4]
    assert isinstance(data, Table)
    dimension = {"array_length": count, "num_chunks": count}
    data.slots[3] = Pointers([GRAPH.table(schema.DIMENSION_SHAPE_V2, dimension) for _ in range(2)])
    root.slots[2] = Pointers([array])

    assert isinstance(read(file_of(FileType.SNAPSHOT, bytes(Written(root)))), Snapshot)


def test_file_with_moderately_shared_tables_is_read() -> None:
    """Other writers store equal parts once."""
    ids = [Number(i.to_bytes(8, "big"), 1) for i in range(500)]
    path = [GRAPH.blob(f"/{i:04}".encode(), True) for i in range(500)]
    shared = GRAPH.blob(b'{"zarr_format":3}' * 20, False)
    group, kind = GRAPH.table(schema.GROUP_NODE_DATA, {}), Number(bytes([schema.GROUP_NODE]), 1)
    nodes = [Table({0: ids[i], 1: path[i], 2: shared, 3: kind, 4: group}) for i in range(500)]

    assert not isinstance(outcome(snapshot(2, Pointers(nodes))), FormatError)
