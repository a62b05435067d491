"""Recorded checksums and incremental verification: every flipped bit is found, and nothing is read twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import Repository
from icefloe._internal.ids import SnapshotId
from icefloe.errors import ReadOnlyError
from icefloe.format.files import read_snapshot, write_snapshot
from icefloe.format.spec import V1, V2
from icefloe.maintenance.integrity import catalogue
from icefloe.storage.base import Storage
from icefloe.testing.storages import PassingStorage
from tests.support.histories import commit, copy_of, now, repository

VERSIONS = pytest.mark.parametrize("version", [1, 2])


def four_commits(version: int = 2) -> Repository:
    """Create a repository with four commits on two branches."""
    repo = repository(version)
    for value in (1, 2, 3):
        commit(repo, value)
    repo.create_branch("dev", repo.lookup_branch("main"))
    commit(repo, 4, "dev")
    return repo


def immutable(storage: Storage) -> Iterator[str]:
    """Return the immutable objects."""
    for key, _ in storage.list_objects():
        if key.split("/")[0] in catalogue.FOLDERS:
            yield key


class Counting(PassingStorage):
    """A storage that counts reads by folder."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.read: list[str] = []

    def get(self, path: str) -> Any:
        self.read.append(path)
        return super().get(path)

    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        self.read.append(path)
        return super().get_range(path, start, stop)

    def count(self, folder: str) -> int:
        return len({path for path in self.read if path.startswith(f"{folder}/")})


@VERSIONS
def test_flipped_bit_in_any_object_is_found(version: int) -> None:
    repo = four_commits(version)
    recorded = repo.record_checksums()
    keys = list(immutable(repo.storage))
    assert recorded == len(keys)
    assert repo.verify("graph", checksums=True).ok

    for number, key in enumerate(keys):
        storage = copy_of(repo.storage)
        data = bytearray(storage.get(key)[0])
        data[number * 7919 % len(data)] ^= 1 << number % 8
        storage.put(key, bytes(data))

        report = Repository.open(storage).verify("graph", checksums=True)

        assert key in {found.object for found in report.findings}, key


@VERSIONS
def test_any_missing_object_is_found(version: int) -> None:
    repo = four_commits(version)
    for key in immutable(repo.storage):
        optional = key.startswith("transactions/") and (version == 1 or repo_root(repo) in key)
        storage = copy_of(repo.storage)
        storage.delete([key])

        report = Repository.open(storage).verify("objects")

        assert optional or key in {found.object for found in report.findings}, key


def repo_root(repo: Repository) -> str:
    """Return the first snapshot, which needs no transaction log."""
    return [info.id for info in repo.ancestry(branch="main")][-1]


def test_foreign_files_next_to_checksums_are_ignored() -> None:
    repo = repository()
    repo.storage.put(f"{catalogue.FOLDER}/zz notes.txt", b"of a user")

    for value in range(1, 20):
        commit(repo, value)
        assert repo.record_checksums() > 0

    assert repo.verify("graph", checksums=True).ok
    assert repo.storage.exists(f"{catalogue.FOLDER}/zz notes.txt")


def test_checksums_are_recorded_once_and_files_are_merged() -> None:
    repo = repository()

    for value in range(1, 30):
        commit(repo, value)
        assert repo.record_checksums() > 0

    assert repo.record_checksums() == 0
    assert 1 <= len(repo.storage.list_objects(prefix=catalogue.FOLDER)) <= 17
    report = repo.verify("graph", checksums=True)
    assert report.ok
    assert report.checksums == len(set(immutable(repo.storage))) + 1  # and the repo info file


