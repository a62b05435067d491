"""Round trips of all values, and operations on columns compared with plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe.errors import ErrorKind, FormatError
from icefloe.format import coordinates
from icefloe.format.files import (
    read_manifest,
    read_repo_info,
    read_snapshot,
    read_transaction_log,
    write_manifest,
    write_repo_info,
    write_snapshot,
    write_transaction_log,
)
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import NATIVE, ArrayManifest, ChunkRef, Manifest
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import NodeSnapshot, Snapshot
from icefloe.format.spec import V1, V2, Spec
from icefloe.format.transaction_log import LISTS, MoveOperation, NodeType, TransactionLog, UpdatedChunks
from tests.support.format import strategies

SPECS = pytest.mark.parametrize("spec", [V1, V2], ids=["V1", "V2"])
COMPRESSIONS = st.sampled_from(
    [
        None,
        LocationCompression(min_num_chunks=1, dictionary_max_size_bytes=256),
        LocationCompression(min_num_chunks=0, dictionary_max_training_samples=2),
    ]
)
MODEL = st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 5)), strategies.chunk_refs(), max_size=8)
Model = Mapping[tuple[int, ...], ChunkRef]


def model_of(manifest: ArrayManifest) -> dict[tuple[int, ...], ChunkRef]:
    return {tuple(manifest.coords[row].tolist()): manifest.ref(row) for row in range(len(manifest))}


def in_order(model: Model) -> list[tuple[tuple[int, ...], ChunkRef]]:
    return sorted(model.items(), key=lambda item: item[0])


def check(manifest: ArrayManifest, expected: Model) -> None:
    """Check that a manifest has the expected references in order, also by lookup and after a round trip."""
    assert list(model_of(manifest).items()) == in_order(expected)
    assert all(manifest.find(coords) == ref for coords, ref in expected.items())
    assert manifest.find((9, 9)) is None
    assert manifest.find((0,)) is None
    id, node = ManifestId(bytes(12)), NodeId(bytes(8))
    packed = read_manifest(write_manifest(Manifest(id, {node: manifest}), V2), id)
    assert packed.array(node, 2) == manifest
    assert {coords: packed.find(node, coords) for coords in expected} == dict(expected)
    assert packed.find(node, (9, 9)) is None


@SPECS
@given(data=st.data())
def test_manifest_round_trips(spec: Spec, data: st.DataObject) -> None:
    manifest: Manifest = data.draw(strategies.manifests())

    packed = read_manifest(write_manifest(manifest, spec, compression=data.draw(COMPRESSIONS)), manifest.id)

    assert packed.unpack() == manifest
    assert packed.nodes == tuple(sorted(manifest.arrays))
    for node, array in manifest.arrays.items():
        assert packed.count(node) == len(array)
        assert {coords: packed.find(node, coords) for coords in model_of(array)} == model_of(array)


@SPECS
@given(data=st.data())
def test_snapshot_round_trips(spec: Spec, data: st.DataObject) -> None:
    snapshot: Snapshot = data.draw(strategies.snapshots(spec))

    assert read_snapshot(write_snapshot(snapshot, spec), snapshot.id) == snapshot


@SPECS
@given(data=st.data())
def test_transaction_log_round_trips(spec: Spec, data: st.DataObject) -> None:
    log: TransactionLog = data.draw(strategies.transaction_logs(spec))

    found = read_transaction_log(write_transaction_log(log, spec), log.id)

    assert found == log
    assert [(node, coords.tolist()) for node, coords in found.updated_chunks if len(coords)] == [
        (node, coords.tolist()) for node, coords in log.updated_chunks if len(coords)
    ]


@given(strategies.repo_infos())
def test_repo_info_round_trips(info: RepoInfo) -> None:
    found = read_repo_info(write_repo_info(info, V2))

    assert found == info
    assert all(found.latest_updates[row] == update for row, update in enumerate(info.latest_updates))
    assert all(found.snapshots.find(snapshot.id) == snapshot for snapshot in info.snapshots)


def test_array_without_references_stays_empty() -> None:
    id, node = ManifestId(bytes(12)), NodeId(bytes(8))
    manifest = Manifest(id, {node: ArrayManifest.of(np.zeros((0, 3)), NATIVE)})

    packed = read_manifest(write_manifest(manifest, V2), id)

    assert len(packed.array(node)) == packed.count(node) == 0
    assert packed.array(node, 3) == manifest.arrays[node]


@given(MODEL, MODEL)
def test_merge_keeps_the_newer_of_two_references(old: Model, new: Model) -> None:
    merged = ArrayManifest.from_refs(old, 2).merge(ArrayManifest.from_refs(new, 2))

    check(merged, {**old, **new})


@given(st.lists(MODEL, min_size=1, max_size=4))
def test_concat_keeps_the_latest_of_equal_references(parts: list[Model]) -> None:
    whole = ArrayManifest.concat([ArrayManifest.from_refs(part, 2) for part in parts])

    check(whole, {coords: ref for part in parts for coords, ref in part.items()})


@given(MODEL, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_manifest_without_drops_the_given_coordinates(model: Model, gone: list[tuple[int, int]]) -> None:
    rest = ArrayManifest.from_refs(model, 2).without(np.array(gone, np.uint32).reshape(-1, 2))

    check(rest, {coords: ref for coords, ref in model.items() if coords not in gone})


@given(MODEL, st.tuples(*[st.integers(0, 6)] * 4))
def test_manifest_within_keeps_the_references_of_a_window(
    model: Model, ends: tuple[int, int, int, int]
) -> None:
    window = (range(ends[0], ends[1]), range(ends[2], ends[3]))

    part = ArrayManifest.from_refs(model, 2).within(window)

    check(part, {c: ref for c, ref in model.items() if c[0] in window[0] and c[1] in window[1]})


@given(MODEL, st.integers(0, 6))
def test_split_groups_references_by_window(model: Model, border: int) -> None:
    windows = [(range(border), range(6)), (range(border, 6), range(6))]

    low, high = ArrayManifest.from_refs(model, 2).split(windows)

    check(low, {coords: ref for coords, ref in model.items() if coords[0] < border})
    check(high, {coords: ref for coords, ref in model.items() if coords[0] >= border})


@given(MODEL)
def test_extents_are_the_bounding_box_of_the_chunks(model: Model) -> None:
    extents = ArrayManifest.from_refs(model, 2).extents()

    if model:
        assert extents == tuple(
            range(min(c[d] for c in model), max(c[d] for c in model) + 1) for d in range(2)
        )
    else:
        assert extents == (range(0), range(0))


@given(strategies.coordinate_columns())
def test_coordinates_sort_like_tuples(coords: Any) -> None:
    rows = list(map(tuple, coords.tolist()))

    unique, places = coordinates.keep_last_of_equal(coords)

    expected = sorted(set(rows))
    assert list(map(tuple, unique.tolist())) == expected
    last = {row: place for place, row in enumerate(rows)}
    kept = list(range(len(rows))) if places is None else places.tolist()
    assert kept == [last[row] for row in expected]
    assert coordinates.is_strictly_sorted(coords) == (rows == expected)
    order = coordinates.sort_order(coords)
    assert (list(range(len(rows))) if order is None else order.tolist()) == sorted(
        range(len(rows)), key=rows.__getitem__
    )


@given(st.data(), st.integers(0, 4))
def test_coordinates_are_found_and_contained(data: st.DataObject, rank: int) -> None:
    one = coordinates.keep_last_of_equal(data.draw(strategies.coordinate_columns(rank)))[0]
    other = coordinates.keep_last_of_equal(data.draw(strategies.coordinate_columns(rank)))[0]
    rows, others = one.tolist(), other.tolist()

    assert coordinates.contains(one, other).tolist() == [row in others for row in rows]
    for wanted in rows + others:
        found = coordinates.find(one, wanted)
        assert found == (rows.index(wanted) if wanted in rows else None)


@given(strategies.updated_chunks())
def test_updated_chunks_are_sorted_by_array(chunks: UpdatedChunks) -> None:
    entries = [(node, coords.tolist()) for node, coords in chunks]

    assert entries == sorted(entries)


@given(st.data())
def test_updated_nodes_agree_with_a_dict(data: st.DataObject) -> None:
    held = data.draw(strategies.nodes(V2))
    put: list[NodeSnapshot] = data.draw(
        st.lists(strategies.node_snapshots(V2), max_size=3, unique_by=lambda node: node.path)
    )
    known = held.paths() + [node.path for node in put] + ["/nowhere"]
    remove = data.draw(st.lists(st.sampled_from(known), max_size=3))

    updated = held.with_changes(put, remove)

    model = {node.path: node for node in held}
    for path in remove:
        model.pop(path, None)
    model |= {node.path: node for node in put}
    assert list(updated) == [model[path] for path in sorted(model, key=str.encode)]
    assert all(updated.find(path) == node for path, node in model.items())
    assert "/nowhere" not in updated or "/nowhere" in model


@given(st.lists(strategies.ids(NodeId), unique=True, max_size=6), st.data())
def test_log_lists_each_id_once(ids: list[NodeId], data: st.DataObject) -> None:
    lists = {name: data.draw(st.lists(st.sampled_from(ids))) if ids else [] for name in LISTS}

    log = TransactionLog.of(SnapshotId(bytes(12)), **lists)  # type: ignore[arg-type]

    for kind in ("groups", "arrays"):
        columns = [getattr(log, f"{verb}_{kind}").tolist() for verb in ("new", "deleted", "updated")]
        every = [tuple(id) for column in columns for id in column]
        assert len(every) == len(set(every))
        assert all(column == sorted(column) for column in columns)


def test_moved_nodes_cannot_be_written_for_version_1() -> None:
    move = MoveOperation("/a", "/b", NodeId(bytes(8)), NodeType.GROUP)
    log = TransactionLog.of(SnapshotId(bytes(12)), moved_nodes=[move])

    with pytest.raises(FormatError) as caught:
        write_transaction_log(log, V1)

    assert caught.value.kind == ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
