"""Sessions that are open while garbage is collected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, Session
from icefloe.core.refs_v2 import RefStoreV2
from icefloe.errors import StorageError
from icefloe.testing.flaky import Call, Fault, FlakyStorage
from tests.maintenance.test_expire import commit, now, repository
from tests.maintenance.test_gc import LONG_AGO, names


def writing(repo: Repository, values: list[int]) -> Session:
    """A session that has written two chunks."""
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[: len(values)] = values
    return session


def stored(repo: Repository) -> list[int]:
    """The values on main."""
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    return list(np.asarray(array[:]).tolist())


def land(session: Session, how: str) -> str:
    """Finish a session in one of the ways there are."""
    found: str = getattr(session, how)("late")
    return found


@pytest.mark.parametrize(
    ("how", "version"), [("commit", 2), ("amend", 2), ("flush", 2), ("commit", 1), ("flush", 1)]
)
def test_a_session_whose_chunks_were_collected_is_refused(how: str, version: int) -> None:
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
        land(session, how)  # asking again does not make it true

    assert repo.lookup_branch("main") == before
    assert session.has_uncommitted_changes
    assert repo.verify("objects").ok


@pytest.mark.parametrize("how", ["commit", "flush"])
def test_a_collection_that_leaves_no_trace_is_noticed_in_version_1(how: str) -> None:
    """Official releases collect garbage there and tell nobody."""
    repo = repository(1)
    session = writing(repo, [1, 2])
    lost = sorted(names(repo, "chunks"))[0]
    repo.storage.delete([f"chunks/{lost}"])

    with pytest.raises(StorageError, match=f"chunk {lost} of /a was deleted by a garbage collection"):
        land(session, how)

    assert session.has_uncommitted_changes
    assert Repository.open(repo.storage).verify("objects").ok


def test_a_session_that_lost_nothing_commits_after_a_collection() -> None:
    repo = repository()
    session = writing(repo, [1, 2])
    Repository.open(repo.storage).garbage_collect(LONG_AGO)

    session.commit("late")

    assert stored(repo) == [1, 2, 0, 0, 0, 0, 0, 0]
    assert repo.verify("objects").ok


def test_a_collection_that_is_still_deleting_takes_nothing_of_a_commit(
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


def test_inline_chunks_are_in_no_danger() -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", data=np.arange(1, 9, dtype="i4"), chunks=(1,))
    Repository.open(repo.storage).garbage_collect(now())

    session.commit("late")

    assert stored(repo) == list(range(1, 9))


def test_a_fork_is_guarded_by_its_session() -> None:
    repo = repository()
    session = repo.writable_session("main")
    fork = session.fork()
    zarr.open_array(fork.store, path="a")[0] = 5
    Repository.open(repo.storage).garbage_collect(now())
    session.merge(fork)

    with pytest.raises(StorageError, match="garbage collection"):
        session.commit("late")


def test_manifests_of_an_attempt_before_a_collection_are_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would come out the same, chunks being inline, and are garbage until the branch moves."""
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
    """Does something once, right before a branch is moved; all requests get through."""

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
def test_a_collection_right_before_the_branch_moves_is_seen(version: int) -> None:
    """In version 1 the mark was looked for already; the branch has another version now and is read again."""
    storage = repository(version).storage
    weather = JustBefore(lambda: Repository.open(storage).garbage_collect(now()))
    repo = Repository.open(FlakyStorage(storage, weather))
    session = writing(repo, [1, 2])

    with pytest.raises(StorageError, match="garbage collection"):
        session.commit("too late")

    assert not weather.acts
    assert Repository.open(storage).verify("objects").ok
    assert len(list(Repository.open(storage).ancestry(branch="main"))) == 2
