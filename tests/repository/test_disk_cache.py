"""What a repository with a disk cache requests from its storage, and what it never takes from the cache."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import DiskCache, ProcessExecutor, Repository, Storage
from icefloe._internal.executor import Task
from icefloe._internal.ids import INITIAL_SNAPSHOT_ID
from icefloe.config import RepositoryConfig, VirtualChunkContainer, http_store
from icefloe.credentials import Credentials
from icefloe.session import Session
from icefloe.storage import local_filesystem_storage, s3_storage
from icefloe.testing.storages import Call, PassingStorage
from tests.support.servers.moto import make_bucket
from tests.support.servers.proxy import faulty_proxy
from tests.support.servers.ranges import range_server

VALUES = np.arange(64, dtype="i8").reshape(8, 8)
NO_INLINE = RepositoryConfig(inline_chunk_threshold_bytes=0)
DATE, SECONDS = "Tue, 14 Nov 2023 22:13:20 GMT", 1_700_000_000


class RecordingStorage(PassingStorage):
    """A storage that records the objects that it reads."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.read: list[str] = []

    def _send(self, call: Call, request: Callable[[], Any]) -> Any:
        if not call.writes:
            self.read.append(call.path)
        return super()._send(call, request)


def write(repo: Repository) -> str:
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=VALUES.shape, chunks=(4, 4), dtype="i8", compressors=None
    )
    array[:] = VALUES
    return session.commit("values")


def read(session: Session) -> np.ndarray[Any, Any]:
    return np.asarray(zarr.open_array(session.store, path="a", mode="r")[:])


@pytest.fixture
def storage(tmp_path: Path) -> RecordingStorage:
    return RecordingStorage(local_filesystem_storage(str(tmp_path / "repo")))


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


@pytest.mark.parametrize(("version", "changing"), [(2, set()), (1, {"snapshots"})])
def test_second_client_with_the_same_cache_requests_only_mutable_files(
    storage: RecordingStorage, cache: DiskCache, version: int, changing: set[str]
) -> None:
    write(Repository.create(storage, NO_INLINE, spec_version=version))
    files = {"snapshots", "manifests", "chunks"}

    for expected in (files, changing):
        storage.read.clear()
        repo = Repository.open(storage, disk_cache=cache)
        assert np.array_equal(read(repo.readonly_session("main")), VALUES)
        assert {path.partition("/")[0] for path in storage.read} & files == expected


def test_transaction_logs_are_cached(storage: RecordingStorage, cache: DiskCache) -> None:
    repo = Repository.create(storage, NO_INLINE)
    before = write(repo)
    with repo.transaction("main", message="another") as store:
        zarr.create_group(store, path="b")

    for expected in (1, 0):
        storage.read.clear()
        opened = Repository.open(storage, disk_cache=cache)
        assert opened.diff(from_snapshot_id=before, to_branch="main").new_groups == {"/b"}
        assert len([path for path in storage.read if path.startswith("transactions/")]) == expected


def test_initial_snapshot_is_not_cached(storage: RecordingStorage, cache: DiskCache) -> None:
    Repository.create(storage)
    path = f"snapshots/{INITIAL_SNAPSHOT_ID}"

    for _ in range(2):
        storage.read.clear()
        Repository.open(storage, disk_cache=cache).readonly_session("main")
        assert path in storage.read
    assert cache.usage().entries == 0


def test_snapshots_of_version_1_stay_uncached_after_an_upgrade(
    storage: RecordingStorage, cache: DiskCache
) -> None:
    repo = Repository.create(storage, NO_INLINE, spec_version=1)
    write(repo)
    icefloe.upgrade_icechunk_repository(repo, dry_run=False)

    for _ in range(2):
        storage.read.clear()
        read(Repository.open(storage, disk_cache=cache).readonly_session("main"))
        assert [path for path in storage.read if path.startswith("snapshots/")] != []


def test_repositories_at_different_locations_do_not_share_cache_entries(
    tmp_path: Path, cache: DiskCache
) -> None:
    for value in (1, 2):
        storage = local_filesystem_storage(str(tmp_path / f"repo-{value}"))
        repo = Repository.create(storage, NO_INLINE, disk_cache=cache)
        with repo.transaction("main", message="value") as store:
            zarr.create_array(store, name="a", shape=(2,), chunks=(1,), dtype="i8")[:] = value
        for _ in range(2):
            opened = Repository.open(storage, disk_cache=cache)
            assert read(opened.readonly_session("main")).tolist() == [value, value]


