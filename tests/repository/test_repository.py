"""Repositories, sessions and stores end to end, in both versions of the format, in memory and on a folder."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID
from icefloe.config import ManifestSplitCondition, ManifestSplitDimCondition, RepositoryConfig
from icefloe.config.repository import ManifestConfig, ManifestSplittingConfig
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    IcechunkError,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.ops import UpdateType
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage, local_filesystem_storage
from icefloe.storage.base import Storage
from icefloe.types import ChunkType, RepoAvailability, RepoStatus, SessionMode

Make = Callable[..., Repository]


@pytest.fixture(params=["memory", "folder"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return (
        in_memory_storage() if request.param == "memory" else local_filesystem_storage(str(tmp_path / "repo"))
    )


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest, storage: Storage) -> Repository:
    return Repository.create(storage, spec_version=request.param)


@pytest.fixture
def repo_v2(storage: Storage) -> Repository:
    return Repository.create(storage)


def write(repo: Repository, values: Any, path: str = "a", branch: str = "main", **options: Any) -> str:
    """Commit an array."""
    data = np.asarray(values)
    session = repo.writable_session(branch)
    chunks = options.pop("chunks", tuple(max(n // 2, 1) for n in data.shape))
    zarr.create_array(session.store, name=path, data=data, chunks=chunks, overwrite=True, **options)
    return session.commit(f"write {path}")


def read(repo: Repository, path: str = "a", **where: Any) -> Any:
    session = repo.readonly_session(**(where or {"branch": "main"}))
    return zarr.open_array(session.store, path=path, mode="r")[...]


def error_kind(error: pytest.ExceptionInfo[IcechunkError]) -> str:
    return str(error.value.kind)


def test_new_repository_has_main_at_the_initial_snapshot(repo: Repository) -> None:
    history = list(repo.ancestry(branch="main"))

    assert [info.id for info in history] == [str(INITIAL_SNAPSHOT_ID)]
    assert history[0].message == "Repository initialized"
    assert repo.list_branches() == {"main"}
    assert repo.list_tags() == set()


def test_commits_are_visible_after_opening_again(repo: Repository) -> None:
    values = np.arange(60, dtype="f4").reshape(6, 10)

    write(repo, values)

    again = Repository.open(repo.storage)
    assert (read(again) == values).all()
    assert again.spec_version == repo.spec_version


def test_large_chunks_are_objects_and_small_chunks_inline(repo: Repository) -> None:
    write(repo, np.random.default_rng(0).random((64, 64)), "big", compressors=None)
    write(repo, np.arange(4), "small")
    session = repo.readonly_session("main")

    assert session.chunk_type("/big", (0, 0)) is ChunkType.native
    assert session.chunk_type("/small", (1,)) is ChunkType.inline
    assert session.chunk_type("/small", (7,)) is ChunkType.uninitialized


def test_read_only_session_is_pinned_to_one_snapshot(repo: Repository) -> None:
    write(repo, [1, 2, 3])
    before = repo.readonly_session("main")

    write(repo, [9, 9, 9])

    assert np.asarray(zarr.open_array(before.store, path="a", mode="r")[:]).tolist() == [1, 2, 3]
    assert read(repo).tolist() == [9, 9, 9]


def test_history_can_be_read_by_branch_tag_id_and_time(repo: Repository) -> None:
    first = write(repo, [1])
    second = write(repo, [2])
    repo.create_tag("v1", first)
    moment = repo.lookup_snapshot(first).written_at

    assert read(repo, tag="v1").tolist() == [1]
    assert read(repo, snapshot_id=first.lower()).tolist() == [1]
    assert read(repo, branch="main", as_of=moment).tolist() == [1]
    assert read(repo, branch="main", as_of=datetime.now(UTC)).tolist() == [2]
    assert [info.id for info in repo.ancestry(branch="main")][:2] == [second, first]
    with pytest.raises(SnapshotNotFoundError) as error:
        repo.readonly_session("main", as_of=moment - timedelta(days=1))
    assert error_kind(error) == "no-snapshot-at-time"


def test_commit_fails_when_branch_moved(repo: Repository) -> None:
    write(repo, [1])
    mine, theirs = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_array(theirs.store, path="a")[0] = 5
    theirs.commit("theirs")
    zarr.open_array(mine.store, path="a")[0] = 6

    with pytest.raises(ConflictError) as error:
        mine.commit("mine")

    assert error_kind(error) == "commit-conflict"
    assert error.value.actual_parent == repo.lookup_branch("main")
    assert read(repo).tolist() == [5]
    assert mine.has_uncommitted_changes


def test_branches_can_diverge_be_reset_and_be_deleted(repo: Repository) -> None:
    first = write(repo, [1])
    repo.create_branch("dev", first)
    second = write(repo, [2], branch="dev")

    assert read(repo).tolist() == [1]
    repo.reset_branch("main", second)
    assert read(repo).tolist() == [2]
    with pytest.raises(ConflictError):
        repo.reset_branch("main", first, from_snapshot_id=first)
    repo.delete_branch("dev")
    assert repo.list_branches() == {"main"}
    with pytest.raises(RefNotFoundError):
        repo.lookup_branch("dev")
    with pytest.raises(SessionStateError) as error:
        repo.delete_branch("main")
    assert error_kind(error) == "cannot-delete-main"


def test_name_of_a_deleted_tag_cannot_be_reused(repo: Repository) -> None:
    first = write(repo, [1])
    repo.create_tag("v1", first)
    with pytest.raises(AlreadyExistsError):
        repo.create_tag("v1", first)

    repo.delete_tag("v1")

    assert repo.list_tags() == set()
    with pytest.raises(AlreadyExistsError):
        repo.create_tag("v1", first)
    with pytest.raises(RefNotFoundError):
        repo.lookup_tag("v1")
    with pytest.raises(RefNotFoundError):
        repo.delete_tag("v1")


def test_diff_lists_changes(repo: Repository) -> None:
    start = write(repo, np.arange(4), "g/a")
    session = repo.writable_session("main")
    group = zarr.open_group(session.store)
    group["g/a"][0] = 7  # type: ignore[index]
    group["g"].attrs["unit"] = "K"
    group.create_group("new")
    group.create_array("b", shape=(2,), dtype="i2")
    session.commit("second")
    session = repo.writable_session("main")
    del zarr.open_group(session.store)["new"]
    session.commit("third")

    diff = repo.diff(from_snapshot_id=start, to_branch="main")

    assert diff.new_arrays == {"/b"}
    assert diff.new_groups == set()
    assert diff.updated_groups == {"/g"}
    assert diff.updated_chunks == {"/g/a": [[0]]}
    with pytest.raises(InvalidInputError) as error:
        repo.diff(from_branch="main", to_snapshot_id=start)
    assert error_kind(error) == "bad-snapshot-chain-for-diff"


def test_status_lists_changes_that_discard_drops(repo: Repository) -> None:
    session = repo.writable_session("main")
    assert session.status().is_empty()
    zarr.create_array(session.store, name="a", data=np.arange(4), chunks=(2,))

    assert session.status().new_arrays == {"/a"}
    assert session.status().updated_chunks == {"/a": [[0], [1]]}
    session.discard_changes()
    assert not session.has_uncommitted_changes
    with pytest.raises(SessionStateError) as error:
        session.commit("nothing")
    assert error_kind(error) == "no-changes-to-commit"
    session.commit("nothing", allow_empty=True)


def test_committed_session_is_read_only(repo: Repository) -> None:
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", data=np.arange(4))
    session.commit("first")

    assert session.read_only
    assert session.mode is SessionMode.readonly
    assert session.branch is None
    with pytest.raises(ReadOnlyError):
        array[0] = 1
    with pytest.raises(SessionStateError) as error:
        session.commit("again")
    assert error_kind(error) == "commit-not-allowed"


def test_transaction_commits_only_if_the_block_succeeds(repo: Repository) -> None:
    with repo.transaction("main", message="in one go", metadata={"by": "me"}) as store:
        zarr.create_array(store, name="a", data=np.arange(3))

    def fail_in_the_middle() -> None:
        with repo.transaction("main", message="never") as store:
            zarr.create_array(store, name="b", data=np.arange(3))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_in_the_middle()
    assert [info.message for info in repo.ancestry(branch="main")] == ["in one go", "Repository initialized"]
    assert next(repo.ancestry(branch="main")).metadata == {"by": "me"}


def test_resize_drops_chunks_outside_the_array(repo: Repository) -> None:
    write(repo, np.arange(10), chunks=(2,))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a").resize((5,))
    session.commit("shrink")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a").resize((8,))
    session.commit("grow")

    assert read(repo).tolist() == [0, 1, 2, 3, 4, 5, 0, 0]  # the sixth is in a chunk that stayed


def test_manifests_are_split_by_the_configuration(storage: Storage) -> None:
    splitting = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.name_matches("a"): {ManifestSplitDimCondition.Axis(0): 2}}
    )
    config = RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
    repo = Repository.create(storage, config)
    values = np.arange(36).reshape(6, 6)
    first = write(repo, values, chunks=(1, 3))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[5, 5] = 99
    second = session.commit("touch one window")

    before = {info.id for info in repo.list_manifest_files(first)}
    after = {info.id for info in repo.list_manifest_files(second)}
    assert len(before) == len(after) == 3
    assert len(before & after) == 2
    values[5, 5] = 99
    assert (read(repo) == values).all()


def test_existence_of_repositories_is_detected(storage: Storage) -> None:
    assert not Repository.exists(storage)
    assert Repository.fetch_spec_version(storage) is None
    with pytest.raises(RepositoryNotFoundError):
        Repository.open(storage)

    Repository.open_or_create(storage, create_version=1)

    assert Repository.exists(storage)
    assert Repository.open_or_create(storage).spec_version == 1
    assert Repository.fetch_config(storage) is None
    with pytest.raises(InvalidInputError) as error:
        Repository.create(storage)
    assert error_kind(error) == "parent-directory-not-clean"
    with pytest.raises(ValueError, match="Unsupported version 3"):
        Repository.create(in_memory_storage(), spec_version=3)


def test_configuration_is_stored_and_merged(repo: Repository) -> None:
    changed = Repository.open(repo.storage, RepositoryConfig(inline_chunk_threshold_bytes=7))

    changed.save_config()

    again = Repository.open(repo.storage)
    assert again.config.inline_chunk_threshold_bytes == 7
    stored = Repository.fetch_config(repo.storage)
    assert stored is not None
    assert stored.inline_chunk_threshold_bytes == 7


def test_amend_replaces_the_tip(repo_v2: Repository) -> None:
    with pytest.raises(SessionStateError) as error:
        repo_v2.writable_session("main").amend("no", allow_empty=True)
    assert error_kind(error) == "no-amend-for-initial-commit"
    first = write(repo_v2, [1, 2, 3])
    session = repo_v2.writable_session("main")
    zarr.create_array(session.store, name="b", data=np.arange(2))
    amended = session.amend("both", metadata={"m": 1})

    history = list(repo_v2.ancestry(branch="main"))
    assert [info.id for info in history] == [amended, str(INITIAL_SNAPSHOT_ID)]
    assert repo_v2.lookup_snapshot(first).message == "write a"
    assert read(repo_v2).tolist() == [1, 2, 3]
    diff = repo_v2.diff(from_snapshot_id=str(INITIAL_SNAPSHOT_ID), to_branch="main")
    assert diff.new_arrays == {"/a", "/b"}


def test_flush_creates_a_detached_snapshot(repo: Repository) -> None:
    first = write(repo, [1])
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 4

    flushed = session.flush("aside")

    assert repo.lookup_branch("main") == first
    assert repo.lookup_snapshot(flushed).parent_id == first
    assert read(repo, snapshot_id=flushed).tolist() == [4]
    with pytest.raises(ReadOnlyError):
        repo.readonly_session("main").flush("never")


def test_moving_a_group_also_moves_its_children(repo_v2: Repository) -> None:
    write(repo_v2, [1, 2], "g/x")
    write(repo_v2, [3], "h")
    session = repo_v2.rearrange_session("main")
    session.move("/g", "/renamed")
    session.move("/h", "/renamed/h")
    with pytest.raises(AlreadyExistsError):
        session.move("/renamed/x", "/renamed/h")
    with pytest.raises(SessionStateError):
        session.move("/renamed", "/renamed/below")
    moved = session.commit("moves")

    assert read(repo_v2, "renamed/x").tolist() == [1, 2]
    assert read(repo_v2, "renamed/h").tolist() == [3]
    parent = repo_v2.lookup_snapshot(moved).parent_id
    diff = repo_v2.diff(from_snapshot_id=parent, to_snapshot_id=moved)
    assert set(diff.moved_nodes) == {("/g", "/renamed"), ("/g/x", "/renamed/x"), ("/h", "/renamed/h")}


def test_move_and_move_back_can_be_committed(repo_v2: Repository) -> None:
    before = write(repo_v2, [1, 2], "g/x")
    session = repo_v2.rearrange_session("main")
    session.move("/g", "/renamed")
    session.move("/renamed", "/g")

    assert session.has_uncommitted_changes
    assert session.status().is_empty()
    moved = session.commit("there and back")

    assert read(repo_v2, "g/x").tolist() == [1, 2]
    assert repo_v2.diff(from_snapshot_id=before, to_snapshot_id=moved).is_empty()
    session = repo_v2.rearrange_session("main")
    session.move("/g", "/renamed")
    session.move("/renamed", "/g")
    session.discard_changes()
    assert not session.has_uncommitted_changes


def test_moves_and_metadata_need_version_2(storage: Storage) -> None:
    repo = Repository.create(storage, spec_version=1)
    write(repo, [1])

    with pytest.raises(FormatError) as error:
        repo.set_metadata({"a": 1})

    assert error_kind(error) == "unsupported-spec-version"


def test_repository_metadata_and_flags_are_stored(repo_v2: Repository) -> None:
    repo_v2.set_metadata({"a": 1, "b": {"c": [1.5, None]}})
    assert repo_v2.update_metadata({"a": 2}) == {"a": 2, "b": {"c": [1.5, None]}}
    assert Repository.open(repo_v2.storage).metadata == {"a": 2, "b": {"c": [1.5, None]}}

    repo_v2.set_feature_flag("create_tag", False)

    assert [flag.name for flag in repo_v2.disabled_feature_flags()] == ["create_tag"]
    with pytest.raises(SessionStateError) as error:
        repo_v2.create_tag("v1", repo_v2.lookup_branch("main"))
    assert error_kind(error) == "feature-flag-disabled"
    repo_v2.set_feature_flag("create_tag", None)
    repo_v2.create_tag("v1", repo_v2.lookup_branch("main"))
    with pytest.raises(InvalidInputError):
        repo_v2.set_feature_flag("unheard_of", True)


@pytest.mark.parametrize("availability", [RepoAvailability.read_only, RepoAvailability.offline])
def test_read_only_repository_rejects_writes(repo_v2: Repository, availability: RepoAvailability) -> None:
    write(repo_v2, [1])
    session = repo_v2.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 2
    repo_v2.set_status(RepoStatus(availability, limited_availability_reason="maintenance"))

    for attempt in (
        lambda: session.commit("no"),
        lambda: repo_v2.writable_session("main"),
        lambda: repo_v2.create_tag("t", repo_v2.lookup_branch("main")),
    ):
        with pytest.raises(ReadOnlyError, match="maintenance") as error:
            attempt()
        assert error_kind(error) == "read-only-repository"
    assert read(repo_v2).tolist() == [1]


def test_long_ops_log_continues_in_backup_files(storage: Storage) -> None:
    repo = Repository.create(storage, RepositoryConfig(num_updates_per_repo_info_file=3))
    for number in range(8):
        repo.create_tag(f"t{number}", repo.lookup_branch("main"))

    log = list(repo.ops_log())

    created = [UpdateType.TagCreated(f"t{n}") for n in reversed(range(8))]
    assert [entry.kind for entry in log] == [*created, UpdateType.RepoInitialized()]
    assert [entry.backup_path is None for entry in log] == [True] + [False] * 8
    for entry in log[1:]:
        assert storage.exists(f"overwritten/{entry.backup_path}")
    assert len(list(storage.list_prefix("overwritten/"))) == 8


def test_each_commit_is_in_the_ops_log(repo_v2: Repository) -> None:
    first = write(repo_v2, [1])

    newest = next(repo_v2.ops_log())

    assert newest.kind == UpdateType.NewCommit("main", first)
    assert newest.backup_path is None
    assert newest.updated_at >= repo_v2.lookup_snapshot(first).written_at


def test_commit_metadata_overrides_the_default(repo: Repository) -> None:
    repo.set_default_commit_metadata({"author": "me", "n": 1})
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", data=np.arange(2))
    session.commit("first", {"n": 2})

    assert next(repo.ancestry(branch="main")).metadata == {"author": "me", "n": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({}, "Must provide one of"), ({"branch": "main", "tag": "t"}, "Must provide one of")],
)
def test_exactly_one_ref_must_be_passed(repo: Repository, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        repo.readonly_session(**arguments)


def test_invalid_names_are_rejected(repo: Repository) -> None:
    tip = repo.lookup_branch("main")
    with pytest.raises(RefNotFoundError):
        repo.writable_session("nowhere")
    with pytest.raises(SnapshotNotFoundError):
        repo.create_branch("dev", "00000000000000000000")
    with pytest.raises(InvalidInputError) as error:
        repo.create_tag("t", "not an id")
    assert error_kind(error) == "invalid-snapshot-id"
    if repo.spec_version == 1:
        with pytest.raises(InvalidInputError) as error:
            repo.create_branch("a/b", tip)
        assert error_kind(error) == "invalid-ref-name"
    else:
        repo.create_branch("a/b", tip)
        assert repo.list_branches() == {"main", "a/b"}
