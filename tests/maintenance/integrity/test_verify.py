"""Verification: no findings in intact repositories, and all damage is found."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import zarr

from icefloe import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    in_memory_storage,
    local_filesystem_store,
)
from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, ManifestId, SnapshotId
from icefloe.credentials import LocalFileSystemAccess
from icefloe.format.files import read_manifest, read_snapshot, write_manifest, write_snapshot
from icefloe.format.manifest import Manifest
from icefloe.format.snapshot import ManifestFiles
from icefloe.format.spec import V2
from icefloe.maintenance.integrity import verify_graph
from icefloe.storage import local_filesystem_storage
from tests.support.format import golden
from tests.support.histories import commit, names, now, repository


def three_commits() -> Repository:
    """Create a repository with three chunk objects."""
    repo = repository()
    for value in (1, 2, 3):
        commit(repo, value)
    return repo


def reopened(repo: Repository) -> Repository:
    """Open the repository again, with empty caches."""
    return Repository.open(repo.storage)


def test_intact_repository_has_no_findings() -> None:
    repo = three_commits()
    repo.expire_snapshots(now())
    repo.garbage_collect(now())

    report = repo.verify("objects")

    assert report.ok
    assert (report.snapshots, report.manifests, report.references, report.chunk_objects) == (2, 1, 3, 3)
    assert report.transaction_logs == 5  # the tip's own, three that it inherited, and that of the first


@pytest.mark.parametrize("name", [name for name in golden.NAMES if name.startswith(("v1", "v2"))])
def test_repositories_of_official_releases_are_intact(name: str) -> None:
    storage = in_memory_storage()
    for path, data in golden.load(name).files.items():
        storage.put(path, data)

    assert Repository.open(storage).verify("objects").findings == ()


def test_shared_history_is_counted_once() -> None:
    report = three_commits().verify()

    assert (report.snapshots, report.manifests, report.references, report.chunk_objects) == (5, 3, 6, 0)


@pytest.mark.parametrize("folder", ["snapshots", "transactions", "manifests"])
def test_missing_file_is_found(folder: str) -> None:
    repo = three_commits()
    gone = f"{folder}/{repo.lookup_branch('main')}"
    if folder == "manifests":
        gone = f"manifests/{repo.list_manifest_files(repo.lookup_branch('main'))[0].id}"
    repo.storage.delete([gone])

    (found,) = reopened(repo).verify().findings

    assert (found.kind, found.object) == ("missing", gone)


@pytest.mark.parametrize("folder", ["snapshots", "transactions", "manifests"])
def test_damaged_file_is_found_and_others_are_checked(folder: str) -> None:
    repo = three_commits()
    name = repo.lookup_branch("main")
    if folder == "manifests":
        name = repo.list_manifest_files(name)[0].id
    path = f"{folder}/{name}"
    data = bytearray(repo.storage.get(path)[0])
    data[-1] ^= 0xFF
    repo.storage.put(path, bytes(data))

    report = reopened(repo).verify()

    assert ("unreadable", path) in [(found.kind, found.object) for found in report.findings]
    assert report.snapshots >= 4


def test_missing_chunk_is_found_at_level_objects() -> None:
    repo = three_commits()
    gone = f"chunks/{sorted(names(repo, 'chunks'))[0]}"
    repo.storage.delete([gone])

    assert repo.verify("graph").ok
    (found,) = repo.verify("objects").findings

    assert (found.kind, found.object) == ("missing", gone)


def test_truncated_chunk_is_found() -> None:
    repo = three_commits()
    path = f"chunks/{sorted(names(repo, 'chunks'))[0]}"
    size = len(repo.storage.get(path)[0])
    repo.storage.put(path, b"x" * (size - 1))

    (found,) = repo.verify("objects").findings

    assert (found.kind, found.object) == ("short", path)
    assert str(size) in found.message


def _other_manifest(repo: Repository, change: Callable[[Manifest], Manifest]) -> str:
    """Replace the manifest of the tip."""
    (file,) = repo.list_manifest_files(repo.lookup_branch("main"))
    path = f"manifests/{file.id}"
    manifest = read_manifest(repo.storage.get(path)[0], ManifestId.parse(file.id)).unpack()
    repo.storage.put(path, write_manifest(change(manifest), V2))
    return path


def test_references_outside_their_extents_and_grid_are_found() -> None:
    repo = three_commits()

    def elsewhere(manifest: Manifest) -> Manifest:
        moved = {
            node: replace(refs, coords=refs.coords + np.uint32(6)) for node, refs in manifest.arrays.items()
        }
        return replace(manifest, arrays=moved)

    path = _other_manifest(repo, elsewhere)

    findings = reopened(repo).verify().findings

    assert {(found.kind, found.object) for found in findings} >= {("extents", path), ("grid", path)}
    assert "2 references outside 0..8, the first for chunk [8]" in next(
        found.message for found in findings if found.kind == "grid"
    )


def test_wrong_number_of_references_is_found() -> None:
    repo = three_commits()

    def fewer(manifest: Manifest) -> Manifest:
        return replace(manifest, arrays={node: refs.take([0]) for node, refs in manifest.arrays.items()})

    path = _other_manifest(repo, fewer)

    findings = reopened(repo).verify().findings

    assert ("count", path) in [(found.kind, found.object) for found in findings]


def test_wrong_size_of_a_manifest_is_found() -> None:
    repo = three_commits()
    id = SnapshotId.parse(repo.lookup_branch("main"))
    path = f"snapshots/{id}"
    snapshot = read_snapshot(repo.storage.get(path)[0], id)
    (file,) = snapshot.manifest_files
    wrong = ManifestFiles.of([replace(file, size_bytes=file.size_bytes + 1)])
    repo.storage.put(path, write_snapshot(replace(snapshot, manifest_files=wrong), V2))

    (found,) = reopened(repo).verify().findings

    assert (found.kind, found.object) == ("size", f"manifests/{file.id}")


def test_unknown_level_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"'everything'.*graph, objects"):
        repository().verify("everything")  # type: ignore[arg-type]


# Files elsewhere, and chunks decoded


@pytest.fixture
def archive(tmp_path: Path) -> tuple[Repository, Path]:
    """Create an array with two virtual chunks in one file, with its modification time."""
    file = tmp_path / "archive.bin"
    file.write_bytes(np.arange(8, dtype="<i4").tobytes())
    prefix = f"file://{tmp_path}/"
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, local_filesystem_store(str(tmp_path))))
    access = {prefix: LocalFileSystemAccess}
    repo = Repository.create(in_memory_storage(), config=config, authorize_virtual_chunk_access=access)
    repo.save_config()
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="v", shape=(8,), chunks=(4,), dtype="i4", compressors=None, filters=None
    )
    modified = datetime.fromtimestamp(int(file.stat().st_mtime) + 1, UTC)
    for at in (0, 1):
        session.store.set_virtual_ref(
            f"v/c/{at}", f"{prefix}archive.bin", offset=16 * at, length=16, checksum=modified
        )
    session.commit("virtual")
    return repo, file


def test_each_source_file_is_requested_once(archive: tuple[Repository, Path]) -> None:
    report = archive[0].verify("sources")

    assert report.findings == ()
    assert (report.references, report.sources) == (2, 1)
    assert archive[0].verify("chunks").chunks == 2


def _gone(file: Path) -> None:
    file.unlink()


def _cut(file: Path) -> None:
    times = file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes()[:-1])
    os.utime(file, ns=(times, times))


def _touched(file: Path) -> None:
    os.utime(file, (2_000_000_000, 2_000_000_000))


@pytest.mark.parametrize(("harm", "kind"), [(_gone, "missing"), (_cut, "short"), (_touched, "changed")])
def test_changed_and_missing_files_are_found(
    archive: tuple[Repository, Path], harm: Callable[[Path], None], kind: str
) -> None:
    repo, file = archive
    harm(file)

    assert repo.verify("objects").ok
    (found,) = repo.verify("sources").findings

    assert (found.kind, found.object) == (kind, file.as_uri())


def test_unauthorized_file_is_distinguished_from_changed_file(archive: tuple[Repository, Path]) -> None:
    (found,) = Repository.open(archive[0].storage).verify("sources").findings

    assert found.kind == "unauthorised"


def test_undecodable_chunk_is_found_at_level_chunks() -> None:
    repo = three_commits()
    path = f"chunks/{sorted(names(repo, 'chunks'))[0]}"
    repo.storage.put(path, b"x" * len(repo.storage.get(path)[0]))

    assert reopened(repo).verify("objects").ok
    report = reopened(repo).verify("chunks")

    assert [(found.kind, found.object) for found in report.findings] == [("undecodable", "/a")]
    assert report.chunks == 3


def test_shards_and_empty_arrays_are_decoded() -> None:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    root.create_array("sharded", data=np.arange(16, dtype="i4"), chunks=(2,), shards=(8,))
    root.create_array("empty", shape=(0, 3), chunks=(1, 3), dtype="i4")
    root.create_array("scalar", data=np.array(5.0))
    session.commit("three")

    report = repo.verify("chunks")

    assert report.findings == ()
    assert report.chunks == 3


def test_chunks_of_any_size_are_decoded() -> None:
    """Rectilinear grids have chunks of different sizes; older releases of zarr report that they lack them."""
    storage = in_memory_storage()
    for path, data in golden.load("v2-2.3.0-zarrish").files.items():
        storage.put(path, data)
    repo = Repository.open(storage)
    tree = {node.path: node.user_data for node in repo.readonly_session("main")._workspace.base.nodes}
    assert any(b"rectilinear" in metadata for metadata in tree.values())

    report = repo.verify("chunks")

    if zarr.config.get("array.rectilinear_chunks", None) is None:
        assert {found.kind for found in report.findings} == {"undecodable"}
        assert all("zarr cannot open the array" in found.message for found in report.findings)
    else:
        assert report.findings == ()
    assert report.chunks > 0


@pytest.mark.parametrize("version", [1, 2])
def test_missing_or_truncated_transaction_log_is_found(version: int) -> None:
    """The first snapshot needs no log, but an existing one must be intact."""
    repo = repository(version)
    commit(repo, 1)
    first = f"transactions/{INITIAL_SNAPSHOT_ID}"
    logs = sorted(key for key, _ in repo.storage.list_objects() if key.startswith("transactions/"))
    assert len(logs) == (2 if version == 1 else 3)

    for log in logs:
        data = repo.storage.get(log)[0]
        repo.storage.put(log, data[:-3])
        cut = Repository.open(repo.storage).verify("graph")
        repo.storage.delete([log])
        gone = Repository.open(repo.storage).verify("graph")
        repo.storage.put(log, data)

        assert [found.object for found in cut.findings] == [log]
        assert [found.object for found in gone.findings] == ([] if log == first else [log])


def test_manifests_with_many_references_are_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_graph, "_MANY_REFS", 0)
    repo = Repository.create(local_filesystem_storage(str(tmp_path)))
    for name in ("a", "b", "c"):
        with repo.transaction("main", message=name) as store:
            zarr.create_array(store, name=name, data=np.arange(6), chunks=(2,))
    assert not repo.verify().findings
    damaged = min((tmp_path / "manifests").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])

    (finding,) = Repository.open(repo.storage).verify().findings

    assert (finding.kind, finding.object) == ("unreadable", f"manifests/{damaged.name}")