def test_verify_ignores_the_disk_cache(tmp_path: Path, storage: RecordingStorage, cache: DiskCache) -> None:
    write(Repository.create(storage, NO_INLINE))
    repo = Repository.open(storage, disk_cache=cache)
    read(repo.readonly_session("main"))
    damaged = min((tmp_path / "repo" / "manifests").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    lost = min((tmp_path / "repo" / "chunks").iterdir())
    lost.unlink()

    again = Repository.open(storage, disk_cache=cache)
    assert np.array_equal(read(again.readonly_session("main")), VALUES)  # of the cache
    found = {(each.kind, each.object) for each in again.verify("chunks").findings}

    assert ("unreadable", f"manifests/{damaged.name}") in found
    assert again.verify("graph").findings
    assert again.repair(dry_run=True).actions
    assert np.array_equal(read(again.readonly_session("main")), VALUES)


def test_damaged_manifest_is_not_cached(tmp_path: Path, storage: RecordingStorage, cache: DiskCache) -> None:
    write(Repository.create(storage, NO_INLINE))
    (manifest,) = (tmp_path / "repo" / "manifests").iterdir()
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    with pytest.raises(icefloe.IcechunkError):
        read(Repository.open(storage, disk_cache=cache).readonly_session("main"))
    manifest.write_bytes(whole)

    found = read(Repository.open(storage, disk_cache=cache).readonly_session("main"))
    assert np.array_equal(found, VALUES)


def test_sessions_and_forks_use_the_cache_in_other_processes(tmp_path: Path, cache: DiskCache) -> None:
    storage = local_filesystem_storage(str(tmp_path / "repo"))
    write(Repository.create(storage, NO_INLINE))
    repo = Repository.open(storage, disk_cache=cache)
    session = repo.readonly_session("main")
    assert np.array_equal(read(session), VALUES)
    for folder in ("chunks", "manifests", "snapshots"):
        for file in (tmp_path / "repo" / folder).iterdir():
            file.unlink()

    fork = pickle.loads(pickle.dumps(session))
    with ProcessExecutor(1) as processes:
        found = list(processes.map(Task(_sum, "sums"), [session, fork]))

    assert found == [VALUES.sum()] * 2
    assert pickle.loads(pickle.dumps(repo)).disk_cache == cache


def _sum(session: Session) -> int:
    return int(read(session).sum())


def test_disk_cache_is_not_stored_in_the_configuration(tmp_path: Path, cache: DiskCache) -> None:
    storage = local_filesystem_storage(str(tmp_path / "repo"))
    repo = Repository.create(storage, disk_cache=cache)
    repo.save_config()

    assert b"cache" not in (tmp_path / "repo" / "repo").read_bytes()
    assert Repository.open(storage).disk_cache is None
    assert repo.reopen(NO_INLINE).disk_cache == cache
    assert icefloe.open(str(tmp_path / "repo"), disk_cache=cache.path).disk_cache == cache
    assert Repository.open_or_create(storage, disk_cache=cache.path).disk_cache == cache


def test_async_open_and_create_accept_a_disk_cache(tmp_path: Path, cache: DiskCache) -> None:
    storage = local_filesystem_storage(str(tmp_path / "repo"))

    created = asyncio.run(Repository.create_async(storage, disk_cache=cache))
    opened = asyncio.run(Repository.open_async(storage, disk_cache=cache))
    either = asyncio.run(Repository.open_or_create_async(storage, disk_cache=cache))

    assert created.disk_cache == opened.disk_cache == either.disk_cache == cache


@pytest.mark.parametrize(("checksum", "requests"), [("etag", 1), ("time", 1), ("none", 2)])
def test_only_virtual_chunks_with_a_checksum_are_cached(
    tmp_path: Path, cache: DiskCache, checksum: str, requests: int
) -> None:
    with range_server() as server:
        server.files["data/a.nc"] = bytes(range(100))
        server.etags["data/a.nc"] = '"one"'
        server.modified["data/a.nc"] = DATE
        prefix = f"{server.url}/data/"
        config = RepositoryConfig()
        config.set_virtual_chunk_container(VirtualChunkContainer(prefix, http_store()))
        access = {prefix: Credentials.HttpAccess()}
        storage = local_filesystem_storage(str(tmp_path / "repo"))
        repo = Repository.create(storage, config, access)
        session = repo.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(4,), chunks=(4,), dtype="u1", compressors=None)
        given: Any = {"etag": '"one"', "time": _time(SECONDS), "none": None}[checksum]
        session.store.set_virtual_ref("a/c/0", f"{prefix}a.nc", offset=10, length=4, checksum=given)
        session.commit("a reference")
        server.asked.clear()

        for _ in range(2):
            opened = Repository.open(storage, authorize_virtual_chunk_access=access, disk_cache=cache)
            assert read(opened.readonly_session("main")).tolist() == [10, 11, 12, 13]

        assert len(server.asked) == requests
        refused = Repository.open(storage, disk_cache=cache)
        with pytest.raises(icefloe.IcechunkError, match="resolves to the url prefix"):
            read(refused.readonly_session("main"))


def _time(seconds: int) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC)


def test_second_read_with_a_disk_cache_sends_fewer_requests_to_s3(s3_server: str, cache: DiskCache) -> None:
    make_bucket(s3_server, "cached")
    with faulty_proxy(s3_server) as proxy:

        def open_storage(url: str) -> Storage:
            return s3_storage(
                bucket="cached",
                prefix="repo",
                region="us-east-1",
                endpoint_url=url,
                allow_http=True,
                force_path_style=True,
                access_key_id="access",
                secret_access_key="a-secret-key",
            )

        write(Repository.create(open_storage(proxy.url), NO_INLINE))
        seen = []
        for _ in range(2):
            proxy.seen.clear()
            repo = Repository.open(open_storage(proxy.url), disk_cache=cache)
            assert np.array_equal(read(repo.readonly_session("main")), VALUES)
            seen.append([request.path for request in proxy.seen])

    assert len(seen[0]) == len(seen[1]) + 1 + 1 + 4  # the snapshot, the manifest and the chunks
    assert {path.rpartition("/")[2] for path in seen[1]} == {"repo"}
    files = [path for path in Path(cache.path).rglob("*") if path.is_file()]
    assert all(b"a-secret-key" not in path.read_bytes() for path in files)
    assert cache.usage().hits == 6


def test_library_does_not_read_the_cache_location_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: DiskCache
) -> None:
    monkeypatch.setenv("ICEFLOE_CACHE", cache.path)
    storage = local_filesystem_storage(str(tmp_path / "repo"))

    assert Repository.create(storage).disk_cache is None
    assert Repository.open(storage).disk_cache is None
