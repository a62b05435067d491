"""Forks: visible changes, allowed operations, pickling and merging."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import (
    ConflictDetector,
    ErrorKind,
    ForkSession,
    IcechunkError,
    ReadOnlyError,
    Repository,
    Session,
    SessionMode,
    SessionStateError,
    in_memory_storage,
    local_filesystem_storage,
)
from icefloe.distributed import receipt
from icefloe.format.manifest import ArrayManifest
from tests.support import processes


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """Create a repository with an array of twelve numbers in native chunks of two, and a group."""
    made = Repository.create(local_filesystem_storage(str(tmp_path / "repo")), spec_version=request.param)
    config = made.config
    config.inline_chunk_threshold_bytes = 0
    made = made.reopen(config=config)
    session = made.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    group.create_array("line", shape=(12,), chunks=(2,), dtype="i4", fill_value=-1)[:] = np.arange(12)
    group.create_group("group")
    session.commit("numbers")
    return made


def line(session: Session) -> Any:
    return zarr.open_array(session.store, path="line", mode="r+")


def values(session: Session, path: str = "line") -> Any:
    found: Any = np.asarray(zarr.open_array(session.store, path=path, mode="r")[...]).tolist()
    return found


def travelled(fork: ForkSession) -> ForkSession:
    copy: ForkSession = pickle.loads(pickle.dumps(fork))
    return copy


def test_forks_written_elsewhere_become_one_commit(repo: Repository) -> None:
    session = repo.writable_session("main")
    forks = [travelled(session.fork()) for _ in range(3)]
    for number, fork in enumerate(forks):
        line(fork)[4 * number : 4 * number + 4] = 100 + number

    session.merge(*map(travelled, forks))
    session.commit("all")

    assert values(repo.readonly_session("main")) == [100] * 4 + [101] * 4 + [102] * 4
    assert len(list(repo.ancestry(branch="main"))) == 3


def test_fork_includes_uncommitted_changes_of_the_session(repo: Repository) -> None:
    session = repo.writable_session("main")
    line(session)[:2] = 50
    zarr.create_array(session.store, name="new", shape=(2,), chunks=(1,), dtype="i4", fill_value=0)

    fork = travelled(session.fork())
    zarr.open_array(fork.store, path="new", mode="r+")[:] = 7
    session.merge(travelled(fork))

    assert values(fork)[:3] == [50, 50, 2]
    assert values(session, "new") == [7, 7]
    session.commit("all")
    assert values(session, "new") == [7, 7]
    assert values(session)[:3] == [50, 50, 2]


def test_fork_does_not_see_later_changes(repo: Repository) -> None:
    session = repo.writable_session("main")
    fork = session.fork()

    line(session)[:2] = 50

    assert values(fork)[0] == 0
    assert not fork.has_uncommitted_changes


def test_forking_leaves_no_trace_in_the_history(repo: Repository) -> None:
    session = repo.writable_session("main")
    line(session)[:2] = 50
    before = [snapshot.id for snapshot in repo.ancestry(branch="main")]

    fork = session.fork()

    assert fork.snapshot_id not in before
    assert [snapshot.id for snapshot in repo.ancestry(branch="main")] == before
    assert session.has_uncommitted_changes


def test_fork_is_a_writable_session_without_branch(repo: Repository) -> None:
    fork = repo.writable_session("main").fork()

    assert isinstance(fork, ForkSession)
    assert isinstance(fork.store.session, ForkSession)
    assert (fork.read_only, fork.branch, fork.mode) == (False, None, SessionMode.writable)
    assert fork == fork.store.session
    assert fork != travelled(fork)


@pytest.mark.parametrize("verb", ["commit", "amend", "rebase"])
def test_fork_cannot_commit(tmp_path: Path, verb: str) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path / "repo")))
    fork = repo.writable_session("main").fork()
    zarr.create_group(fork.store)

    with pytest.raises(SessionStateError, match="commits are not allowed on a fork") as caught:
        getattr(fork, verb)(ConflictDetector() if verb == "rebase" else "message")

    assert caught.value.kind == ErrorKind.COMMIT_NOT_ALLOWED


def test_fork_cannot_flush(repo: Repository) -> None:
    fork = repo.writable_session("main").fork()

    with pytest.raises(IcechunkError, match="cannot flush a forked session"):
        fork.flush("x")
    with pytest.raises(IcechunkError, match="cannot flush a forked session"):
        asyncio.run(fork.flush_async("x"))


def test_read_only_session_cannot_be_forked(repo: Repository) -> None:
    with pytest.raises(SessionStateError, match="cannot fork a read-only session") as caught:
        repo.readonly_session("main").fork()

    assert caught.value.kind == ErrorKind.CANNOT_FORK_READ_ONLY_SESSION


def test_forks_of_forks_can_be_merged(repo: Repository) -> None:
    session = repo.writable_session("main")
    coordinator = travelled(session.fork())
    line(coordinator)[:2] = 50
    workers = [travelled(coordinator.fork()) for _ in range(2)]
    assert values(workers[0])[0] == 50
    for number, worker in enumerate(workers):
        line(worker)[4 + 2 * number] = 60 + number

    coordinator.merge(*map(travelled, workers))
    session.merge(travelled(coordinator))

    assert values(session)[:7] == [50, 50, 2, 3, 60, 5, 61]


def test_last_merged_fork_wins_for_the_same_chunk(repo: Repository) -> None:
    session = repo.writable_session("main")
    first, second = session.fork(), session.fork()
    line(first)[:4] = 10
    line(second)[:2] = 20
    zarr.open_array(second.store, path="line", mode="r+")[4:6] = -1  # all fill value: the chunk is deleted
    line(first)[4:6] = 11

    session.merge(second, first)
    assert values(session)[:6] == [10, 10, 10, 10, 11, 11]
    session.merge(second)
    assert values(session)[:6] == [20, 20, 10, 10, -1, -1]


def test_merging_a_fork_again_changes_nothing(repo: Repository) -> None:
    session = repo.writable_session("main")
    fork = session.fork()
    line(fork)[:2] = 50
    zarr.create_group(fork.store, path="more")
    line(fork).attrs["unit"] = "m"
    zarr.open_group(fork.store, mode="a").__delitem__("group")
    zarr.create_group(fork.store, path="group", attributes={"made": "anew"})

    session.merge(fork)
    once = session.status()
    session.merge(fork)

    assert session.status() == once


def test_forks_can_be_merged_asynchronously(repo: Repository) -> None:
    session = repo.writable_session("main")
    fork = session.fork()
    line(fork)[:2] = 50

    asyncio.run(session.merge_async(fork))

    assert values(session)[0] == 50


def test_fork_updates_metadata_that_the_session_updated(repo: Repository) -> None:
    """The fork saw the session's change, so there is no conflict, and the session keeps its manifests."""
    session = repo.writable_session("main")
    line(session).attrs["unit"] = "m"
    line(session)[:2] = 50
    fork = travelled(session.fork())
    line(fork).resize((14,))
    line(fork)[12:] = 60

    session.merge(travelled(fork))
    session.commit("all")

    found = repo.readonly_session("main")
    assert values(found) == [50, 50, *range(2, 12), 60, 60]
    assert dict(zarr.open_array(found.store, path="line", mode="r").attrs) == {"unit": "m"}


