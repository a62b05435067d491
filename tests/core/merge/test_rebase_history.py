"""Rebase over expired snapshots, whose transaction logs contain their changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from icefloe import ConflictDetector, RebaseFailedError, Repository, SessionStateError, in_memory_storage
from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.repo_info import RepoInfo, SnapshotInfos
from icefloe.ops import UpdateType
from tests.support.edits import CreateArray, CreateGroup, Edit, SetAttribute, Write, make


def commit(repo: Repository, *edits: Edit) -> SnapshotId:
    session = repo.writable_session("main")
    make(session, edits)
    return SnapshotId.parse(session.commit("theirs"))


@pytest.fixture
def repo() -> Repository:
    made = Repository.create(in_memory_storage())
    commit(made, CreateGroup("/"), CreateArray("/a", (6,)), CreateArray("/b", (6,)))
    return made


def expire(repo: Repository, retained: SnapshotId, *released: SnapshotId) -> None:
    """Release the ancestors of a snapshot, oldest first, as spec 2.1 records it."""

    def change(info: RepoInfo) -> Any:
        kept = [each for each in info.snapshots if each.id not in released]
        kept = [
            replace(each, parent_id=INITIAL_SNAPSHOT_ID, pruned_ancestor_tx_logs=released)
            if each.id == retained
            else each
            for each in kept
        ]
        return replace(info, snapshots=SnapshotInfos.of(kept)), UpdateType.ExpirationRan()

    refs: Any = repo._refs
    refs.update(change)


def test_expired_base_is_found_by_its_log(repo: Repository) -> None:
    base = commit(repo, Write("/a", (1,)))
    session = repo.writable_session("main")
    make(session, [Write("/a", (1,), b"o")])
    later = commit(repo, Write("/a", (2,)))
    tip = commit(repo, Write("/a", (3,)))
    start = SnapshotId.parse(list(repo.ancestry(branch="main"))[-2].id)
    expire(repo, tip, start, base, later)

    session.rebase(ConflictDetector())

    assert session.snapshot_id == str(tip)


@pytest.mark.parametrize("edit", [Write("/a", (1,)), SetAttribute("/a", 1)])
def test_changes_of_expired_snapshots_conflict(repo: Repository, edit: Edit) -> None:
    base = SnapshotId.parse(repo.lookup_branch("main"))
    session = repo.writable_session("main")
    make(session, [Write("/a", (1,), b"o")])
    expired = commit(repo, edit)
    tip = commit(repo, Write("/b", (1,)))
    expire(repo, tip, base, expired)

    with pytest.raises(RebaseFailedError) as failed:
        session.rebase(ConflictDetector())

    assert failed.value.snapshot == str(tip)
    assert [each.path for each in failed.value.conflicts] == ["/a"]
    assert session.snapshot_id == str(base)


def test_missing_log_stops_the_rebase(repo: Repository) -> None:
    base = SnapshotId.parse(repo.lookup_branch("main"))
    session = repo.writable_session("main")
    make(session, [Write("/a", (1,), b"o")])
    expired = commit(repo, Write("/a", (2,)))
    tip = commit(repo, Write("/b", (1,)))
    expire(repo, tip, base, expired)
    repo.storage.delete([f"transactions/{expired}"])
    other = Repository.open(repo.storage).writable_session("main")
    session._assets = other._assets
    session._workspace.assets = other._workspace.assets  # one that has not seen the log

    with pytest.raises(SessionStateError) as refused:
        session.rebase(ConflictDetector())

    assert refused.value.kind == "rebase-tx-log-pruned"
    assert str(expired) in str(refused.value)
