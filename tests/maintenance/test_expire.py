"""Expiration: which snapshots are removed, and the parents of the others."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import ReadOnlyError
from tests.support.histories import commit, history, now, repository


@pytest.mark.parametrize("version", [1, 2])
def test_expired_snapshots_are_removed_and_others_get_the_root_as_parent(version: int) -> None:
    repo = repository(version)
    old = [commit(repo, 1), commit(repo, 2)]
    moment = now()
    commit(repo, 3)
    commit(repo, 4)

    released = repo.expire_snapshots(moment)

    assert released >= set(old)
    assert history(repo) == ["write 4", "write 3", "Repository initialized"]


def test_kept_snapshot_inherits_logs_of_expired_ones() -> None:
    repo = repository()
    commit(repo, 1)
    commit(repo, 2)
    moment = now()
    tip = commit(repo, 3)

    repo.expire_snapshots(moment)

    root = [info.id for info in repo.ancestry(branch="main")][-1]
    changed = repo.diff(from_snapshot_id=root, to_snapshot_id=tip)
    assert sorted(changed.updated_chunks["/a"]) == [[1], [2], [3]]
    assert changed.new_arrays == {"/a"}


def test_expiring_twice_keeps_the_logs_in_order() -> None:
    repo = repository()
    commit(repo, 1)
    first = now()
    commit(repo, 2)
    second = now()
    tip = commit(repo, 3)

    repo.expire_snapshots(first)
    repo.expire_snapshots(second)

    root = [info.id for info in repo.ancestry(branch="main")][-1]
    assert history(repo) == ["write 3", "Repository initialized"]
    assert sorted(repo.diff(from_snapshot_id=root, to_snapshot_id=tip).updated_chunks["/a"]) == [
        [1],
        [2],
        [3],
    ]


def test_old_branch_tips_are_kept_by_an_expiration() -> None:
    repo = repository()
    tagged, branched = commit(repo, 1), commit(repo, 2)
    repo.create_tag("v1", tagged)
    repo.create_branch("dev", branched)
    commit(repo, 3)
    tip = commit(repo, 4)

    repo.expire_snapshots(now())

    assert repo.lookup_tag("v1") == tagged
    assert repo.lookup_branch("dev") == branched
    assert repo.lookup_branch("main") == tip
    assert history(repo) == ["write 4", "Repository initialized"]


def test_expired_branches_and_tags_are_deleted_on_request() -> None:
    repo = repository()
    tip = commit(repo, 1)
    repo.create_tag("v1", tip)
    repo.create_branch("dev", tip)
    commit(repo, 2)
    moment = now()
    repo.create_branch("young", commit(repo, 3))

    released = repo.expire_snapshots(moment, delete_expired_branches=True, delete_expired_tags=True)

    assert repo.list_branches() == {"main", "young"}
    assert repo.list_tags() == set()
    assert tip in released
    with pytest.raises(icefloe.IcechunkError, match="v1"):
        repo.create_tag("v1", repo.lookup_branch("main"))


def test_main_is_never_deleted() -> None:
    repo = repository()
    tip = commit(repo, 1)

    repo.expire_snapshots(now(), delete_expired_branches=True)

    assert repo.lookup_branch("main") == tip


def test_expiration_is_logged_even_if_nothing_expires() -> None:
    repo = repository()

    assert repo.expire_snapshots(datetime(2001, 1, 1, tzinfo=UTC)) == set()

    assert type(next(iter(repo.ops_log())).kind).__name__ == "ExpirationRan"


def test_values_are_unchanged_after_expiration_and_collection() -> None:
    repo = repository()
    for value in range(1, 6):
        commit(repo, value)

    repo.expire_snapshots(now())
    repo.garbage_collect(now())

    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert np.asarray(array[:]).tolist() == [0, 1, 2, 3, 4, 5, 0, 0]


def test_open_version_1_repository_sees_the_expiration_of_another_process() -> None:
    """An expiration rewrites snapshot files in place, which are in the cache of the open repository."""
    open_before = repository(1)
    for value in (1, 2, 3):
        commit(open_before, value)
    other = icefloe.Repository.open(open_before.storage)
    other.expire_snapshots(now())
    other.garbage_collect(now())

    assert open_before.verify("objects").ok
    assert history(open_before) == ["write 3", "Repository initialized"]


@pytest.mark.parametrize("operation", ["gc", "expire", "statistics", "checksums"])
def test_maintenance_of_an_open_version_1_repository_reads_history_again(operation: str) -> None:
    repo = repository(1)
    for value in (1, 2, 3):
        commit(repo, value)
    other = icefloe.Repository.open(repo.storage)
    other.expire_snapshots(now())
    other.garbage_collect(now())

    if operation == "gc":
        assert repo.garbage_collect(now()).snapshots_deleted == 0
    elif operation == "expire":
        assert repo.expire_snapshots(now()) == set()
    elif operation == "statistics":
        assert repo.chunk_storage_stats() == other.chunk_storage_stats()
    else:
        assert repo.record_checksums() > 0
    assert icefloe.Repository.open(repo.storage).verify("objects").ok


def test_read_only_repository_does_not_expire() -> None:
    repo = repository()
    repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only))

    with pytest.raises(ReadOnlyError, match="read-only"):
        repo.expire_snapshots(now())


def test_time_without_a_zone_is_rejected() -> None:
    with pytest.raises(TypeError, match="tzinfo"):
        repository().expire_snapshots(datetime(2020, 1, 1))
