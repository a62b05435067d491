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
from icefloe._internal.ids import SnapshotId
from icefloe.core.commit import limits as log_limits
from icefloe.core.commit.limits import check_changed_chunks, compute_limit, count_commits
from icefloe.core.merge import transplant
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.ingest import make_options, rechunk
from icefloe.ingest.job import ingest
from icefloe.ingest.plan import design
from icefloe.ingest.publish import staging
from tests.support.ingest.files import Travelling, archive, days, listening, new_repo, read, read_all, run

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
def test_oversized_commit_is_rejected_before_files_are_written() -> None:
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
@pytest.mark.parametrize(("mode", "large_bytes"), [("native", 0), ("virtual", 4 << 20)])
def test_large_ingest_is_applied_commit_by_commit_if_the_branch_moved(
    tmp_path: Path, mode: str, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_MAX_COPIED_BYTES", large_bytes)
    files = archive(tmp_path, [1] * 32)
    whole, repo = new_repo(tmp_path), new_repo(tmp_path)
    for each in (whole, repo):
        run(each, files[0], mode=mode)
    run(whole, files, mode=mode)
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 24)
    monkeypatch.setattr(design, "_OTHER_CHUNKS", 12)
    main: list[str] = []

    def told(sentence: str) -> None:
        main.append(repo.lookup_branch("main"))
        if sentence.startswith("commit") and len(set(main)) == 1:
            session = repo.writable_session("main")
            days(0, 1).to_zarr(session.store, group="other", consolidated=False, zarr_format=3)
            session.commit("meanwhile")

    with listening(told):
        report = ingest(repo, files, make_options(mode=mode), Travelling())

    assert len(report.commits) > 1
    assert read_all(repo).identical(read_all(whole))
    assert read(repo, "other").sizes["time"] == 1
    assert repo.list_branches() == {"main"}
    assert len({*main, repo.lookup_branch("main")}) == 3, "the ingest moved the branch once"
    history = list(repo.ancestry(branch="main"))
    assert report.published == history[0].id
    assert [check["passed"] for check in history[0].metadata["icefloe_ingest"]["checks"]] == [True, True]
    for info in history[: len(report.commits)]:
        assert count_chunks(repo, info.id) <= 24


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("large_bytes", [0, 4 << 20])
def test_staged_large_ingest_is_kept_if_the_branch_changed_the_same_nodes(
    tmp_path: Path, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_MAX_COPIED_BYTES", large_bytes)
    files = archive(tmp_path, [1] * 32)
    whole, repo = new_repo(tmp_path), new_repo(tmp_path)
    for each in (whole, repo):
        run(each, files[0])
    run(whole, files)
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 24)
    monkeypatch.setattr(design, "_OTHER_CHUNKS", 12)
    before = repo.lookup_branch("main")

    def told(sentence: str) -> None:
        if sentence.startswith("commit") and repo.lookup_branch("main") == before:
            session = repo.writable_session("main")
            days(0, 1).to_zarr(session.store, group="other", consolidated=False, zarr_format=3)
            session.commit("meanwhile")

    monkeypatch.setattr(transplant, "_is_apart", lambda *_: False)
    for _ in range(2):
        with (
            pytest.raises(SessionStateError, match=r"changed the same nodes .* kept on branch main\.ingest"),
            listening(told),
        ):
            ingest(repo, files, make_options(), Travelling())
        assert repo.list_branches() == {"main", "main.ingest"}
        assert len(list(repo.ancestry(branch="main.ingest"))) > len(list(repo.ancestry(branch="main")))

    repo.reset_branch("main", before)
    report = ingest(repo, files, make_options(), Travelling())

    assert report.commits == (), "the staged files are not ingested again"
    assert read(repo).identical(read(whole))
    assert repo.list_branches() == {"main"}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("large_bytes", [0, 4 << 20])
def test_large_ingest_is_not_published_again_if_the_run_ends_after_publishing(
    tmp_path: Path, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_MAX_COPIED_BYTES", large_bytes)
    files = archive(tmp_path, [1] * 32)
    repo = new_repo(tmp_path)
    run(repo, files[0])
    before = repo.lookup_branch("main")
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 24)
    monkeypatch.setattr(design, "_OTHER_CHUNKS", 12)

    def told(sentence: str) -> None:
        if sentence.startswith("commit") and repo.lookup_branch("main") == before:
            session = repo.writable_session("main")
            days(0, 1).to_zarr(session.store, group="other", consolidated=False, zarr_format=3)
            session.commit("meanwhile")

    def interrupt(_: staging.Staging) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(staging.Staging, "drop", interrupt)
        patched.setattr(staging.Staging, "release", interrupt)
        with listening(told), pytest.raises(KeyboardInterrupt):
            ingest(repo, files, make_options(), Travelling())
    published = repo.lookup_branch("main")
    assert len(repo.list_branches()) > 1

    report = ingest(repo, files, make_options(), Travelling())

    assert report.commits == ()
    assert repo.lookup_branch("main") == published
    assert repo.list_branches() == {"main"}
    assert read(repo).sizes["time"] == 32


def count_chunks(repo: Repository, snapshot_id: str) -> int:
    log = repo._assets.transaction_log(SnapshotId.parse(snapshot_id))
    return int(log.updated_chunks.counts.sum())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_file_with_too_many_chunks_is_rejected_when_it_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = archive(tmp_path, (4, 12))
    repo = new_repo(tmp_path)
    before = metadata_files(repo)
    monkeypatch.setattr(log_limits, "MAX_CHANGED_CHUNKS", 10)

    for chosen in (files, files[1:]):
        with pytest.raises(SessionStateError, match=r"\.nc alone has too many chunks"):
            run(repo, chosen, mode="native", chunks={"time": 1}, dry_run=True)
    with pytest.raises(SessionStateError, match=r"001\.nc alone has too many chunks"):
        run(repo, files[1:], mode="native", chunks={"time": 1})

    # The inspection of the files is kept for the next run.
    assert metadata_files(repo) == {**before, "chunks": before["chunks"] + 1}


def test_oversized_rechunk_is_rejected_when_it_is_planned(
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
