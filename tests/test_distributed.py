"""Merging forks, and committing many receipts at once."""

from __future__ import annotations

import json
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe import ConflictDetector, ErrorKind, ForkSession, Repository, Session, SessionStateError
from icefloe.distributed import commit_forks, extract_session, merge_sessions, receipt
from icefloe.errors import FormatError
from icefloe.storage import local_filesystem_storage

PARTS = 6


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    made = Repository.create(local_filesystem_storage(str(tmp_path / "repo")))
    session = made.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(600,), chunks=(10,), dtype="f8", fill_value=-1)
    session.commit("array")
    return made


def array(session: Session) -> Any:
    return zarr.open_array(session.store, path="a", mode="r+")


def write_part(order: tuple[ForkSession, int]) -> bytes:
    """Write a part as a worker does, possibly twice, and return a receipt."""
    fork, part = order
    array(fork)[100 * part : 100 * part + 100] = part
    return receipt(fork)


def test_many_processes_make_one_commit(repo: Repository) -> None:
    session = repo.writable_session("main")
    session.store.set_sync("zarr.json", _group({"by": "driver"}))
    fork = session.fork()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        receipts = list(pool.map(write_part, [(fork, part) for part in range(PARTS)]))

    commit_forks(session, receipts, "all parts", {"parts": PARTS})

    (tip, *_) = repo.ancestry(branch="main")
    assert (tip.message, tip.metadata) == ("all parts", {"parts": PARTS})
    found: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert dict(found.attrs) == {"by": "driver"}
    assert np.array_equal(found["a"][...], np.repeat(np.arange(PARTS), 100))
    assert not fork.has_uncommitted_changes


def _group(attributes: dict[str, str]) -> Any:
    document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())


def test_last_receipt_wins_if_two_contain_the_same_chunk(repo: Repository) -> None:
    session = repo.writable_session("main")
    forks = [session.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        array(fork)[10 * number : 600] = number
    array(forks[1])[590:] = -1  # deleted, and written again by the last

    commit_forks(session, [receipt(forks[0]), forks[1], receipt(forks[2])], "three")

    values = array_of(repo)
    assert values[:30].tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert values[590:].tolist() == [2] * 10


def array_of(repo: Repository) -> Any:
    return zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[...]


def test_receipts_contain_no_storage(repo: Repository, tmp_path: Path) -> None:
    fork = repo.writable_session("main").fork()
    array(fork)[:10] = 1

    assert str(tmp_path).encode() not in receipt(fork)
    assert str(tmp_path).encode() in pickle.dumps(fork)


def test_commit_of_forks_is_rebased(repo: Repository) -> None:
    session = repo.writable_session("main")
    forks = [session.fork() for _ in range(2)]
    for number, fork in enumerate(forks):
        array(fork)[10 * number : 10 * number + 10] = number
    other = repo.writable_session("main")
    array(other)[590:] = 7
    other.commit("meanwhile")

    commit_forks(session, map(receipt, forks), "both", rebase_with=ConflictDetector())

    assert array_of(repo)[[0, 10, 599]].tolist() == [0, 1, 7]


def test_failed_merge_of_forks_leaves_the_session_unchanged(repo: Repository) -> None:
    session = repo.writable_session("main")
    old = session.fork()
    array(session)[:10] = 1
    session.commit("meanwhile")
    session = repo.writable_session("main")
    good = session.fork()
    array(good)[:10] = 5

    with pytest.raises(SessionStateError) as caught:
        commit_forks(session, [receipt(good), receipt(old)], "both")

    assert caught.value.kind == ErrorKind.MERGE_FAILED
    assert not session.has_uncommitted_changes
    assert session.branch == "main"


def test_invalid_receipts_are_rejected(repo: Repository) -> None:
    session = repo.writable_session("main")
    with pytest.raises(FormatError, match="truncated"):
        commit_forks(session, [b"short"], "x")
    with pytest.raises(FormatError, match="another release"):
        commit_forks(session, [b"\x00" * 100], "x")
    with pytest.raises(TypeError, match="not a 'Session'"):
        commit_forks(session, [repo.readonly_session("main")], "x")  # type: ignore[list-item]
    with pytest.raises(TypeError, match="not a 'Session'"):
        receipt(session)  # type: ignore[arg-type]


def test_merge_sessions_flattens_lists(repo: Repository) -> None:
    session = repo.writable_session("main")
    forks = [session.fork() for _ in range(4)]
    for number, fork in enumerate(forks):
        array(fork)[10 * number : 10 * number + 10] = number

    nested: Any = [forks[0], [forks[1]]]
    merged = merge_sessions(nested, forks[2], [[forks[3]]])

    assert merged is forks[0]
    session.merge(merged)
    assert array(session)[:40:10].tolist() == [0, 1, 2, 3]


def test_merge_sessions_accepts_only_forks(repo: Repository) -> None:
    session = repo.writable_session("main")
    with pytest.raises(TypeError, match="Received 'Session'"):
        merge_sessions(session.fork(), session)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        merge_sessions()


def test_extract_session_returns_the_session_of_an_array(repo: Repository) -> None:
    session = repo.writable_session("main")

    assert extract_session(array(session)) is session
    with pytest.raises(TypeError, match="MemoryStore"):
        extract_session(zarr.create_array({}, shape=(1,), dtype="i4"))


@pytest.mark.parametrize("way", [receipt, pickle.dumps])
def test_writes_of_a_fork_are_synced_before_its_receipt(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    """The committer cannot sync writes of another process, and refs must not point to lost objects."""
    fork = pickle.loads(pickle.dumps(repo.writable_session("main").fork()))
    array(fork)[:10] = np.random.default_rng(0).random(10)
    zarr.create_array(fork.store, name="b", data=np.arange(10_000), chunks=(10_000,), compressors=None)
    written = {info.key.rpartition("/")[2] for info in repo.storage.list_prefix("chunks")}
    synced: set[str] = set()
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.add(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)

    way(fork)

    assert written
    assert written <= synced
