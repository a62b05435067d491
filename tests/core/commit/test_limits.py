"""Commits that change more chunks than a transaction log may contain are rejected before anything is
written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import Repository, Session, in_memory_storage
from icefloe.core.commit import limits as log_limits
from icefloe.core.commit.limits import MAX_LOG_TABLES, check_changed_chunks
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.ingest import rechunk
from tests.support.ingest.files import Travelling, archive, new_repo, run

FOLDERS = ("chunks", "manifests", "snapshots", "transactions")


@pytest.fixture
def at_most_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a commit to seven changed chunks of one array."""
    monkeypatch.setattr(log_limits, "MAX_LOG_TABLES", 9)


def repository(chunks: int = 6) -> Repository:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="start") as store:
        array = zarr.create_array(store, name="a", shape=(20,), chunks=(1,), dtype="i4")
        array[:chunks] = np.arange(1, chunks + 1)
    return repo


def written(session: Session, count: int) -> Session:
    zarr.open_array(session.store, path="a")[:count] = np.arange(100, 100 + count)
    return session


def metadata_files(repo: Repository) -> dict[str, int]:
    return {folder: len(repo.storage.list_objects(prefix=folder)) for folder in FOLDERS}


@pytest.mark.parametrize(
    ("counts", "fits"),
    [
        ([(49_990_000, 3)], True),
        ([(50_010_000, 3)], False),
        ([(25_000_000, 1), (25_000_000, 2)], False),
        ([(44_000_000, 8)], True),
        ([(45_000_000, 8)], False),  # more than 2 GiB
        ([], True),
    ],
)
def test_limits_equal_those_of_the_official_reader(counts: list[tuple[int, int]], fits: bool) -> None:
    if fits:
        check_changed_chunks(counts)
        return
    with pytest.raises(SessionStateError, match=f"with up to {MAX_LOG_TABLES:,}") as refused:
        check_changed_chunks(counts)
    assert refused.value.kind == ErrorKind.COMMIT_NOT_ALLOWED


@pytest.mark.usefixtures("at_most_eight")
def test_too_large_commit_is_rejected_before_files_are_written() -> None:
    repo = repository()
    session = written(repo.writable_session("main"), 8)
    before = metadata_files(repo)

    for attempt in (session.commit, session.amend, session.flush):
        with pytest.raises(SessionStateError, match="the commit would change 8 chunks"):
            attempt("too much")

    assert metadata_files(repo) == before
    written(repo.writable_session("main"), 7).commit("just enough")


@pytest.mark.usefixtures("at_most_eight")
def test_repeatedly_written_chunk_counts_once() -> None:
    repo = repository()
    session = repo.writable_session("main")
    node = session._workspace.array("/a")
    refs = session._workspace.refs(node)
    for _ in range(5):
        session._workspace.put_refs(node, refs)

    session.commit("the same six, five times")


@pytest.mark.usefixtures("at_most_eight")
def test_amend_counts_the_amended_chunks() -> None:
    repo = repository()
    written(repo.writable_session("main"), 4).commit("four")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[10:15] = 1

    with pytest.raises(SessionStateError, match="9 chunks"):
        session.amend("five more")


def test_squash_with_too_many_chunks_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    first = list(repo.ancestry(branch="main"))[-1].id
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[10:15] = 1
    tip = session.commit("five more")
    monkeypatch.setattr(log_limits, "MAX_LOG_TABLES", 9)

    with pytest.raises(SessionStateError, match="11 chunks"):
        repo.squash(first, branch="main")
    assert repo.lookup_branch("main") == tip


def test_shifts_and_reindexing_of_too_many_chunks_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository(chunks=10)
    monkeypatch.setattr(log_limits, "MAX_LOG_TABLES", 9)
    session = repo.writable_session("main")

    def same(coords: Any) -> Any:
        raise AssertionError("no chunk is looked at")

    with pytest.raises(SessionStateError, match="10 chunks"):
        session.shift_array("/a", [1])
    with pytest.raises(SessionStateError, match="10 chunks"):
        session.reindex_array("/a", same)
    assert not session.has_uncommitted_changes


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_too_large_ingest_is_rejected_when_it_is_planned(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = archive(tmp_path, (4, 4, 4))
    repo = new_repo(tmp_path)
    before = metadata_files(repo)
    chunks: dict[str, Any] = {"chunks": {"time": 1}} if mode == "native" else {}
    monkeypatch.setattr(log_limits, "MAX_LOG_TABLES", 10 if mode == "native" else 4)

    with pytest.raises(SessionStateError, match="commit_every"):
        run(repo, files, mode=mode, **chunks)

    # The inspection of the files is kept for the next run.
    assert metadata_files(repo) == {**before, "chunks": before["chunks"] + 1}


def test_too_large_rechunk_is_rejected_when_it_is_planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repo = new_repo(tmp_path)
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", data=np.arange(20), chunks=(20,), dimension_names=["x"])
    monkeypatch.setattr(log_limits, "MAX_LOG_TABLES", 9)
    tasks = Travelling()

    for dry_run in (True, False):
        with pytest.raises(SessionStateError, match=r"20 chunks.*larger chunks"):
            rechunk(repo, "a", tasks, chunks={"x": 1}, dry_run=dry_run)
    assert tasks.calls == []
