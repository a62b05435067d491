"""Methods of repositories: opening, pickling, async methods, inspection, and old versions."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import (
    Attribution,
    FormatError,
    InvalidInputError,
    RepoAvailability,
    Repository,
    RepositoryConfig,
    RepoStatus,
    Session,
    SpecVersion,
    Storage,
    StorageError,
    StorageSettings,
    containers_credentials,
    in_memory_storage,
    local_filesystem_storage,
    s3_credentials,
)
from icefloe._internal.ids import INITIAL_SNAPSHOT_ID
from icefloe.core.open import find_layout


@pytest.fixture(params=["memory", "folder"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    folder = str(tmp_path / "repo")
    return in_memory_storage() if request.param == "memory" else local_filesystem_storage(folder)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest, storage: Storage) -> Repository:
    made = Repository.create(storage, spec_version=request.param)
    write(made, 1)
    return made


@pytest.fixture
def repo_v2(storage: Storage) -> Repository:
    return Repository.create(storage)


def write(repo: Repository, value: int) -> None:
    with repo.transaction("main", message=f"write {value}") as store:
        zarr.create_array(store, name="a", data=np.array([value, value]), chunks=(1,), overwrite=True)


def read(repo: Repository) -> int:
    return int(np.asarray(zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[0]))


# Opening


def test_open_accepts_a_url(tmp_path: Path) -> None:
    write(Repository.create(local_filesystem_storage(str(tmp_path))), 3)

    found = icefloe.open(tmp_path.as_uri(), config=RepositoryConfig(inline_chunk_threshold_bytes=9))

    assert read(found) == 3
    assert found.config.inline_chunk_threshold_bytes == 9
    assert icefloe.storage_from_url(str(tmp_path)).describe() == found.storage.describe()


def test_repository_pickles(repo: Repository) -> None:
    repo.set_default_commit_metadata({"by": "me"})

    copy = pickle.loads(pickle.dumps(repo))

    assert read(copy) == 1
    assert (copy.spec_version, copy.config) == (repo.spec_version, repo.config)
    assert copy.default_commit_metadata() == {"by": "me"}
    write(copy, 2)
    assert read(copy) == 2


def test_pickle_of_an_in_memory_repository_contains_its_data(repo: Repository) -> None:
    early = pickle.dumps(repo)
    write(repo, 2)
    late = pickle.dumps(repo)

    values = [read(pickle.loads(data)) for data in (early, late, early)]

    assert values == ([1, 2, 1] if repo.storage.describe()["type"] == "in-memory" else [2, 2, 2])


def test_reopen_does_not_change_the_original(repo: Repository) -> None:
    repo.set_default_commit_metadata({"by": "me"})

    other = repo.reopen(RepositoryConfig(inline_chunk_threshold_bytes=7))

    assert other.config.inline_chunk_threshold_bytes == 7
    assert repo.config.inline_chunk_threshold_bytes is None
    assert other.default_commit_metadata() == {}
    assert read(other) == 1


def test_configuration_has_the_defaults_of_its_storage(repo: Repository) -> None:
    config = repo.config

    assert config.storage == repo.storage.default_settings()
    config.inline_chunk_threshold_bytes = 1
    assert repo.config != config


def test_only_explicit_settings_are_stored(repo: Repository) -> None:
    repo.reopen(RepositoryConfig(inline_chunk_threshold_bytes=7)).save_config()

    assert Repository.fetch_config(repo.storage) == RepositoryConfig(inline_chunk_threshold_bytes=7)


def test_settings_can_be_passed_for_one_request(repo: Repository) -> None:
    settings = StorageSettings(storage_class="x")

    assert Repository.exists(repo.storage, settings)
    assert Repository.fetch_spec_version(repo.storage, storage_settings=settings) == repo.spec_version


def test_concurrent_open_or_create_succeeds(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    blind = iter([True])
    monkeypatch.setattr(
        "icefloe.repository.find_layout",
        lambda place, layouts: None if next(blind, False) else find_layout(place, layouts),
    )
    write(Repository.create(storage), 4)

    assert read(Repository.open_or_create(storage)) == 4


def test_create_in_a_nonempty_location_is_rejected(storage: Storage) -> None:
    storage.prepare_for_creation()
    storage.put("stray", b"x")

    with pytest.raises(InvalidInputError, match="stray"):
        Repository.open_or_create(storage)

    assert Repository.open_or_create(storage, check_clean_root=False).list_branches() == {"main"}


@pytest.mark.parametrize("version", [0, 3, True, "2", 2.0])
def test_repository_of_an_unknown_version_is_not_created(version: Any) -> None:
    with pytest.raises(ValueError, match=r"Unsupported version|a SpecVersion or a number"):
        Repository.create(in_memory_storage(), spec_version=version)


def test_versions_can_be_enums_or_numbers() -> None:
    for version in (1, SpecVersion.v1):
        storage = in_memory_storage()
        assert Repository.create(storage, spec_version=version).spec_version is SpecVersion.v1
        assert Repository.fetch_spec_version(storage) is SpecVersion.v1


def test_reopen_keeps_the_attribution(storage: Storage) -> None:
    who = Attribution(client="lib/1")

    assert Repository.create(storage, attribution=who).attribution == who
    opened = Repository.open(storage)
    assert opened.attribution == Attribution()
    assert Repository.open(storage, attribution=who).reopen().attribution == who


def test_reopen_keeps_the_authorized_container_prefixes(storage: Storage) -> None:
    access = containers_credentials({"s3://a/": s3_credentials(anonymous=True)})

    repo = Repository.create(storage, authorize_virtual_chunk_access=access)

    assert repo.authorized_virtual_container_prefixes == {"s3://a/"}
    assert repo.reopen().authorized_virtual_container_prefixes == {"s3://a/"}
    assert repo.reopen(authorize_virtual_chunk_access={}).authorized_virtual_container_prefixes == set()
    copy = pickle.loads(pickle.dumps(repo))
    assert copy.authorized_virtual_container_prefixes == {"s3://a/"}


@pytest.mark.parametrize(
    ("prefix", "instead"),
    [("s3://a/", "s3_from_env"), ("gs://a/", "gcs_anonymous"), ("file:///a/", "LocalFileSystemAccess")],
)
def test_access_without_a_credential_is_deprecated(prefix: str, instead: str) -> None:
    with pytest.warns(DeprecationWarning, match=instead):
        Repository.create(in_memory_storage(), authorize_virtual_chunk_access={prefix: None})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Repository.create(in_memory_storage(), authorize_virtual_chunk_access={"vcc://a/": None})


# Async forms


@pytest.mark.parametrize("cls", [Repository, Session])
def test_async_methods_have_the_arguments_of_blocking_methods(cls: type) -> None:
    for name in dir(cls):
        if name.endswith("_async"):
            twin, blocking = getattr(cls, name), getattr(cls, name.removesuffix("_async"))
            assert inspect.signature(twin) == inspect.signature(blocking)
            assert twin.__name__ == name
            assert inspect.iscoroutinefunction(twin) or name == "ops_log_async"


def test_async_methods_match_blocking_methods(storage: Storage) -> None:
    async def go() -> list[str]:
        assert not await Repository.exists_async(storage)
        repo = await Repository.create_async(storage, spec_version=2)
        assert await Repository.exists_async(storage)
        assert await Repository.fetch_spec_version_async(storage) == 2
        assert await Repository.fetch_config_async(storage) is None
        session = await repo.writable_session_async("main")
        zarr.create_array(session.store, name="a", data=np.arange(3))
        first = await session.commit_async("first")
        await asyncio.gather(*(repo.create_branch_async(f"b{n}", first) for n in range(5)))
        again = await Repository.open_async(storage)
        assert await again.list_branches_async() == {"main", "b0", "b1", "b2", "b3", "b4"}
        assert len([entry async for entry in again.ops_log_async()]) == 7
        return [info.message async for info in again.async_ancestry(branch="main")]

    assert asyncio.run(go()) == ["first", "Repository initialized"]


def test_long_history_is_read_page_by_page(repo: Repository) -> None:
    for number in range(60):
        metadata = {"n": number} if number % 7 == 0 else None
        repo.writable_session("main").commit(f"commit {number}", metadata, allow_empty=True)

    infos = list(repo.ancestry(branch="main"))

    assert [info.message for info in infos[:60]] == [f"commit {n}" for n in reversed(range(60))]
    assert [info.parent_id for info in infos] == [*(info.id for info in infos[1:]), None]
    assert infos == [repo.lookup_snapshot(info.id) for info in infos]
    assert [info.metadata for info in infos[:60] if info.metadata] == [{"n": n} for n in range(56, -1, -7)]


def test_iterator_works_in_sync_and_async_loops(repo: Repository) -> None:
    async def rest(history: Any) -> list[str]:
        return [info.message async for info in history]

    history = repo.ancestry(branch="main")

    assert next(history).message == "write 1"
    assert asyncio.run(rest(history)) == ["Repository initialized"]
    assert list(history) == []
    unread = repo.ancestry(branch="main")
    asyncio.run(unread.aclose())
    assert list(unread) == []


# Looking inside


def test_files_can_be_inspected(repo: Repository) -> None:
    tip = repo.lookup_branch("main")
    snapshot = repo.inspect_snapshot(tip)
    (manifest,) = repo.list_manifest_files(tip)

    assert [node["path"] for node in snapshot["nodes"]] == ["/", "/a"]
    assert snapshot["manifests"] == [
        {"id": manifest.id, "size_bytes": manifest.size_bytes, "num_chunk_refs": 2}
    ]
    assert snapshot["header"]["spec_version"] == f"{int(repo.spec_version)}.0"
    assert snapshot["header"]["app_name"] == "icefloe"
    assert repo.inspect_manifest(manifest.id)["total_inline"] == 2
    log = repo.inspect_transaction_log(tip)
    assert log["updated_chunks"][0]["chunks"] == [[0], [1]]
    assert datetime.fromisoformat(snapshot["flushed_at"]) == repo.lookup_snapshot(tip).written_at


def test_repo_info_file_can_be_inspected(repo_v2: Repository) -> None:
    first = str(INITIAL_SNAPSHOT_ID)
    repo_v2.create_tag("t", first)

    found = repo_v2.inspect_repo_info()

    assert (found["branches"], found["tags"]) == ({"main": first}, {"t": first})
    assert found["latest_updates"][0]["update_type"] == {"type": "TagCreatedUpdate", "name": "t"}
    assert "backup_path" not in found["latest_updates"][0]
    assert found["latest_updates"][1]["backup_path"].startswith("repo.")


def test_inspecting_a_missing_file_raises(repo: Repository) -> None:
    for look in (repo.inspect_snapshot, repo.inspect_manifest, repo.inspect_transaction_log):
        with pytest.raises(StorageError) as error:
            look("0" * 20)
        assert error.value.kind == "object-not-found"


# Status


def test_status_is_stored_with_its_time_and_reason(repo_v2: Repository) -> None:
    moment = datetime(2020, 1, 2, tzinfo=UTC)
    status = RepoStatus(RepoAvailability.read_only, moment, "moving")

    repo_v2.set_status(status)

    assert Repository.open(repo_v2.storage).status == status
    repo_v2.set_status(RepoStatus(RepoAvailability.online))
    assert repo_v2.get_status().availability is RepoAvailability.online
    write(repo_v2, 1)


OLD: dict[str, Callable[[Repository], Any]] = {
    "status": lambda repo: repo.status,
    "set_status": lambda repo: repo.set_status(RepoStatus(RepoAvailability.online)),
    "metadata": lambda repo: repo.metadata,
    "feature_flags": lambda repo: repo.feature_flags(),
    "set_feature_flag": lambda repo: repo.set_feature_flag("create_tag", True),
    "ops_log": lambda repo: repo.ops_log(),
    "inspect_repo_info": lambda repo: repo.inspect_repo_info(),
    "rearrange_session": lambda repo: repo.rearrange_session("main"),
    "move": lambda repo: repo.writable_session("main").move("/a", "/b"),
    "amend": lambda repo: repo.writable_session("main").amend("x", allow_empty=True),
}


@pytest.mark.parametrize("call", OLD)
def test_unsupported_operations_of_version_1_have_a_hint(call: str) -> None:
    repo = Repository.create(in_memory_storage(), spec_version=1)

    with pytest.raises(FormatError, match="upgrade_icechunk_repository") as error:
        OLD[call](repo)

    assert error.value.kind == "unsupported-spec-version"


def test_times_without_a_zone_are_rejected(repo: Repository) -> None:
    with pytest.raises(TypeError, match="tzinfo"):
        repo.readonly_session("main", as_of=datetime.now())
    with pytest.raises(ValueError, match="branch"):
        repo.readonly_session(tag="t", as_of=datetime.now(UTC))
