"""Clones: whole or partial histories, updates, and interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icefloe import Repository
from icefloe.errors import ConflictError, IcechunkError, InvalidInputError, StorageError
from icefloe.storage import in_memory_storage, local_filesystem_storage
from icefloe.testing.storages import PassingStorage
from tests.support.histories import commit, history, lived_in, now, objects, repository, values

VERSIONS = pytest.mark.parametrize("version", [1, 2])


@VERSIONS
def test_clone_has_the_same_history_and_values(version: int) -> None:
    repo, target = lived_in(version), in_memory_storage()

    report = repo.clone_to(target, read_back=True)

    copied = Repository.open(target)
    assert copied.spec_version == repo.spec_version
    assert copied.verify("chunks").ok
    assert {b: copied.lookup_branch(b) for b in copied.list_branches()} == {
        b: repo.lookup_branch(b) for b in repo.list_branches()
    }
    assert copied.lookup_tag("v1") == repo.lookup_tag("v1")
    assert history(copied) == history(repo)
    assert history(copied, "dev") == history(repo, "dev")
    assert values(copied, tag="v1") == values(repo, tag="v1")
    assert values(copied) == values(repo)
    assert copied.config == repo.config
    with pytest.raises(IcechunkError):
        copied.create_tag("gone", copied.lookup_branch("main"))
    assert report.chunks == 4
    assert sorted(report.branches) == ["dev", "main"]
    assert objects(target).items() < objects(repo.storage).items()
    commit(copied, 5)
    assert values(copied)[5] == 5


@VERSIONS
def test_clone_is_updated_with_new_objects(version: int) -> None:
    repo, target = lived_in(version), in_memory_storage()
    repo.clone_to(target)
    commit(repo, 5)
    repo.create_tag("v2", repo.lookup_branch("main"))
    repo.create_branch("other", repo.lookup_branch("dev"))

    report = Repository.open(repo.storage).clone_to(target)

    assert (report.snapshots, report.chunks, report.manifests) == (1, 1, 1)
    assert (report.branches, report.tags) == (("main", "other"), ("v2",))
    copied = Repository.open(target)
    assert values(copied) == values(repo)
    assert values(copied, tag="v2") == values(repo, tag="v2")
    assert copied.lookup_branch("other") == repo.lookup_branch("dev")
    assert copied.verify("objects").ok
    again = repo.clone_to(target)
    assert (again.snapshots, again.bytes_copied, again.branches, again.tags) == (0, 0, (), ())


@VERSIONS
def test_shallow_clone_has_the_newest_snapshots_and_can_be_diffed(version: int) -> None:
    repo, target = repository(version), in_memory_storage()
    for value in range(1, 7):
        commit(repo, value)

    repo.clone_to(target, depth=2)

    copied = Repository.open(target)
    assert history(copied) == ["write 6", "write 5", "Repository initialized"]
    assert values(copied) == values(repo)
    assert copied.verify("chunks").ok
    commit(repo, 7)
    repo.clone_to(target, depth=2)
    assert history(Repository.open(target)) == ["write 7", "write 6", "write 5", "Repository initialized"]
    if version == 2:
        root, tip = [info.id for info in copied.ancestry(branch="main")][-1], copied.lookup_branch("main")
        changed = copied.diff(from_snapshot_id=root, to_snapshot_id=tip).updated_chunks["/a"]
        assert sorted(changed) == [[each] for each in range(1, 8)]


def test_clone_keeps_history_that_expired_at_the_source() -> None:
    repo, target = repository(), in_memory_storage()
    commit(repo, 1)
    commit(repo, 2)
    repo.clone_to(target)
    before = history(Repository.open(target))
    commit(repo, 3)
    repo.expire_snapshots(now())
    commit(repo, 4)

    repo.clone_to(target)

    copied = Repository.open(target)
    assert history(copied) == ["write 4", "write 3", *before]
    assert copied.verify("objects").ok


def test_branches_and_tags_can_be_selected() -> None:
    repo, target = lived_in(), in_memory_storage()

    repo.clone_to(target, branches=["dev"], tags=[])

    copied = Repository.open(target)
    assert copied.list_branches() == {"main", "dev"}
    assert copied.list_tags() == set()
    with pytest.raises(IcechunkError, match="nope"):
        repo.clone_to(in_memory_storage(), branches=["nope"])


def test_dry_run_counts_and_writes_nothing() -> None:
    repo, target = lived_in(), in_memory_storage()

    planned = repo.clone_to(target, dry_run=True)

    assert target.list_objects() == []
    done = repo.clone_to(target)
    assert planned.dry_run
    assert (planned.bytes_copied, planned.chunks) == (done.bytes_copied, done.chunks)


@VERSIONS
def test_commits_of_the_target_are_lost_only_with_overwrite(version: int) -> None:
    repo, target = lived_in(version), in_memory_storage()
    repo.clone_to(target)
    own = commit(Repository.open(target), 6)
    commit(repo, 5)

    with pytest.raises(ConflictError, match=own):
        repo.clone_to(target)

    assert Repository.open(target).lookup_branch("main") == own
    repo.clone_to(target, overwrite=True)
    assert Repository.open(target).lookup_branch("main") == repo.lookup_branch("main")


def test_nonempty_target_is_rejected() -> None:
    target = in_memory_storage()
    target.put("notes.txt", b"mine")

    with pytest.raises(InvalidInputError, match=r"notes\.txt"):
        lived_in().clone_to(target)


def test_target_of_another_version_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="version 1"):
        lived_in(2).clone_to(lived_in(1).storage)


def test_missing_chunk_stops_a_clone_before_anything_is_written() -> None:
    repo, target = repository(), in_memory_storage()
    commit(repo, 1)
    (chunk,) = [key for key in objects(repo.storage) if key.startswith("chunks")]
    repo.storage.delete([chunk])

    with pytest.raises(StorageError, match=chunk):
        repo.clone_to(target)

    assert target.list_objects() == []


def test_copies_are_read_back_and_compared() -> None:
    class Rotten(PassingStorage):
        def get(self, path: str) -> Any:
            data, version = super().get(path)
            return (data[:-1] + b"?" if path.startswith("chunks/") else data), version

    with pytest.raises(StorageError, match="differs from the bytes"):
        lived_in().clone_to(Rotten(in_memory_storage()), read_back=True)


class _StopError(Exception):
    pass


@VERSIONS
def test_clone_interrupted_at_any_write_can_be_resumed(version: int) -> None:
    repo = lived_in(version)
    whole = in_memory_storage()
    repo.clone_to(whole)

    class Breaking(PassingStorage):
        left = 0

        def writing(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise _StopError

    for writes in range(1000):
        target = in_memory_storage()
        breaking = Breaking(target)
        breaking.left = writes
        try:
            repo.clone_to(breaking, max_concurrent_requests=1)
        except _StopError:
            if Repository.exists(target):
                assert Repository.open(target).verify("objects").ok
            report = repo.clone_to(target)
            assert objects(target) == objects(whole)
            assert Repository.open(target).verify("objects").ok
            assert values(Repository.open(target), tag="v1") == values(repo, tag="v1")
            assert report.objects_there + report.chunks + report.manifests + report.snapshots
        else:
            break
    assert writes > 10


def test_repository_is_cloned_from_memory_to_a_folder_and_back(tmp_path: Path) -> None:
    repo, told = lived_in(), list[tuple[str, int, int]]()
    folder = local_filesystem_storage(str(tmp_path / "copy"))

    repo.clone_to(folder, progress=lambda *args: told.append(args))
    Repository.open(folder).clone_to(back := in_memory_storage())

    assert {stage for stage, _, _ in told} == {"chunks", "manifests", "transactions", "snapshots"}
    assert all(done <= total for _, done, total in told)
    assert objects(back) == objects(folder)


def test_concurrent_collection_at_the_target_is_detected() -> None:
    repo, target = lived_in(), in_memory_storage()
    repo.clone_to(target)
    commit(repo, 5)

    class Collecting(PassingStorage):
        armed = True

        def writing(self) -> None:
            if self.armed:
                self.armed = False
                Repository.open(target).garbage_collect(now())

    with pytest.raises(ConflictError, match="garbage"):
        repo.clone_to(Collecting(target))

    repo.clone_to(target)
    assert Repository.open(target).verify("objects").ok


def test_depth_of_zero_is_rejected() -> None:
    with pytest.raises(ValueError, match="depth"):
        lived_in().clone_to(in_memory_storage(), depth=0)
