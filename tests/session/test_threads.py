"""Threads that change a session while another one commits it: no change that returned is lost."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe import ConflictDetector, ReadOnlyError, Repository, Session
from icefloe.core.assets import AssetStore
from icefloe.errors import ConflictError, IcechunkError, SessionStateError

CHUNKS = 200


def repository(inline_bytes: int = 0) -> Repository:
    """Return a repository with the array `a` of small chunks and the group `g`, in two commits."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=inline_bytes)
    repo = Repository.create(icefloe.in_memory_storage(), config)
    session = repo.writable_session("main")
    options: Any = {"chunks": (1,), "dtype": "i4", "fill_value": 0, "compressors": None}
    zarr.create_array(session.store, name="a", shape=(CHUNKS,), **options)
    zarr.create_group(session.store, path="g")
    session.commit("array")
    session = repo.writable_session("main")
    array(session)[0] = -1
    session.commit("first chunk")
    return repo


def array(session: Session) -> Any:
    return zarr.open_array(session.store, path="a")


def values(repo: Repository, snapshot_id: str) -> Any:
    session = repo.readonly_session(snapshot_id=snapshot_id)
    return np.asarray(zarr.open_array(session.store, path="a", mode="r")[:])


class Rival:
    """A change that another thread makes while a commit writes its snapshot file."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        change: Callable[[], object],
        first: Callable[[], object] = lambda: None,
    ) -> None:
        self.error: Exception | None = None
        self._change = change
        self._thread = threading.Thread(target=self._run)
        self._begun = threading.Event()
        write = AssetStore.write_snapshot

        def write_snapshot(assets: AssetStore, snapshot: Any) -> Any:
            monkeypatch.undo()
            first()
            self._thread.start()
            self._begun.wait()
            return write(assets, snapshot)

        monkeypatch.setattr(AssetStore, "write_snapshot", write_snapshot)

    def _run(self) -> None:
        self._begun.set()
        try:
            self._change()
        except (IcechunkError, ValueError) as error:  # Zarr raises the latter for a store that is read-only
            self.error = error

    def join(self) -> Exception | None:
        """Wait for the thread, and return the error that it raised."""
        self._thread.join()
        return self.error


def commit_with_solver(session: Session) -> str:
    return session.commit("with a solver", rebase_with=ConflictDetector())


LANDINGS: dict[str, Callable[[Session], str]] = {
    "commit": lambda session: session.commit("landed"),
    "commit with a solver": commit_with_solver,
    "amend": lambda session: session.amend("landed"),
    "flush": lambda session: session.flush("landed"),
}


@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("inline_bytes", [0, 512])
def test_completed_concurrent_write_is_in_the_commit(landing: str, inline_bytes: int) -> None:
    repo = repository(inline_bytes)
    session = repo.writable_session("main")
    target = array(session)
    target[1] = 1
    done: list[int] = []
    late: list[ReadOnlyError] = []
    half = threading.Event()

    def write(numbers: range) -> None:
        for number in numbers:
            try:
                target[number] = number
            except ReadOnlyError as error:
                late.append(error)
            else:
                done.append(number)
            if number >= CHUNKS // 4:
                half.set()

    threads = [threading.Thread(target=write, args=(range(2 + k, CHUNKS, 4),)) for k in range(4)]
    for thread in threads:
        thread.start()
    half.wait()
    snapshot = LANDINGS[landing](session)
    for thread in threads:
        thread.join()

    stored = values(repo, snapshot)
    assert sorted(done) == np.flatnonzero(stored > 1).tolist()
    assert len(done) + len(late) == CHUNKS - 2
    assert all(isinstance(error, ValueError) for error in late)  # Zarr expects one


def buffer(text: bytes) -> Any:
    return default_buffer_prototype().buffer.from_bytes(text)


CHANGES: dict[str, Callable[[Session], object]] = {
    "a chunk": lambda session: array(session).__setitem__(5, 5),
    "an array": lambda session: zarr.create_array(session.store, name="late", shape=(1,), dtype="i4"),
    "attributes": lambda session: zarr.open_group(session.store, path="g").attrs.update(late=1),
    "no chunk": lambda session: session.store.delete_sync("a/c/0"),
    "no node": lambda session: session.store.delete_sync("g/zarr.json"),
    "a folder": lambda session: asyncio.run(session.store.delete_dir("g")),
    "everything": lambda session: session.store.sync_clear(),
    "a virtual chunk": lambda session: session.store.set_virtual_ref(
        "a/c/7", "file:///tmp/f", offset=0, length=4, validate_container=False
    ),
    "a shift": lambda session: session.shift_array("/a", (1,)),
    "a reindexing": lambda session: session.reindex_array(
        "/a", lambda coords: [CHUNKS - 1 - next(iter(coords))]
    ),
    "nothing any more": lambda session: session.discard_changes(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_concurrent_change_is_either_committed_or_raises_an_error(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository()
    session = repo.writable_session("main")
    array(session)[1] = 1
    rival = Rival(monkeypatch, lambda: CHANGES[change](session))

    snapshot = session.commit("landed")

    assert isinstance(rival.join(), ReadOnlyError | ValueError)
    assert values(repo, snapshot)[:2].tolist() == [-1, 1]
    assert not session.has_uncommitted_changes


def test_merge_during_a_commit_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    session = repo.writable_session("main")
    fork = session.fork()
    array(fork)[3] = 3
    array(session)[1] = 1
    rival = Rival(monkeypatch, lambda: session.merge(fork))

    session.commit("landed")

    assert isinstance(rival.join(), ReadOnlyError)


def test_move_during_a_commit_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    session = repo.rearrange_session("main")
    session.move("/a", "/g/a")
    rival = Rival(monkeypatch, lambda: session.move("/g/a", "/g/b"))

    snapshot = session.commit("landed")

    assert isinstance(rival.join(), ReadOnlyError)
    moved = zarr.open_group(repo.readonly_session(snapshot_id=snapshot).store, path="g", mode="r")
    assert list(moved) == ["a"]


def test_session_committed_by_two_threads_makes_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    session = repo.writable_session("main")
    array(session)[1] = 1
    rival = Rival(monkeypatch, lambda: session.commit("twice"))

    session.commit("once")

    assert isinstance(rival.join(), SessionStateError)
    assert next(info.message for info in repo.ancestry(branch="main")) == "once"


def test_write_during_a_failed_commit_is_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    session = repo.writable_session("main")
    array(session)[1] = 1
    other = repo.writable_session("main")
    array(other)[2] = 2

    def write() -> None:
        array(session)[3] = 3

    rival = Rival(monkeypatch, write, first=lambda: other.commit("faster"))
    with pytest.raises(ConflictError):
        session.commit("too late")
    assert rival.join() is None

    snapshot = session.commit("again", rebase_with=ConflictDetector())

    assert values(repo, snapshot)[:4].tolist() == [-1, 1, 2, 3]


def test_concurrent_write_is_in_the_fork_or_in_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    session = repo.writable_session("main")
    array(session)[1] = 1

    def write() -> None:
        array(session)[3] = 3

    rival = Rival(monkeypatch, write)
    fork = session.fork()
    array(fork)[4] = 4
    assert rival.join() is None
    session.merge(fork)

    snapshot = session.commit("landed")

    assert values(repo, snapshot)[:5].tolist() == [-1, 1, 0, 3, 4]


def test_reads_do_not_wait_for_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    session = repo.writable_session("main")
    array(session)[1] = 1
    seen: list[int] = []
    write = AssetStore.write_snapshot

    def write_snapshot(assets: AssetStore, snapshot: Any) -> Any:
        reader = threading.Thread(target=lambda: seen.extend(array(session)[:2].tolist()))
        reader.start()
        reader.join()
        return write(assets, snapshot)

    monkeypatch.setattr(AssetStore, "write_snapshot", write_snapshot)

    session.commit("landed")

    assert seen == [-1, 1]


def test_commit_that_begins_during_a_write_can_use_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    session = repo.writable_session("main")
    array(session)[1] = 1
    write_chunk, write_snapshot = AssetStore.write_chunk, AssetStore.write_snapshot
    workspace = session.workspace
    found: list[str] = []
    committer = threading.Thread(target=lambda: found.append(session.commit("landed")), daemon=True)

    def write_while_a_commit_begins(assets: AssetStore, data: Any) -> Any:
        monkeypatch.setattr(AssetStore, "write_chunk", write_chunk)
        committer.start()
        deadline = time.monotonic() + 0.2  # a commit that waits for this write does not begin
        while not workspace.is_committing and time.monotonic() < deadline:
            time.sleep(0.001)
        return write_chunk(assets, data)

    def write_snapshot_after_a_read(assets: AssetStore, snapshot: Any) -> Any:
        assert array(session)[:1].tolist() == [-1]  # on zarr's event loop
        return write_snapshot(assets, snapshot)

    monkeypatch.setattr(AssetStore, "write_chunk", write_while_a_commit_begins)
    monkeypatch.setattr(AssetStore, "write_snapshot", write_snapshot_after_a_read)
    writer = threading.Thread(target=lambda: array(session).__setitem__(5, 9), daemon=True)
    writer.start()
    for thread in (writer, committer):
        thread.join(30)
        assert not thread.is_alive()

    assert values(repo, found[0])[[1, 5]].tolist() == [1, 9]


def test_session_is_readable_while_appends_are_rebased() -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    labels: Any = {"name": "time", "shape": (1,), "dtype": "i4", "dimension_names": ("time",)}
    zarr.create_array(session.store, **labels)
    session.commit("no labels but 0")
    session, other = repo.writable_session("main"), repo.writable_session("main")
    for each, label in ((session, 1), (other, 2)):
        zarr.open_array(each.store, path="time").append(np.array([label], "i4"))
    other.commit("label 2")
    seen: list[int] = []

    def read(session: Session) -> Any:
        return np.asarray(zarr.open_array(session.store, path="time", mode="r")[:]).tolist()

    class ReadingSolver(icefloe.AppendSolver):
        def decode(self, document: Any, shape: Any, data: bytes | None) -> Any:
            reader = threading.Thread(target=lambda: seen.extend(read(session)), daemon=True)
            reader.start()
            reader.join(30)
            assert not reader.is_alive()
            return super().decode(document, shape, data)

    session.rebase(ReadingSolver("time"))

    assert set(seen) == {0, 1}
    assert read(session) == [0, 2, 1]


def test_event_loop_is_not_blocked_by_writes_and_commits() -> None:
    repo = repository()
    session = repo.writable_session("main")
    array(session)[1] = 1
    data = np.array(9, "<i4").tobytes()

    async def run() -> list[Any]:
        store = session.store
        writes = [store.set(f"a/c/{number}", buffer(data)) for number in range(2, 60)]
        found: list[Any] = await asyncio.gather(
            session.commit_async("landed"), *writes, return_exceptions=True
        )
        return found

    snapshot, *written = asyncio.run(run())

    stored = values(repo, snapshot)
    assert all(error is None or isinstance(error, ReadOnlyError) for error in written)
    assert [error is None for error in written] == (stored[2:60] != 0).tolist()


def test_forked_child_does_not_wait_for_a_thread_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    session = repository().writable_session("main")
    committing, forked = threading.Event(), threading.Event()

    def commit() -> None:
        with session._workspace.committing():
            committing.set()
            forked.wait()

    parent = threading.Thread(target=commit)
    parent.start()
    committing.wait()
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in the child, which has no such thread

    session.store.set_sync("a/c/3", buffer(np.array(3, "<i4").tobytes()))

    forked.set()
    parent.join()
    assert array(session)[3] == 3
