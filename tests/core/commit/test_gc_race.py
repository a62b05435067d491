"""Sessions that are open while garbage is collected."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, Session
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.distributed import merge_sessions, receipt
from icefloe.errors import SnapshotNotFoundError, StorageError
from icefloe.session import ForkSession
from icefloe.testing.flaky import Fault, FlakyStorage
from icefloe.testing.storages import Call
from tests.support.histories import LONG_AGO, commit, names, now, repository


def writing(repo: Repository, values: list[int]) -> Session:
    """Open a session and write two chunks."""
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[: len(values)] = values
    return session


def stored(repo: Repository) -> list[int]:
    """Return the values on main."""
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    return list(np.asarray(array[:]).tolist())


def land(session: Session, how: str) -> str:
    """Finish a session by commit, amend or flush."""
    found: str = getattr(session, how)("late")
    return found


@pytest.mark.parametrize(
    ("how", "version"), [("commit", 2), ("amend", 2), ("flush", 2), ("commit", 1), ("flush", 1)]
)
def test_commit_fails_when_chunks_were_collected(how: str, version: int) -> None:
    repo = repository(version)
    commit(repo, 7)
    session = writing(repo, [1, 2])
    assert Repository.open(repo.storage).garbage_collect(now()).chunks_deleted == 2
    before = repo.lookup_branch("main")

    with pytest.raises(StorageError, match="garbage collection") as caught:
        land(session, how)

    assert caught.value.kind == "object-not-found"
    assert "/a" in str(caught.value)
    with pytest.raises(StorageError, match="garbage collection"):
        land(session, how)  # a second attempt fails as well

    assert repo.lookup_branch("main") == before
    assert session.has_uncommitted_changes
    assert repo.verify("objects").ok


@pytest.mark.parametrize("how", ["commit", "flush"])
def test_unrecorded_collection_is_noticed_in_version_1(how: str) -> None:
    """Official releases do not record collections in version 1."""
    repo = repository(1)
    session = writing(repo, [1, 2])
    lost = sorted(names(repo, "chunks"))[0]
    repo.storage.delete([f"chunks/{lost}"])

    with pytest.raises(StorageError, match=f"chunk {lost} of /a was deleted by a garbage collection"):
        land(session, how)

    assert session.has_uncommitted_changes
    assert Repository.open(repo.storage).verify("objects").ok


def test_session_without_lost_chunks_commits_after_a_collection() -> None:
    repo = repository()
    session = writing(repo, [1, 2])
    Repository.open(repo.storage).garbage_collect(LONG_AGO)

    session.commit("late")

    assert stored(repo) == [1, 2, 0, 0, 0, 0, 0, 0]
    assert repo.verify("objects").ok


def test_running_collection_does_not_delete_committed_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repo = repository()
    session = writing(repo, [1, 2])
    storage = type(repo.storage)
    delete = storage.delete

    def delete_late(self: Any, paths: Any) -> Any:
        monkeypatch.undo()
        session.commit("in between")
        return delete(self, paths)

    monkeypatch.setattr(storage, "delete", delete_late)

    Repository.open(repo.storage).garbage_collect(now())

    assert stored(repo) == [1, 2, 0, 0, 0, 0, 0, 0]
    assert repo.verify("objects").ok
    assert len(names(repo, "chunks")) == 2


def session_on_what_expired(repo: Repository) -> Session:
    """Open a session whose base then expires, and make one change."""
    commit(repo, 1)
    session = repo.writable_session("main")
    commit(repo, 2)
    commit(repo, 9)  # overwrites the chunk of the first
    Repository.open(repo.storage).expire_snapshots(now())
    zarr.open_array(session.store, path="a")[7] = 7
    return session


@pytest.mark.parametrize("version", [1, 2])
def test_flush_fails_when_its_base_was_collected(version: int) -> None:
    repo = repository(version)
    session = session_on_what_expired(repo)
    assert Repository.open(repo.storage).garbage_collect(now()).snapshots_deleted
    zarr.open_array(session.store, path="a")[7] = 8  # after the collection

    for _ in range(2):  # a second attempt fails as well
        with pytest.raises((SnapshotNotFoundError, StorageError)):
            session.flush("late")

    assert session.has_uncommitted_changes
    session.discard_changes()
    zarr.open_array(session.store, path="a")[7] = 8
    with pytest.raises(SnapshotNotFoundError, match="has expired and may be deleted"):
        session.flush("late")


@pytest.mark.parametrize("folder", ["snapshots", "manifests"])
def test_flush_fails_after_an_unrecorded_collection_of_its_base(folder: str) -> None:
    """Official releases do not record collections in version 1."""
    repo = repository(1)
    session = session_on_what_expired(repo)
    base = session._workspace.base
    lost = [base.id] if folder == "snapshots" else [info.id for info in base.manifest_files]
    repo.storage.delete([f"{folder}/{id}" for id in lost])

    with pytest.raises(SnapshotNotFoundError, match="has expired and may be deleted"):
        session.flush("late")


def test_flush_on_an_expired_but_stored_base_succeeds_in_version_1() -> None:
    repo = repository(1)
    session = session_on_what_expired(repo)

    flushed = session.flush("late")

    array = zarr.open_array(repo.readonly_session(snapshot_id=flushed).store, path="a", mode="r")
    assert np.asarray(array[:]).tolist() == [0, 1, 0, 0, 0, 0, 0, 7]


def test_flush_fails_while_its_base_is_being_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository(1)
    session = session_on_what_expired(repo)
    storage = type(repo.storage)
    delete = storage.delete
    refused: list[SnapshotNotFoundError] = []

    def delete_late(self: Any, paths: Any) -> Any:
        monkeypatch.undo()
        with pytest.raises(SnapshotNotFoundError) as caught:
            session.flush("in between")
        refused.append(caught.value)
        return delete(self, paths)

    monkeypatch.setattr(storage, "delete", delete_late)

    Repository.open(repo.storage).garbage_collect(now())

    assert len(refused) == 1
    assert Repository.open(repo.storage).verify("objects").ok


def test_inline_chunks_survive_a_collection() -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", data=np.arange(1, 9, dtype="i4"), chunks=(1,))
    Repository.open(repo.storage).garbage_collect(now())

    session.commit("late")

    assert stored(repo) == list(range(1, 9))


def test_session_detects_collections_for_its_forks() -> None:
    repo = repository()
    session = repo.writable_session("main")
    fork = session.fork()
    zarr.open_array(fork.store, path="a")[0] = 5
    Repository.open(repo.storage).garbage_collect(now())
    session.merge(fork)

    with pytest.raises(StorageError, match="garbage collection"):
        session.commit("late")


def test_manifests_of_an_earlier_attempt_are_rewritten_after_a_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new manifests would be identical, because chunks are inline, but the old ones may be collected."""
    repo = Repository.open(repository().storage, icefloe.RepositoryConfig(inline_chunk_threshold_bytes=512))
    session = writing(repo, [1, 2])

    def lost(*_: object) -> bool:
        raise StorageError("no answer", kind="object-store")

    with monkeypatch.context() as patch:
        patch.setattr(RefStoreV2, "_replace", lost)
        with pytest.raises(StorageError, match="no answer"):
            session.commit("in vain")
    assert Repository.open(repo.storage).garbage_collect(now()).manifests_deleted == 1

    session.commit("again")

    assert Repository.open(repo.storage).verify("objects").ok
    assert stored(repo)[:2] == [1, 2]


