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
from icefloe.core.commit.limits import check_changed_chunks, compute_limit, count_commits
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.ingest import rechunk
from icefloe.ingest.plan import design
from tests.support.ingest.files import Travelling, archive, new_repo, read_all, run

FOLDERS = ("chunks", "manifests", "snapshots", "transactions")


@pytest.fixture
def at_most_seven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a commit to seven changed chunks."""
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 7)


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
    ("rank", "limit"),
    [(0, 40_000_000), (3, 40_000_000), (5, 40_000_000), (6, 39_768_214), (8, 34_636_832), (32, 13_591_668)],
)
def test_limit_of_a_commit_follows_from_the_rank(rank: int, limit: int) -> None:
    assert compute_limit(rank) == limit
    check_changed_chunks([(limit, rank)])

    with pytest.raises(SessionStateError, match=rf"{limit + 1:,} chunks, .* at most {limit:,}") as refused:
        check_changed_chunks([(limit + 1, rank)])
    assert refused.value.kind == ErrorKind.COMMIT_NOT_ALLOWED


@pytest.mark.parametrize(
    ("counts", "commits"),
    [
        ([], 1),
        ([(20_000_000, 1), (20_000_000, 2)], 1),
        ([(20_000_000, 1), (20_000_001, 2)], 2),
        ([(100_000_000, 3)], 3),
        ([(1_000_000_000, 3)], 25),
    ],
)
def test_arrays_of_a_commit_share_its_limit(counts: list[tuple[int, int]], commits: int) -> None:
    assert count_commits(counts) == commits


@pytest.mark.usefixtures("at_most_seven")
def test_too_large_commit_is_rejected_before_files_are_written() -> None:
    repo = repository()
    session = written(repo.writable_session("main"), 8)
    before = metadata_files(repo)

    for attempt in (session.commit, session.amend, session.flush):
        with pytest.raises(SessionStateError, match="the commit would change 8 chunks"):
            attempt("too much")

    assert metadata_files(repo) == before
    written(repo.writable_session("main"), 7).commit("just enough")


@pytest.mark.usefixtures("at_most_seven")
def test_repeatedly_written_chunk_counts_once() -> None:
    repo = repository()
    session = repo.writable_session("main")
    node = session._workspace.array("/a")
    refs = session._workspace.refs(node)
    for _ in range(5):
        session._workspace.put_refs(node, refs)

    session.commit("the same six, five times")


@pytest.mark.usefixtures("at_most_seven")
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
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 7)

    with pytest.raises(SessionStateError, match="11 chunks"):
        repo.squash(first, branch="main")
    assert repo.lookup_branch("main") == tip


def test_shifts_and_reindexing_of_too_many_chunks_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository(chunks=10)
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 7)
    session = repo.writable_session("main")

    def same(coords: Any) -> Any:
        raise AssertionError("no chunk is looked at")

    with pytest.raises(SessionStateError, match="10 chunks"):
        session.shift_array("/a", [1])
    with pytest.raises(SessionStateError, match="10 chunks"):
        session.reindex_array("/a", same)
    assert not session.has_uncommitted_changes


def test_shift_of_scattered_chunks_counts_old_and_new_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository(chunks=0)
    with repo.transaction("main", message="scattered") as store:
        zarr.open_array(store, path="a")[:10:2] = 1
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 7)
    session = repo.writable_session("main")

    with pytest.raises(SessionStateError, match="10 chunks"):
        session.shift_array("/a", [1])
    with pytest.raises(SessionStateError, match="10 chunks"):
        session.reindex_array("/a", lambda at: [each + 1 for each in at], lambda at: None)
    assert not session.has_uncommitted_changes


def test_shift_of_too_many_chunks_is_rejected_without_reading_manifests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repo = repository(chunks=10)
    session = repo.writable_session("main")
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 7)
    repo.storage.delete([path for path, _ in repo.storage.list_objects(prefix="manifests")])

    with pytest.raises(SessionStateError, match="10 chunks"):
        session.shift_array("/a", [1])


@pytest.mark.parametrize("dry_run", [True, False])
def test_merges_picks_and_reverts_of_too_many_chunks_are_rejected(
    monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    repo = repository()
    repo.create_branch("side", repo.lookup_branch("main"))
    session = repo.writable_session("side")
    zarr.open_array(session.store, path="a")[10:18] = 1
    picked = session.commit("eight chunks")
    written(repo.writable_session("main"), 2).commit("two chunks")
    before = metadata_files(repo)
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 7)

    with pytest.raises(SessionStateError, match="8 chunks"):
        repo.merge("side", into="main", message="merge", dry_run=dry_run)
    with pytest.raises(SessionStateError, match="8 chunks"):
        repo.cherry_pick(picked, branch="main", dry_run=dry_run)
    with pytest.raises(SessionStateError, match="8 chunks"):
        repo.revert(picked, branch="side", dry_run=dry_run)
    assert metadata_files(repo) == before


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_large_ingest_is_split_into_commits_and_published_once(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = archive(tmp_path, (20, 20, 20) if mode == "native" else [1] * 24)
    whole = new_repo(tmp_path)
    chunks: dict[str, Any] = {"chunks": {"time": 1}} if mode == "native" else {}
    run(whole, files, mode=mode, **chunks)
    repo = new_repo(tmp_path)
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 40)
    monkeypatch.setattr(design, "_OTHER_CHUNKS", 20)

    planned = run(repo, files, mode=mode, dry_run=True, **chunks)
    report = run(repo, files, mode=mode, **chunks)

    assert planned.plan is not None
    assert report.plan is not None
    assert planned.plan.commits > 1
    assert report.plan.commits == len(report.commits) > 1
    assert report.published == repo.lookup_branch("main")
    assert read_all(repo).identical(read_all(whole))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_file_with_too_many_chunks_is_rejected_when_it_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = archive(tmp_path, (4, 12))
    repo = new_repo(tmp_path)
    before = metadata_files(repo)
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 10)

    with pytest.raises(SessionStateError, match="alone has too many chunks"):
        run(repo, files[1:], mode="native", chunks={"time": 1})

    # The inspection of the files is kept for the next run.
    assert metadata_files(repo) == {**before, "chunks": before["chunks"] + 1}


def test_too_large_rechunk_is_rejected_when_it_is_planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repo = new_repo(tmp_path)
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", data=np.arange(20), chunks=(20,), dimension_names=["x"])
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 7)
    tasks = Travelling()

    for dry_run in (True, False):
        with pytest.raises(SessionStateError, match=r"20 chunks.*larger chunks"):
            rechunk(repo, "a", tasks, chunks={"x": 1}, dry_run=dry_run)
    assert tasks.calls == []