@VERSIONS
def test_rewritten_parents_are_not_reported_as_damage(version: int) -> None:
    """In version 1 expiration and retention rewrite snapshot files with another parent."""
    repo = four_commits(version)
    repo.record_checksums()
    main = SnapshotId.parse(repo.lookup_branch("main"))
    repo.expire_snapshots(now())
    assert repo.verify("graph", checksums=True).ok

    # What was written anew is recorded again, so that damage to it is found to the last bit.
    assert repo.record_checksums() == (2 if version == 1 else 0)
    assert repo.record_checksums() == 0
    assert repo.verify("graph", checksums=True).ok
    key = f"snapshots/{main}"
    data = bytearray(repo.storage.get(key)[0])
    data[12] ^= 1  # the name of the writer, in the header
    repo.storage.put(key, bytes(data))
    (found,) = Repository.open(repo.storage).verify("graph", checksums=True).findings
    assert (found.kind, found.object) == ("checksum", key)


def test_unrecorded_parent_is_reported_as_damage() -> None:
    """No expiration could have caused this parent of a version 1 snapshot."""
    repo = four_commits(1)
    repo.record_checksums()
    id = SnapshotId.parse(repo.lookup_branch("dev"))
    snapshot = read_snapshot(repo.storage.get(f"snapshots/{id}")[0], id)
    other = SnapshotId(bytes(11) + b"\1")
    repo.storage.put(f"snapshots/{id}", write_snapshot(replace(snapshot, parent_id=other), V1))

    findings = Repository.open(repo.storage).verify("graph", checksums=True).findings

    assert {(found.kind, found.object) for found in findings} == {
        ("missing", f"snapshots/{other}"),
        ("checksum", f"snapshots/{id}"),
    }


def test_message_that_differs_from_the_repo_info_is_found() -> None:
    repo = four_commits()
    id = SnapshotId.parse(repo.lookup_branch("dev"))
    snapshot = read_snapshot(repo.storage.get(f"snapshots/{id}")[0], id)
    repo.storage.put(f"snapshots/{id}", write_snapshot(replace(snapshot, message="fall"), V2))

    (found,) = Repository.open(repo.storage).verify("graph").findings

    assert (found.kind, found.object, found.where) == ("disagrees", f"snapshots/{id}", "repo")
    assert "message" in found.message


def test_changes_of_the_repo_info_file_are_not_damage() -> None:
    repo = four_commits()
    repo.record_checksums()
    for step in (
        lambda: repo.create_tag("t", repo.lookup_branch("main")),
        lambda: repo.set_metadata({"a": 1}),
        lambda: repo.save_config(),
        lambda: commit(repo, 5),
        lambda: repo.expire_snapshots(now()),
        lambda: repo.garbage_collect(now()),
    ):
        step()
        assert repo.verify("graph", checksums=True).ok
        repo.record_checksums()


def test_restored_old_repo_info_file_is_found() -> None:
    """The ops log of the old file lacks the recorded entry."""
    repo = four_commits()
    older, _ = repo.storage.get("repo")
    commit(repo, 5)
    repo.record_checksums()
    repo.storage.put("repo", older)

    (found,) = Repository.open(repo.storage).verify("graph", checksums=True).findings

    assert (found.kind, found.object) == ("checksum", "repo")


def test_readers_and_collections_ignore_the_catalogue() -> None:
    repo = four_commits()
    repo.record_checksums()
    repo.verify("objects", incremental=True)
    before = {key for key, _ in repo.storage.list_objects() if key.startswith("icefloe/")}

    repo.expire_snapshots(now())
    repo.garbage_collect(now())

    assert len(before) == 2
    assert before <= {key for key, _ in repo.storage.list_objects()}
    assert repo.verify("chunks").ok