class JustBefore:
    """A hook that acts once, right before a branch moves. All requests succeed."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.acts = [act]

    def sending(self, call: Call) -> Fault:
        if call.writes and (call.path == "repo" or call.path.startswith("refs/")) and self.acts:
            self.acts.pop()()
        return Fault.NONE

    def answered(self, call: Call, fault: Fault) -> None:
        pass

    def repeat_later(self, call: Call, request: Callable[[], object]) -> None:
        raise AssertionError("never asked for")


@pytest.mark.parametrize("version", [1, 2])
def test_collection_right_before_the_branch_moves_is_detected(version: int) -> None:
    """In version 1 the mark was already checked, but the branch file has a new version and is read again."""
    storage = repository(version).storage
    weather = JustBefore(lambda: Repository.open(storage).garbage_collect(now()))
    repo = Repository.open(FlakyStorage(storage, weather))
    session = writing(repo, [1, 2])

    with pytest.raises(StorageError, match="garbage collection"):
        session.commit("too late")

    assert not weather.acts
    assert Repository.open(storage).verify("objects").ok
    assert len(list(Repository.open(storage).ancestry(branch="main"))) == 2


def written_elsewhere(session: Session, how: str) -> ForkSession | bytes:
    """Write a chunk in a fork, and return the fork or its receipt."""
    fork = session.fork()
    if how == "in a pickled fork":
        fork = pickle.loads(pickle.dumps(fork))
    if how == "in a fork of a fork":
        fork = fork.fork()
    zarr.open_array(fork.store, path="a")[0] = 5
    if how == "merged forks":
        other = session.fork()
        zarr.open_array(other.store, path="a")[1] = 6
        return merge_sessions([other, fork])
    if how == "a receipt":
        return receipt(fork)
    if how == "manifests and a receipt":
        fork.write_manifests("/a")
        return receipt(fork)
    travelled: ForkSession = pickle.loads(pickle.dumps(fork))
    return travelled


ELSEWHERE = [
    "in a pickled fork",
    "pickled thereafter",
    "in a fork of a fork",
    "merged forks",
    "a receipt",
    "manifests and a receipt",
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("how", ELSEWHERE)
def test_session_opened_after_a_collection_rejects_lost_chunks_of_forks(
    how: str, version: int, tmp_path: Path
) -> None:
    repo = repository(version, icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    arrived = written_elsewhere(repo.writable_session("main"), how)
    assert Repository.open(repo.storage).garbage_collect(now()).chunks_deleted
    session = Repository.open(repo.storage).writable_session("main")
    session._merge_receipts([arrived])

    with pytest.raises(StorageError, match="garbage collection"):
        session.commit("late")

    assert repo.verify("objects").ok
    assert stored(repo) == [0] * 8


@pytest.mark.parametrize("how", ELSEWHERE)
def test_session_opened_after_a_collection_copies_remaining_chunks_of_forks(how: str, tmp_path: Path) -> None:
    repo = repository(2, icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    arrived = written_elsewhere(repo.writable_session("main"), how)
    before = names(repo, "chunks")
    Repository.open(repo.storage).garbage_collect(LONG_AGO)
    session = Repository.open(repo.storage).writable_session("main")
    session._merge_receipts([arrived])

    session.commit("late")

    assert stored(repo)[0] == 5
    assert repo.verify("objects").ok
    kept = {key for key in names(repo, "chunks") if key in before}
    Repository.open(repo.storage).garbage_collect(now())
    assert not kept & names(repo, "chunks")  # the commit refers to copies


def test_nested_fork_with_collected_chunks_is_still_rejected_after_merging(tmp_path: Path) -> None:
    repo = repository(2, icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    early = written_elsewhere(repo.writable_session("main"), "a receipt")
    assert Repository.open(repo.storage).garbage_collect(now()).chunks_deleted
    session = Repository.open(repo.storage).writable_session("main")
    fork = session.fork()
    fork._merge_receipts([early])
    session.merge(pickle.loads(pickle.dumps(fork)))

    with pytest.raises(StorageError, match="garbage collection"):
        session.commit("late")


def test_lost_ops_log_is_treated_as_a_collection() -> None:
    """Deleting old backups also deletes parts of the ops log."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0, num_updates_per_repo_info_file=2)
    repo = Repository.open(repository().storage, config)
    session = writing(repo, [1, 2])
    before = names(repo, "chunks")
    others = Repository.open(repo.storage, config)
    for number in range(5):
        others.create_tag(f"v{number}", others.lookup_branch("main"))
    repo.storage.delete([f"overwritten/{name}" for name in names(repo, "overwritten")])

    session.commit("late")

    assert stored(repo)[:2] == [1, 2]
    assert len(names(repo, "chunks") - before) == 2


def test_unrecorded_collection_of_fork_manifests_is_noticed(tmp_path: Path) -> None:
    """Official releases do not record collections in version 1, and the manifest is cached."""
    repo = repository(1, icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    session = repo.writable_session("main")
    before = names(repo, "manifests")
    arrived = written_elsewhere(session, "manifests and a receipt")
    session._merge_receipts([arrived])
    repo.storage.delete([f"manifests/{name}" for name in names(repo, "manifests") - before])

    with pytest.raises(StorageError, match=r"manifest .* of /a was deleted by a garbage collection"):
        session.commit("late")
