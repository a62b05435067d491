"""Garbage collection: deleted objects, kept objects, and failures."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import Repository
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import FormatError, ReadOnlyError, StorageError
from icefloe.storage.base import DeleteReport, Storage
from tests.support.histories import LONG_AGO, commit, names, now, overwrite_ten_times, repository


def test_objects_of_expired_snapshots_are_deleted() -> None:
    repo = overwrite_ten_times()
    repo.expire_snapshots(now())

    summary = repo.garbage_collect(now())

    assert summary.snapshots_deleted == 10
    assert summary.chunks_deleted == 9
    assert summary.manifests_deleted == 9
    assert summary.transaction_logs_deleted == 0  # the tip inherits them
    assert summary.bytes_deleted > 0
    assert len(names(repo, "chunks")) == 1
    assert len(names(repo, "snapshots")) == 2


def test_dry_run_counts_the_same_and_deletes_nothing() -> None:
    repo = overwrite_ten_times()
    repo.expire_snapshots(now())
    before = names(repo, "")

    counted = repo.garbage_collect(now(), dry_run=True)

    assert names(repo, "") == before
    assert counted == repo.garbage_collect(now())


def test_reachable_history_is_kept() -> None:
    repo = overwrite_ten_times()
    before = names(repo, "chunks") | names(repo, "snapshots") | names(repo, "manifests")

    summary = repo.garbage_collect(now())

    assert summary.chunks_deleted == summary.snapshots_deleted == summary.manifests_deleted == 0
    assert names(repo, "chunks") | names(repo, "snapshots") | names(repo, "manifests") == before


def test_recent_objects_are_kept() -> None:
    repo = overwrite_ten_times()
    repo.expire_snapshots(now())

    summary = repo.garbage_collect(LONG_AGO)

    assert summary == icefloe.GCSummary()


def test_temporary_files_of_killed_writers_are_deleted(tmp_path: Path) -> None:
    repo = Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    stems = ("repo", "snapshots/1CECHNKREP0F1RSTCMT0", "refs/branch.main/ref.json", "config.yaml")
    aside = [tmp_path / f"{stem}#{10**18 + number}" for number, stem in enumerate(stems)]
    (tmp_path / "refs/branch.main").mkdir(parents=True)
    for file in aside:
        file.write_bytes(b"half of it")

    assert repo.garbage_collect(LONG_AGO).temporary_files_deleted == 0
    dry = repo.garbage_collect(now(), dry_run=True)
    table = repo.find_garbage(now())

    assert all(file.exists() for file in aside)
    assert list(table["kind"]) == ["temporary file"] * 4
    assert table["bytes"].tolist() == [10] * 4

    summary = repo.garbage_collect(now())

    assert summary == dry == icefloe.GCSummary(temporary_files_deleted=4, bytes_deleted=40)
    assert not any(file.exists() for file in aside)
    assert repo.verify().ok


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_users_are_never_deleted(tmp_path: Path, version: int) -> None:
    repo = Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")), spec_version=version)
    number = 12345678901234567890
    outside = tmp_path / "outside" / f"1CECHNKREP0F1RSTCMT0#{number}"
    files = [
        tmp_path / "repo" / name
        for name in (
            "report#2024",
            f"report#{number}",
            f"notes/snapshots/1CECHNKREP0F1RSTCMT0#{number}",
            "snapshots/1CECHNKREP0F1RSTCMT0#1",
            f"snapshots/mine#{number}",
            f"snapshots/1CECHNKREP0F1RSTCMT0#{number}a",
            f"chunks/mine/1CECHNKREP0F1RSTCMT0#{number}",
            f"overwritten/mine#{number}",
            "refs/branch.main/mine",
        )
    ]
    for file in (outside, *files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"of a user")
    for link in ("linked", "chunks/linked", "manifests"):
        (tmp_path / "repo" / link).symlink_to(tmp_path / "outside")
    (tmp_path / "repo/chunks/itself").symlink_to("itself")

    summary = repo.garbage_collect(now())

    assert summary == icefloe.GCSummary()
    assert all(file.exists() for file in (outside, *files))


def test_garbage_in_a_linked_folder_is_reported_and_kept(tmp_path: Path) -> None:
    repo = Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(8192,), chunks=(1024,), dtype="f8", compressors=None
    )
    array[:] = 1
    (tmp_path / "repo/chunks").rename(tmp_path / "disk")
    (tmp_path / "repo/chunks").symlink_to(tmp_path / "disk")
    session.discard_changes()

    summary = repo.garbage_collect(now())

    assert summary.chunks_deleted == 0
    assert summary.objects_failed_to_delete == len(list((tmp_path / "disk").iterdir())) == 8
    assert "symbolic link" in summary.delete_errors[0]


def test_old_detached_snapshot_is_deleted() -> None:
    repo = repository()
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 5
    detached = session.flush("nowhere")
    young = repo.garbage_collect(LONG_AGO)
    assert repo.readonly_session(snapshot_id=detached).snapshot_id == detached

    old = repo.garbage_collect(now())

    assert (young.snapshots_deleted, old.snapshots_deleted, old.chunks_deleted) == (0, 1, 1)
    with pytest.raises(icefloe.IcechunkError, match=detached):
        repo.readonly_session(snapshot_id=detached)


@pytest.mark.parametrize("version", [1, 2])
def test_unreadable_manifest_stops_a_collection_before_deletion(version: int) -> None:
    repo = repository(version)
    commit(repo, 1)
    (needed,) = names(repo, "manifests")
    key = f"manifests/{needed}"
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[3] = 5
    session.flush("garbage")
    repo.storage.put(key, repo.storage.get(key)[0][:-5])
    again = Repository.open(repo.storage)
    before = names(again, "")

    with pytest.raises(FormatError, match="manifests/"):
        again.garbage_collect(now())

    assert names(again, "") == before


def test_missing_manifest_stops_a_collection_before_deletion() -> None:
    repo = repository()
    commit(repo, 1)
    repo.storage.delete([f"manifests/{sorted(names(repo, 'manifests'))[0]}"])
    before = names(repo, "")

    with pytest.raises(StorageError, match="manifests/"):
        repo.garbage_collect(now())

    assert names(repo, "") == before


def test_files_without_ids_as_names_are_kept() -> None:
    repo = repository()
    strange = ["chunks/README", "chunks/0" * 3, "manifests/" + "Z" * 20, "chunks/" + "a" * 19 + "0"]
    for key in strange:
        repo.storage.put(key, b"mine")

    repo.garbage_collect(now())

    assert all(repo.storage.exists(key) for key in strange)


def test_backups_of_the_repo_info_are_kept() -> None:
    repo = overwrite_ten_times()
    before = names(repo, "overwritten")

    repo.garbage_collect(now())

    assert names(repo, "overwritten") >= before


def test_snapshot_used_by_a_concurrent_branch_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 5
    detached = session.flush("nowhere")
    other = Repository.open(repo.storage)
    list_prefix = type(repo.storage).list_prefix
    listings = []

    def listing(self: Storage, prefix: str = "") -> Any:
        found = list(list_prefix(self, prefix))
        listings.append(prefix)
        if listings == ["chunks/", "manifests/", "transactions/", "snapshots/"]:
            later.append(lambda: other.create_branch("rescued", detached))
        return iter(found)

    later: list[Any] = []
    load = RefStoreV2.load

    def loading(self: Any) -> Any:
        info = load(self)
        while later:
            later.pop()()
        return info

    monkeypatch.setattr(type(repo.storage), "list_prefix", listing)
    monkeypatch.setattr(RefStoreV2, "load", loading)

    summary = repo.garbage_collect(now())

    assert summary.snapshots_deleted == summary.chunks_deleted == 0
    array = zarr.open_array(repo.readonly_session("rescued").store, path="a", mode="r")
    assert array[0] == 5


def test_recent_unlisted_snapshot_keeps_its_objects() -> None:
    repo = repository(1)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 5
    (chunk,) = names(repo, "chunks")
    moment = now()
    session.flush("a commit under way")

    assert repo.garbage_collect(moment).chunks_deleted == 0

    assert names(repo, "chunks") == {chunk}
    assert repo.garbage_collect(now()).chunks_deleted == 1


def test_failures_are_counted_and_skip_later_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = overwrite_ten_times()
    repo.expire_snapshots(now())
    delete = type(repo.storage).delete

    def failing(self: Storage, paths: Any) -> DeleteReport:
        paths = list(paths)
        if paths[0].startswith("snapshots"):
            rest = delete(self, paths[1:])
            return DeleteReport(rest.deleted, ((paths[0], StorageError("no permission")),))
        return delete(self, paths)

    monkeypatch.setattr(type(repo.storage), "delete", failing)

    summary = repo.garbage_collect(now())

    assert summary.objects_failed_to_delete == 1
    assert summary.snapshots_deleted == 9
    assert summary.delete_errors == ["no permission"]
    assert summary.skipped_phases == ["transaction_logs", "manifests", "chunks"]
    monkeypatch.undo()
    assert repo.garbage_collect(now()).chunks_deleted == 9


def test_consecutive_failures_stop_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = overwrite_ten_times()
    repo.expire_snapshots(now())

    def failing(self: Storage, paths: Any) -> DeleteReport:
        return DeleteReport(0, tuple((path, StorageError("no permission")) for path in paths))

    monkeypatch.setattr(type(repo.storage), "delete", failing)

    with pytest.raises(StorageError, match="no permission") as caught:
        repo.garbage_collect(now(), max_consecutive_delete_failures=1)

    assert caught.value.kind == "gc-deletes-failing"


@pytest.mark.parametrize(
    "limit",
    [
        "max_snapshots_in_memory",
        "max_concurrent_deletes",
        "max_concurrent_listings",
        "max_compressed_manifest_mem_bytes",
    ],
)
def test_limit_of_zero_is_rejected(limit: str) -> None:
    options: dict[str, Any] = {limit: 0}

    with pytest.raises(ValueError, match=limit):
        repository().garbage_collect(now(), **options)


def test_read_only_repository_is_not_collected_even_in_a_dry_run() -> None:
    repo = repository()
    repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only))

    with pytest.raises(ReadOnlyError, match="read-only"):
        repo.garbage_collect(now(), dry_run=True)


def test_chunk_bytes_are_counted_once() -> None:
    repo = overwrite_ten_times()
    repo.create_branch("dev", repo.lookup_branch("main"))
    one = len(repo.storage.get(f"chunks/{sorted(names(repo, 'chunks'))[0]}")[0])

    stats = repo.chunk_storage_stats()

    assert (stats.native_bytes, stats.virtual_bytes, stats.inlined_bytes) == (10 * one, 0, 0)
    assert stats.total_bytes() == stats.non_virtual_bytes() == 10 * one
    assert (stats + stats).native_bytes == 20 * one
    with pytest.warns(DeprecationWarning, match="chunk_storage_stats"):
        assert repo.total_chunks_storage() == 10 * one


def test_deprecated_async_method_warns_with_its_own_name() -> None:
    repo = overwrite_ten_times()

    with pytest.warns(DeprecationWarning, match="total_chunks_storage_async") as warned:
        found = asyncio.run(repo.total_chunks_storage_async())

    assert found == repo.chunk_storage_stats().native_bytes
    assert warned[0].filename != concurrent.futures.thread.__file__
