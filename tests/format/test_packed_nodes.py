"""Lookups of single nodes in large encoded snapshots."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe._internal.paths import make_component_key
from icefloe.errors import ErrorKind, FormatError
from icefloe.format import files, snapshot_codec
from icefloe.format.snapshot import (
    ArrayNodeData,
    DimensionShape,
    GroupNodeData,
    ManifestFiles,
    ManifestRef,
    Nodes,
    NodeSnapshot,
    Snapshot,
)
from icefloe.format.snapshot_codec import LAZY_FROM, PackedNodes
from icefloe.format.spec import V2

PATHS = ["/", *(f"/g{i:04d}{mark}x" for i in range(LAZY_FROM // 2) for mark in ("-", "/")), "/é", "/日本"]


def _node(path: str) -> NodeSnapshot:
    data: ArrayNodeData | GroupNodeData = GroupNodeData()
    if path.endswith("x"):
        data = ArrayNodeData((DimensionShape(10, 2),), dimension_names=("t",))
    return NodeSnapshot(NodeId.random(), path, b"{}", data)


def _unsorted(nodes: Iterable[NodeSnapshot]) -> Nodes:
    """Return nodes in the given order, as releases before 1.1.3 wrote them."""
    given = list(nodes)
    kept = Nodes.of(given)
    order = [kept.paths().index(node.path) for node in given]
    shuffled = object.__new__(Nodes)
    shuffled.written = None
    shuffled.few = None
    shuffled._place = "snapshot"
    checked = kept._list_all()
    shuffled._sorted = type(checked)(kept.columns.take(np.array(order)), checked.rows)
    return shuffled


def _read(nodes: Nodes) -> Nodes:
    snapshot = _snapshot(nodes)
    return files.read_snapshot(files.write_snapshot(snapshot, V2), snapshot.id).nodes


def test_every_node_is_found_without_building_columns() -> None:
    nodes = [_node(path) for path in PATHS]

    read = _read(Nodes.of(nodes))

    assert isinstance(read, PackedNodes)
    assert [read.find(node.path) for node in nodes] == nodes
    assert all(path in read for path in PATHS)
    assert len(read) == len(PATHS)
    assert read._sorted is None


def test_missing_path_is_not_found() -> None:
    read = _read(Nodes.of(_node(path) for path in PATHS))

    assert read.find("/g0000") is None
    assert "/zzz" not in read
    assert read._sorted is None


def test_columns_equal_those_that_were_written() -> None:
    nodes = Nodes.of(_node(path) for path in PATHS)

    read = _read(nodes)

    assert read == nodes
    assert read.paths() == sorted(PATHS)
    assert len(read) == len(PATHS)


def test_nodes_in_component_order_are_all_found() -> None:
    nodes = [_node(path) for path in sorted(PATHS, key=make_component_key)]
    written = _unsorted(nodes)

    read = _read(written)

    assert isinstance(read, PackedNodes)
    assert [read.find(node.path) for node in nodes] == nodes


def test_small_snapshot_is_decoded_immediately() -> None:
    read = _read(Nodes.of([_node("/"), _node("/x")]))

    assert not isinstance(read, PackedNodes)


def test_lookup_rejects_an_unlisted_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    ref = ManifestRef(ManifestId.random(), (range(2),))
    lost = NodeSnapshot(NodeId.random(), "/lost", b"{}", ArrayNodeData((DimensionShape(10, 2),), (ref,)))
    with monkeypatch.context() as careless:
        careless.setattr(snapshot_codec, "_check_manifests", lambda *_: None)
        snapshot = _snapshot(Nodes.of([lost, *(_node(path) for path in PATHS)]))
        data = files.write_snapshot(snapshot, V2)

    nodes = files.read_snapshot(data, snapshot.id).nodes

    assert nodes.find("/") is not None
    with pytest.raises(FormatError) as caught:
        nodes.find("/lost")
    assert caught.value.kind == ErrorKind.MANIFEST_INFO_NOT_FOUND


def _snapshot(nodes: Nodes) -> Snapshot:
    return Snapshot(SnapshotId.random(), None, 1, "m", {}, ManifestFiles.of([]), nodes)
