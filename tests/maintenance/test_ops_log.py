"""Old backups of the repo info file are deleted, and the ops log ends there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import zarr

from icefloe import (
    OpsLogTrim,
    Repository,
    RepositoryConfig,
    RetentionPolicy,
    Storage,
    in_memory_storage,
)
from icefloe.errors import IcechunkError

FOREIGN = "notes.txt"


def tagged(storage: Storage, tags: int = 10) -> Repository:
    """Create a repository whose ops log continues in backups after three entries."""
    repo = Repository.create(storage, RepositoryConfig(num_updates_per_repo_info_file=3))
    for number in range(tags):
        repo.create_tag(f"t{number}", repo.lookup_branch("main"))
    return repo


def backups(repo: Repository) -> set[str]:
    return {path for path, _ in repo.storage.list_objects(prefix="overwritten")}


def test_backups_with_only_old_operations_are_deleted() -> None:
    repo = tagged(in_memory_storage())
    repo.storage.put(f"overwritten/{FOREIGN}", b"mine")
    log = list(repo.ops_log())
    cutoff = log[4].updated_at

    planned = repo.trim_ops_log(cutoff, dry_run=True)
    assert len(backups(repo)) == 11
    trim = repo.trim_ops_log(cutoff)

    left = list(repo.ops_log())
    kept = {entry.backup_path for entry in log[1:5]}
    assert trim == planned
    assert backups(repo) == {FOREIGN, *kept}
    assert trim.backups_deleted == 6
    assert trim.bytes_deleted > 0
    assert left == log[: len(left)]
    assert 5 <= len(left) == trim.entries_left < len(log)


def test_repository_remains_usable_after_deleting_the_whole_ops_log() -> None:
    repo = tagged(in_memory_storage())

    trim = repo.trim_ops_log(datetime.now(UTC) + timedelta(days=1))

    assert backups(repo) == set()
    assert trim.entries_left == len(list(repo.ops_log())) == 3
    repo.create_tag("later", repo.lookup_branch("main"))
    assert len(list(repo.ops_log())) == 3
    assert repo.trim_ops_log(datetime(2000, 1, 1, tzinfo=UTC)).backups_deleted == 0


def test_session_opened_before_the_deletion_still_commits() -> None:
    repo = tagged(in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(4,), chunks=(1,), dtype="i4")[:] = 1
    repo.trim_ops_log(datetime.now(UTC) + timedelta(days=1))

    session.commit("after")

    values = zarr.open_array(repo.readonly_session("main").store, path="a")[:]
    np.testing.assert_array_equal(values, [1, 1, 1, 1])


def test_repositories_of_version_1_have_no_ops_log() -> None:
    repo = Repository.create(in_memory_storage(), spec_version=1)

    with pytest.raises(IcechunkError, match="ops log"):
        repo.trim_ops_log(datetime.now(UTC))


def test_retention_policy_trims_the_ops_log_by_age() -> None:
    repo = tagged(in_memory_storage())

    assert repo.retain(RetentionPolicy(last=3)).ops_log is None
    assert repo.retain(RetentionPolicy(last=3, operations=timedelta(days=1))).ops_log == OpsLogTrim(0, 0, 13)
    trim = repo.retain(RetentionPolicy(last=3, operations=timedelta(0))).ops_log

    assert trim is not None
    assert trim.entries_left == len(list(repo.ops_log())) == 3
    assert backups(repo) == set()
    with pytest.raises(ValueError, match="operations must not be negative"):
        RetentionPolicy(operations=timedelta(-1))
