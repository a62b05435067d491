"""The official package reads every file of repositories that icefloe's encoders wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import ArrayManifest, VirtualRef
from icefloe.format.spec import V1, V2, Spec
from icefloe.format.updates import UPDATE_TYPES, RepoAvailability, RepoStatus, RepoStatusChanged, StoredUpdate
from icefloe.ops import UpdateType
from tests.support.compat import official, samples
from tests.support.compat.repository_writer import (
    ArrayInput,
    GroupInput,
    Layout,
    NodeInput,
    RepositoryWriter,
    local_container,
)

pytestmark = pytest.mark.compat

SPECS = [pytest.param(V1, id="v1"), pytest.param(V2, id="v2", marks=official.needs_v2)]


def finished(writer: RepositoryWriter, **repo_info: Any) -> Any:
    """Finish a repository with a stored container, and open it with the official package."""
    writer.finish(local_container(writer.virtual_prefix), **repo_info)
    return official.open_repository(writer.folder, (writer.virtual_prefix,))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("layout", ["each", "together", "split"])
def test_official_package_reads_every_array_of_our_repository(
    tmp_path: Path, spec: Spec, layout: Layout
) -> None:
    writer = RepositoryWriter(tmp_path / "repo", spec, layout=layout)
    nodes = samples.tree()
    tip = writer.commit("all kinds", nodes)

    repository = finished(writer)

    assert official.tree(repository, str(tip)) == samples.expected_tree(nodes)


@pytest.mark.parametrize("spec", SPECS)
def test_official_package_finds_nodes_in_any_sort_order(tmp_path: Path, spec: Spec) -> None:
    writer = RepositoryWriter(tmp_path / "repo", spec)
    nodes = samples.sort_sensitive()
    tip = writer.commit("paths", nodes)

    repository = finished(writer)

    assert official.tree(repository, str(tip)) == samples.expected_tree(nodes)


@pytest.mark.parametrize("spec", SPECS)
def test_official_package_reads_our_history(tmp_path: Path, spec: Spec) -> None:
    writer = RepositoryWriter(tmp_path / "repo", spec)
    first = writer.commit("one 日本", samples.tree(), metadata=samples.METADATA)
    writer.create_branch("side", first)
    second = writer.commit("two", samples.tree()[:3])
    side = writer.commit("aside", samples.tree()[:2], branch="side", metadata={"k": 1})
    writer.create_tag("v1", first)
    writer.create_tag("v2 with blanks", second)
    writer.create_tag("gone", second)
    writer.delete_tag("gone")

    seen = official.history(finished(writer))

    assert seen["branches"] == {"main": str(second), "side": str(side)}
    assert seen["tags"] == {"v1": str(first), "v2 with blanks": str(second)}
    for tip, line in seen["ancestry"].items():
        assert line == [_facts(writer, id) for id in _ancestors(writer, SnapshotId.parse(tip))]


def _ancestors(writer: RepositoryWriter, tip: SnapshotId | None) -> list[SnapshotId]:
    found = []
    while tip is not None:
        found.append(tip)
        tip = writer.infos[tip].parent_id
    return found


def _facts(writer: RepositoryWriter, id: SnapshotId) -> tuple[Any, ...]:
    info = writer.infos[id]
    written_at = np.datetime64(info.flushed_at_us, "us").item()
    parent = None if info.parent_id is None else str(info.parent_id)
    return str(id), parent, info.message, info.metadata, official.utc(written_at)


@pytest.mark.parametrize("spec", SPECS)
def test_official_diff_lists_the_changes_of_each_commit(tmp_path: Path, spec: Spec) -> None:
    writer = RepositoryWriter(tmp_path / "repo", spec)
    root, gone = GroupInput("/"), GroupInput("/gone")
    array = ArrayInput("/a", samples.numbers(6), (2,))
    first = writer.commit("new", [root, gone, array, ArrayInput("/old", samples.numbers(2), (1,))])
    other = samples.numbers(6)
    other[4:] = 99
    changed = ArrayInput("/a", other, (2,), attributes={"n": 1})
    second = writer.commit("changed", [GroupInput("/", {"title": "x"}), changed])

    seen = official.diff(finished(writer), str(first), str(second))

    assert seen | {"moved_nodes": []} == {
        "new_groups": [],
        "new_arrays": [],
        "deleted_groups": ["/gone"],
        "deleted_arrays": ["/old"],
        "updated_groups": ["/"],
        "updated_arrays": ["/a"],
        "updated_chunks": {"/a": [(2,)]},
        "moved_nodes": [],
    }


@official.needs_v2
def test_moved_nodes_keep_their_chunks(tmp_path: Path) -> None:
    writer = RepositoryWriter(tmp_path / "repo")
    root, data = GroupInput("/"), samples.numbers(6)
    first = writer.commit("new", [root, ArrayInput("/a", data, (2,)), GroupInput("/g")])
    writer.move("/a", "/g2")
    writer.move("/g", "/a")
    nodes: list[NodeInput] = [root, ArrayInput("/g2", data, (2,)), GroupInput("/a")]
    second = writer.commit("moved", nodes)

    repository = finished(writer)

    changes = official.diff(repository, str(first), str(second))
    assert changes.pop("moved_nodes") == ["('/a', '/g2')", "('/g', '/a')"]
    assert not any(changes.values())
    assert official.tree(repository, str(second)) == samples.expected_tree(nodes)


@pytest.mark.parametrize("spec", SPECS)
def test_official_package_reads_our_empty_commit(tmp_path: Path, spec: Spec) -> None:
    writer = RepositoryWriter(tmp_path / "repo", spec)
    nodes = samples.tree()
    first = writer.commit("nodes", nodes)
    second = writer.commit("nothing", nodes)

    repository = finished(writer)

    assert not any(official.diff(repository, str(first), str(second)).values())
    assert official.tree(repository, str(second)) == samples.expected_tree(nodes)


@official.needs_v2
def test_official_package_reads_compressed_locations(tmp_path: Path) -> None:
    compression = LocationCompression(min_num_chunks=10)
    writer = RepositoryWriter(tmp_path / "repo", compression=compression)
    nodes: list[NodeInput] = [GroupInput("/"), ArrayInput("/v", samples.numbers(12, 12), (1, 2), "virtual")]
    tip = writer.commit("virtual", nodes)

    repository = finished(writer)

    (manifest,) = repository.list_manifest_files(str(tip))
    assert repository.inspect_manifest(manifest.id)["compression"]["num_compressed_refs"] == 72
    assert official.tree(repository, str(tip)) == samples.expected_tree(nodes)
    locations = repository.readonly_session(snapshot_id=str(tip)).all_virtual_chunk_locations()
    stored = writer._trees[tip]["/v"].refs.values()
    assert sorted(locations) == sorted(ref.location for ref in stored if isinstance(ref, VirtualRef))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("level", [1, 3, 9, 19])
def test_official_package_reads_every_zstd_level(tmp_path: Path, spec: Spec, level: int) -> None:
    writer = RepositoryWriter(tmp_path / "repo", spec, level=level)
    nodes = samples.tree()
    tip = writer.commit("level", nodes)

    repository = finished(writer)

    assert _has_checksum(writer.folder / "snapshots" / str(tip))
    assert official.tree(repository, str(tip)) == samples.expected_tree(nodes)


def _has_checksum(file: Path) -> bool:
    descriptor = file.read_bytes()[39 + 4]
    return bool(descriptor & 4)


@official.needs_v2
def test_every_kind_of_update_is_in_the_ops_log(tmp_path: Path) -> None:
    writer = RepositoryWriter(tmp_path / "repo")
    first = writer.commit("one", [GroupInput("/")])
    writer.create_branch("b", first)
    writer.create_tag("t", first)
    writer.create_tag("u", first)
    writer.delete_tag("u")
    status = RepoStatus(RepoAvailability.READ_ONLY, writer.now_us, "maintenance")
    others: list[StoredUpdate] = [
        UpdateType.RepoMigrated(1, 2),
        UpdateType.ConfigChanged(),
        UpdateType.MetadataChanged(),
        UpdateType.BranchDeleted("x", str(first)),
        UpdateType.BranchReset("main", str(first)),
        UpdateType.CommitAmended("main", str(INITIAL_SNAPSHOT_ID), str(first)),
        UpdateType.NewDetachedSnapshot(str(first)),
        UpdateType.GCRan(),
        UpdateType.ExpirationRan(),
        UpdateType.FeatureFlagChanged(3, False),
        UpdateType.FeatureFlagChanged(4, None),
        RepoStatusChanged(status),
    ]
    for update in others:
        writer.log(update)

    repository = finished(writer)

    seen = [(type(u.kind).__name__, u.updated_at) for u in repository.ops_log()]
    ours = [(u.update_type, u.updated_at_us) for u in reversed(writer.updates)]
    names = [(type(kind).__name__, official.utc(np.datetime64(us, "us").item())) for kind, us in ours]
    assert [(name.split("_")[-1].lower(), at) for name, at in seen] == [(n.lower(), at) for n, at in names]
    assert {type(kind) for kind, _ in ours} == set(UPDATE_TYPES)


@official.needs_v2
def test_official_package_reads_our_repo_info_file(tmp_path: Path) -> None:
    writer = RepositoryWriter(tmp_path / "repo")
    writer.commit("one", [GroupInput("/")])
    status = RepoStatus(RepoAvailability.READ_ONLY, writer.now_us, "for a while")

    repository = finished(
        writer,
        metadata=samples.METADATA,
        status=status,
        disabled_feature_flags=(3,),
        enabled_feature_flags=(),
    )

    assert repository.get_metadata() == samples.METADATA
    assert "read_only" in str(repository.get_status().availability).lower()
    assert repository.get_status().limited_availability_reason == "for a while"
    assert [flag.name for flag in repository.disabled_feature_flags()] == ["move_node"]
    assert writer.virtual_prefix in repository.config.virtual_chunk_containers


@official.needs_v2
def test_descendant_inherits_the_changes_of_pruned_ancestors(tmp_path: Path) -> None:
    writer = RepositoryWriter(tmp_path / "repo")
    root = GroupInput("/")
    pruned = writer.commit("pruned", [root, GroupInput("/p")])
    tip = writer.commit("tip", [root, GroupInput("/p"), GroupInput("/t")])
    kept = writer.infos[tip]
    del writer.infos[pruned]
    writer.infos[tip] = type(kept)(
        tip, INITIAL_SNAPSHOT_ID, kept.flushed_at_us, kept.message, {}, pruned_ancestor_tx_logs=(pruned,)
    )

    repository = finished(writer)

    changes = official.diff(repository, str(INITIAL_SNAPSHOT_ID), str(tip))
    assert changes["new_groups"] == ["/", "/p", "/t"]


@pytest.mark.parametrize("spec", SPECS)
def test_manifest_of_200_000_references_is_read(tmp_path: Path, spec: Spec) -> None:
    writer = RepositoryWriter(tmp_path / "repo", spec)
    grid = (400, 500)
    data = np.zeros(grid, "uint8")
    array = ArrayInput("/big", data, (1, 1), lambda c: "virtual" if c in {(0, 0), (399, 499)} else "absent")
    data[0, 0], data[399, 499] = 7, 9
    tip = writer.commit("big", [GroupInput("/"), array])
    stored = writer._trees[tip]["/big"]
    one = stored.refs[(0, 0)]
    assert isinstance(one, VirtualRef)
    coords = np.indices(grid, np.uint32).reshape(2, -1).T
    offsets = np.full(len(coords), one.offset, np.uint64)
    refs = ArrayManifest.virtual(
        coords, [one.location] * len(coords), offsets, np.ones(len(coords), np.uint64)
    )
    stored.manifests = (type(stored.manifests[0])(writer.put_manifest({stored.id: refs}), refs.extents()),)
    writer._put_snapshot(tip, writer.infos[tip].parent_id, "big", {}, writer._trees[tip])

    repository = finished(writer)

    session = repository.readonly_session(snapshot_id=str(tip))
    chosen = [(0, 0), (0, 499), (123, 45), (399, 499)]
    assert {str(session.chunk_type("/big", c)).lower().split(".")[-1] for c in chosen} == {"virtual"}
    array_read = official.open_array(session, "big")
    assert [int(array_read[c]) for c in chosen] == [7] * len(chosen)


@pytest.mark.parametrize("spec", SPECS)
def test_snapshot_of_2_000_nodes_is_read(tmp_path: Path, spec: Spec) -> None:
    writer = RepositoryWriter(tmp_path / "repo", spec, layout="together")
    nodes: list[NodeInput] = [GroupInput("/")]
    nodes += [ArrayInput(f"/n{i:04d}", np.array([i + 1], "int32"), (1,), "inline") for i in range(2000)]
    tip = writer.commit("many", nodes)

    repository = finished(writer)

    seen = official.inspect(repository.inspect_snapshot(str(tip)))
    assert [node["path"] for node in seen["nodes"]] == [node.path for node in nodes]
    session = repository.readonly_session(snapshot_id=str(tip))
    for i in (0, 1, 999, 1234, 1999):
        assert int(official.open_array(session, f"n{i:04d}")[0]) == i + 1


@official.needs_v2
def test_inspection_of_manifests_and_logs_agrees(tmp_path: Path) -> None:
    writer = RepositoryWriter(tmp_path / "repo", layout="together")
    tip = writer.commit("all kinds", samples.tree())

    repository = finished(writer)

    (manifest,) = repository.list_manifest_files(str(tip))
    seen = repository.inspect_manifest(manifest.id)
    stored = {str(node.id): node for node in writer._trees[tip].values() if node.refs}
    assert {array["node_id"]: array["num_chunk_refs"] for array in seen["arrays"]} == {
        id: len(node.refs) for id, node in stored.items()
    }
    log = repository.inspect_transaction_log(str(tip))
    assert len(log["new_arrays"]) == len([n for n in samples.tree() if isinstance(n, ArrayInput)])
    assert log["header"]["app_name"] == "icefloe"