def test_fork_can_delete_nodes_that_existed_when_it_was_created(repo: Repository) -> None:
    session = repo.writable_session("main")
    line(session)[:2] = 50
    zarr.create_group(session.store, path="young")
    fork = session.fork()
    for name in ("line", "young"):
        del zarr.open_group(fork.store, mode="a")[name]

    session.merge(fork)
    session.commit("all")

    assert sorted(zarr.open_group(session.store, mode="r")) == ["group"]


def set_unit(session: Session, unit: str) -> None:
    line(session).attrs["unit"] = unit


def delete(session: Session, name: str) -> None:
    del zarr.open_group(session.store, mode="a")[name]


def replace_group(session: Session) -> None:
    delete(session, "group")
    zarr.create_group(session.store, path="group")


CONFLICTS: dict[str, tuple[Callable[[Session], Any], Callable[[Session], Any]]] = {
    "two nodes at one path": (
        lambda one: zarr.create_group(one.store, path="same"),
        lambda other: zarr.create_group(other.store, path="same"),
    ),
    "metadata twice": (lambda one: set_unit(one, "m"), lambda other: set_unit(other, "km")),
    "chunks in a deleted array": (
        lambda one: delete(one, "line"),
        lambda other: line(other).__setitem__(0, 5),
    ),
    "a changed array deleted": (
        lambda one: line(one).__setitem__(0, 5),
        lambda other: delete(other, "line"),
    ),
    "an updated array deleted": (lambda one: set_unit(one, "m"), lambda other: delete(other, "line")),
    "a deleted array updated": (lambda one: delete(one, "line"), lambda other: set_unit(other, "m")),
    "a node in a deleted group": (
        lambda one: delete(one, "group"),
        lambda other: zarr.create_group(other.store, path="group/inside"),
    ),
    "a group deleted around a new node": (
        lambda one: zarr.create_group(one.store, path="group/inside"),
        lambda other: delete(other, "group"),
    ),
    "a node in what became an array": (
        lambda one: zarr.create_array(one.store, name="x", shape=(1,), dtype="i4"),
        lambda other: other._workspace.set_metadata("/x/y", b'{"zarr_format": 3, "node_type": "group"}'),
    ),
    "an array around a new node": (
        lambda one: one._workspace.set_metadata("/x/y", b'{"zarr_format": 3, "node_type": "group"}'),
        lambda other: zarr.create_array(other.store, name="x", shape=(1,), dtype="i4"),
    ),
    "replaced and deleted": (
        replace_group,
        lambda other: delete(other, "group"),
    ),
}


