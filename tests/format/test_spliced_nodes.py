"""Repeated small changes of many nodes, compared with plain dicts."""

from __future__ import annotations

import random

import pytest

from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe.errors import FormatError
from icefloe.format.files import read_snapshot, write_snapshot
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
    SplicedNodes,
    list_used_manifests,
)
from icefloe.format.spec import V1, V2

ID = SnapshotId(bytes(12))


def manifest(number: int) -> ManifestId:
    return ManifestId(number.to_bytes(12))


def node(path: str, *manifests: int) -> NodeSnapshot:
    refs = tuple(ManifestRef(manifest(number), (range(i, i + 1),)) for i, number in enumerate(manifests))
    data = ArrayNodeData((DimensionShape(9, 9),), refs, ("x",)) if manifests else GroupNodeData()
    return NodeSnapshot(NodeId(random.Random(path).randbytes(8)), path, path.encode(), data)


def snapshot_of(nodes: Nodes) -> Snapshot:
    files = ManifestFiles.of(ManifestFileInfo(id, 1, 1) for id in list_used_manifests(nodes))
    return Snapshot(ID, None, 1, "", {}, files, nodes)


@pytest.fixture
def base() -> Nodes:
    nodes = Nodes.of([node("/"), *(node(f"/a{number:03}", number % 50 + 1) for number in range(100))])
    write_snapshot(snapshot_of(nodes), V2)
    return nodes


def test_repeatedly_changed_nodes_are_complete(base: Nodes) -> None:
    chance = random.Random(1)
    expected = {each.path: each for each in base}
    nodes = base

    for _ in range(40):
        put = {path: node(path, chance.randrange(60, 90)) for path in chance.choices(sorted(expected), k=2)}
        new = node(f"/a{chance.randrange(1000):03}/é", *range(100, 100 + chance.randrange(3)))
        put[new.path] = new
        gone = set(chance.sample(sorted(set(expected) - {"/"}), k=2))
        nodes = nodes.with_changes(put.values(), gone)
        expected = {path: each for path, each in expected.items() if path not in gone} | put

        read = read_snapshot(write_snapshot(snapshot_of(nodes), V2), ID).nodes
        assert nodes.paths() == sorted(expected)
        assert {path: nodes.find(path) for path in expected} == expected
        assert "/nowhere" not in nodes
        assert nodes.find("/nowhere") is None
        assert list(read) == list(nodes) == [expected[path] for path in sorted(expected)]
        used = {
            ref.id
            for each in expected.values()
            if isinstance(each.node_data, ArrayNodeData)
            for ref in each.node_data.manifests
        }
        assert list_used_manifests(nodes) == sorted(used)


def test_tables_of_unchanged_nodes_are_reused(base: Nodes) -> None:
    assert isinstance(base.with_changes([node("/a007", 99)]), SplicedNodes)
    assert not isinstance(base.with_changes([node(f"/b{number}") for number in range(50)]), SplicedNodes)


def test_version_1_repository_gets_version_1_tables(base: Nodes) -> None:
    spliced = base.with_changes([node("/a007", 99)])

    read = read_snapshot(write_snapshot(snapshot_of(spliced), V1), ID)

    assert list(read.nodes) == list(spliced)


def test_unlisted_manifest_is_rejected(base: Nodes) -> None:
    listed = snapshot_of(base).manifest_files
    spliced = base.with_changes([node("/a007", 99)])

    with pytest.raises(FormatError, match="does not list"):
        write_snapshot(Snapshot(ID, None, 1, "", {}, listed, spliced), V2)