def test_damaged_catalogue_is_reported() -> None:
    repo = four_commits()
    repo.record_checksums()
    ((key, _),) = [item for item in repo.storage.list_objects() if item[0].startswith(catalogue.FOLDER)]
    data = bytearray(repo.storage.get(key)[0])
    data[len(data) // 2] ^= 1
    repo.storage.put(key, bytes(data))

    report = repo.verify("graph", checksums=True)

    assert [found.object for found in report.findings] == [catalogue.FOLDER]


def test_incremental_verification_reads_only_new_objects() -> None:
    repo = four_commits()
    repo.verify("chunks", incremental=True)
    again = Counting(repo.storage)
    report = Repository.open(again).verify("chunks", incremental=True)
    assert (report.ok, report.snapshots, report.skipped) == (True, 0, 6)
    assert again.count("manifests") == again.count("chunks") == 0
    commit(repo, 5)
    commit(repo, 6)

    counting = Counting(repo.storage)
    report = Repository.open(counting).verify("chunks", incremental=True)

    assert (report.ok, report.snapshots, report.skipped, report.chunks) == (True, 2, 6, 2)
    assert counting.count("manifests") == 2
    assert counting.count("chunks") == 2


def test_deeper_verification_covers_shallower_levels() -> None:
    repo = four_commits()
    repo.verify("objects", incremental=True)

    assert repo.verify("graph", incremental=True).skipped == 6
    assert repo.verify("chunks", incremental=True).skipped == 0


@VERSIONS
def test_damaged_snapshots_are_not_recorded_as_verified(version: int) -> None:
    repo = four_commits(version)
    key = f"snapshots/{repo.lookup_branch('dev')}"
    data = repo.storage.get(key)[0]
    repo.storage.put(key, data[:-3])

    first = Repository.open(repo.storage).verify("graph", incremental=True)
    second = Repository.open(repo.storage).verify("graph", incremental=True)

    assert [found.object for found in first.findings] == [key]
    assert [found.object for found in second.findings] == [key]
    assert second.skipped == 0


def test_incremental_verification_finds_new_damage() -> None:
    repo = four_commits()
    repo.verify("chunks", incremental=True)
    before = {key for key in immutable(repo.storage) if key.startswith("chunks/")}
    commit(repo, 5)
    (new,) = {key for key in immutable(repo.storage) if key.startswith("chunks/")} - before
    repo.storage.put(new, b"no chunk")

    report = Repository.open(repo.storage).verify("chunks", incremental=True)

    assert [found.kind for found in report.findings] == ["short"]


def test_array_with_new_metadata_is_decoded_again() -> None:
    repo = four_commits()
    repo.verify("chunks", incremental=True)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a").update_attributes({"units": "K"})
    session.commit("other metadata")

    report = repo.verify("chunks", incremental=True)

    assert report.chunks == 3


@VERSIONS
def test_verify_checks_one_branch_one_snapshot_or_all(version: int) -> None:
    repo = four_commits(version)
    tip = repo.lookup_branch("dev")
    repo.storage.delete([f"snapshots/{tip}"])
    repo = Repository.open(repo.storage)

    assert repo.verify(branch="main").ok
    assert repo.verify(branch="main").snapshots == 5
    alone = repo.verify(snapshot_id=repo.lookup_branch("main"), history=False)
    assert (alone.ok, alone.snapshots) == (True, 1)
    assert not repo.verify(branch="dev").ok
    assert [found.object for found in repo.verify().findings] == [f"snapshots/{tip}"]
    with pytest.raises(ValueError, match="one of"):
        repo.verify(branch="main", tag="x")
    with pytest.raises(ValueError, match="history"):
        repo.verify(history=False)


def test_findings_convert_to_a_table() -> None:
    repo = four_commits()
    repo.storage.delete([key for key in immutable(repo.storage) if key.startswith("chunks/")])

    table = repo.verify("objects").table()

    assert table.names == ["kind", "object", "where", "message"]
    assert np.unique(table["kind"].astype(str)).tolist() == ["missing"]
    assert len(table.to_pandas()) == 4


def test_checksums_need_writable_storage() -> None:
    class Fixed(PassingStorage):
        @property
        def read_only(self) -> bool:
            return True

    with pytest.raises(ReadOnlyError):
        Repository.open(Fixed(four_commits().storage)).record_checksums()