@pytest.mark.parametrize("by_session", [True, False], ids=["session", "fork"])
@pytest.mark.parametrize("name", CONFLICTS)
def test_conflicting_fork_is_rejected_as_a_whole(repo: Repository, name: str, by_session: bool) -> None:
    session = repo.writable_session("main")
    one, other = CONFLICTS[name]
    good, first, second = session.fork(), session.fork(), session.fork()
    line(good)[10:] = 7
    one(session if by_session else first)
    other(second)
    before = session.status()

    with pytest.raises(SessionStateError, match="merge failed") as caught:
        session.merge(*([good, second] if by_session else [good, first, second]))

    assert caught.value.kind == ErrorKind.MERGE_FAILED
    assert session.status() == before


def test_identical_changes_in_two_forks_do_not_conflict(repo: Repository) -> None:
    session = repo.writable_session("main")
    forks = session.fork(), session.fork()
    for fork in forks:
        set_unit(fork, "m")
        delete(fork, "group")

    session.merge(*forks)
    session.commit("both")

    assert dict(zarr.open_array(session.store, path="line", mode="r").attrs) == {"unit": "m"}
    assert list(zarr.open_group(session.store, mode="r")) == ["line"]


def test_fork_with_another_base_is_rejected(repo: Repository) -> None:
    old = repo.writable_session("main")
    fork = old.fork()
    line(fork)[:2] = 50
    line(old)[2:4] = 60
    old.commit("moved on")

    session = repo.writable_session("main")
    with pytest.raises(SessionStateError, match="and the session on") as caught:
        session.merge(fork)

    assert caught.value.kind == ErrorKind.MERGE_FAILED
    assert not session.has_uncommitted_changes


def test_fork_of_discarded_changes_is_rejected(repo: Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="new", shape=(2,), chunks=(1,), dtype="i4")
    fork = session.fork()
    zarr.open_array(fork.store, path="new", mode="r+")[:] = 7
    session.discard_changes()

    with pytest.raises(SessionStateError, match="the array was deleted outside it"):
        session.merge(fork)


def test_fork_of_another_repository_is_rejected(tmp_path: Path) -> None:
    """All repositories begin with the same snapshot."""
    one, other = (
        Repository.create(local_filesystem_storage(str(tmp_path / name))).writable_session("main")
        for name in ("one", "other")
    )

    for fork in (other.fork(), travelled(other.fork()), receipt(other.fork())):
        with pytest.raises(SessionStateError, match="does not belong to the repository") as caught:
            one._merge_receipts([fork])
        assert caught.value.kind == ErrorKind.MERGE_FAILED


def test_fork_of_a_copied_repository_is_rejected(repo: Repository, tmp_path: Path) -> None:
    """Its snapshots are the same, but its chunks are not in the storage of the original."""
    shutil.copytree(tmp_path / "repo", tmp_path / "copied")
    copied = Repository.open(local_filesystem_storage(str(tmp_path / "copied"))).writable_session("main")
    fork = copied.fork()
    line(fork)[:] = 7
    session = repo.writable_session("main")

    for each in (fork, receipt(fork)):
        with pytest.raises(SessionStateError, match="does not belong to the repository local"):
            session._merge_receipts([each])
    assert not session.has_uncommitted_changes


def test_relative_path_identifies_the_same_folder(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fork = Repository.open(local_filesystem_storage("repo")).writable_session("main").fork()
    line(fork)[:] = 7
    session = repo.writable_session("main")

    session._merge_receipts([receipt(fork)])

    assert session.has_uncommitted_changes


def test_forks_of_different_memory_storages_are_distinguished() -> None:
    one, other = (Repository.create(in_memory_storage()).writable_session("main") for _ in range(2))
    zarr.create_group(other.store, path="light")

    with pytest.raises(SessionStateError, match="does not belong to the repository"):
        one._merge_receipts([receipt(other.fork())])


def test_sessions_that_are_not_forks_are_rejected(repo: Repository) -> None:
    session = repo.writable_session("main")
    fork = session.fork()
    with pytest.raises(SessionStateError) as caught:
        fork.merge(session)  # type: ignore[arg-type]
    assert caught.value.kind == ErrorKind.MERGE_NOT_ALLOWED
    with pytest.raises(SessionStateError) as caught:
        session.merge(repo.readonly_session("main"))  # type: ignore[arg-type]
    assert caught.value.kind == ErrorKind.MERGE_NOT_ALLOWED
    with pytest.raises(TypeError, match="not 'str'"):
        session.merge("fork")  # type: ignore[arg-type]
    with pytest.raises(ReadOnlyError):
        repo.readonly_session("main").merge(fork)
    session.commit("nothing", allow_empty=True)
    with pytest.raises(ReadOnlyError):
        session.merge(fork)


def test_rearrange_session_can_fork_but_not_merge(tmp_path: Path) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path / "repo")))
    made = repo.writable_session("main")
    zarr.create_group(made.store, path="here")
    made.commit("one")
    session = repo.rearrange_session("main")
    session.move("/here", "/there")

    fork = session.fork()

    assert list(zarr.open_group(fork.store, mode="r")) == ["there"]
    zarr.create_group(fork.store, path="there/more")
    for target, source in ((session, fork), (repo.writable_session("main"), session)):
        with pytest.raises(SessionStateError) as caught:
            target.merge(source)  # type: ignore[arg-type]
        assert caught.value.kind == ErrorKind.REARRANGE_SESSION_ONLY


def test_fork_with_chunks_in_a_pickled_memory_storage_is_rejected() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(2000,), chunks=(1000,), dtype="f8")
    array[:] = 1
    fork = travelled(session.fork())
    zarr.create_group(fork.store, path="light")
    session.merge(fork)
    zarr.open_array(fork.store, path="a", mode="r+")[:] = np.arange(2000)

    for each in (fork, receipt(fork)):
        with pytest.raises(SessionStateError, match="copy of an in-memory storage"):
            session._merge_receipts([each])


def test_unpickled_fork_reads_nothing_until_it_is_used(repo: Repository, tmp_path: Path) -> None:
    session = repo.writable_session("main")
    line(session)[10:] = 50
    fork = session.fork()
    line(fork)[:2] = 60
    (tmp_path / "repo" / "snapshots").rename(tmp_path / "hidden")

    copy = travelled(travelled(fork))
    assert copy.has_uncommitted_changes
    assert copy.snapshot_id == fork.snapshot_id
    assert "has_uncommitted_changes: True" in repr(copy)
    session.merge(copy)

    (tmp_path / "hidden").rename(tmp_path / "repo" / "snapshots")
    assert values(session)[:3] == [60, 60, 2]
    assert values(copy)[:3] == [60, 60, 2]


def test_pickled_fork_is_small(repo: Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="many", shape=(20_000,), chunks=(1,), dtype="i4")
    fork = session.fork()
    empty = len(pickle.dumps(fork))
    rows = np.arange(20_000)
    refs = ArrayManifest.virtual(rows[:, None], ["s3://bucket/file"] * len(rows), rows * 100, rows * 0 + 100)
    fork._workspace.changes.delta(fork._workspace.array("/many")).put_many(refs)

    pickled = pickle.dumps(fork)

    assert len(pickled) - empty < len(rows)
    copy: ForkSession = pickle.loads(pickled)
    found = copy._workspace.refs(copy._workspace.array("/many"))
    assert found == refs


WRITE = """
import pickle, sys, zarr
fork = pickle.load(open(sys.argv[1], "rb"))
zarr.open_array(fork.store, path="line", mode="r+")[:4] = 77
pickle.dump(fork, open(sys.argv[1], "wb"))
"""


def test_fork_works_in_another_process(repo: Repository, tmp_path: Path) -> None:
    session = repo.writable_session("main")
    line(session)[10:] = 50
    file = tmp_path / "fork"
    file.write_bytes(pickle.dumps(session.fork()))

    code, printed = processes.run(WRITE, file)
    assert code == 0, printed
    session.merge(pickle.loads(file.read_bytes()))
    session.commit("all")

    assert values(repo.readonly_session("main")) == [77] * 4 + [4, 5, 6, 7, 8, 9, 50, 50]
