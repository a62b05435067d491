"""Repair: lost objects are restored from a source or dropped on request; nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import Repository
from icefloe.errors import IcechunkError, StorageError
from icefloe.storage import in_memory_storage
from tests.support.histories import commit, copy_of, history, objects, repository, values

VERSIONS = pytest.mark.parametrize("version", [1, 2])
LEFT = [0, 1, 2, 3, 4, 0, 0, 0]


def five_chunks(version: int = 2) -> Repository:
    """Create a repository with four commits of one chunk each."""
    repo = repository(version)
    for value in (1, 2, 3, 4):
        commit(repo, value)
    return repo


def chunk_at(repo: Repository, coord: int) -> str:
    """Return the path of the object of a chunk."""
    workspace = repo.readonly_session("main")._workspace
    ref: Any = workspace.ref(workspace.array("/a"), (coord,))
    return f"chunks/{ref.chunk_id}"


def broken(version: int, coord: int = 2) -> Repository:
    """Delete the object of a chunk."""
    repo = five_chunks(version)
    repo.storage.delete([chunk_at(repo, coord)])
    return Repository.open(repo.storage)


def stored(path: str, coords: tuple[int, ...]) -> bytes | None:
    """Return the stored bytes of a chunk of an intact repository."""
    other = five_chunks()
    workspace = other.readonly_session("main")._workspace
    ref: Any = workspace.ref(workspace.array(path), coords)
    return None if ref is None else workspace.read(ref, 0, ref.length)


@VERSIONS
def test_lost_chunk_is_restored_from_a_source(version: int) -> None:
    repo = broken(version)
    with pytest.raises(IcechunkError):
        values(repo)

    report = repo.repair(sources={"/a": stored})

    assert report.complete
    assert list(report.table().rows()) == [
        {"object": "/a [2]", "where": "chunks", "problem": "chunk lost", "action": "restored"}
    ]
    assert values(repo) == LEFT
    assert repo.lookup_branch("main") == report.snapshot_id
    assert repo.verify("chunks", branch="main", history=False).ok
    assert history(repo)[:2] == ["Repair", "write 4"]


def test_restored_values_are_encoded_with_the_codecs() -> None:
    repo = broken(2)

    repo.repair(sources=lambda path, coords: np.array([coords[0]], "i4"))

    assert values(repo) == LEFT


@VERSIONS
def test_repair_drops_nothing_by_default(version: int) -> None:
    repo = broken(version)
    before = repo.lookup_branch("main")

    report = repo.repair()

    assert not report.complete
    assert report.snapshot_id is None
    assert repo.lookup_branch("main") == before


@VERSIONS
def test_dropped_chunk_reads_as_fill_value(version: int) -> None:
    repo = broken(version)
    planned = repo.repair(drop=True, dry_run=True)
    assert planned.snapshot_id is None

    report = repo.repair(drop=True)

    assert planned.actions == report.actions
    assert values(repo) == [0, 1, 0, 3, 4, 0, 0, 0]
    assert repo.verify("chunks", branch="main", history=False).ok
    assert repo.repair(drop=True).snapshot_id is None


def test_chunk_with_wrong_checksum_is_restored() -> None:
    repo = five_chunks()
    repo.record_checksums()
    key = chunk_at(repo, 3)
    data = bytearray(repo.storage.get(key)[0])
    data[-1] ^= 1
    repo.storage.put(key, bytes(data))
    assert repo.repair(sources=stored).actions == ()

    repo.repair(sources=stored, checksums=True)

    assert values(Repository.open(repo.storage)) == LEFT


@VERSIONS
@pytest.mark.parametrize("way", ["gone", "damaged"])
def test_lost_manifest_is_restored_or_dropped(version: int, way: str) -> None:
    repo = five_chunks(version)
    (file,) = repo.list_manifest_files(repo.lookup_branch("main"))
    key = f"manifests/{file.id}"
    if way == "gone":
        repo.storage.delete([key])
    else:
        repo.storage.put(key, repo.storage.get(key)[0][:-4])
    made, dropped = (Repository.open(copy_of(repo.storage)) for _ in range(2))

    assert not Repository.open(copy_of(repo.storage)).repair().complete
    made.repair(sources=stored, drop=True)
    dropped.repair(drop=True)

    assert values(made) == LEFT
    assert values(dropped) == [0] * 8
    assert made.verify("chunks", branch="main", history=False).ok
    assert dropped.verify("chunks", branch="main", history=False).ok


@VERSIONS
def test_lost_transaction_log_is_recomputed(version: int) -> None:
    repo = five_chunks(version)
    repo.record_checksums()
    tip = repo.lookup_branch("main")
    parent = next(info.parent_id for info in repo.ancestry(branch="main"))
    assert parent is not None
    expected = repo.diff(from_snapshot_id=parent, to_snapshot_id=tip)
    repo.storage.delete([f"transactions/{tip}"])
    repo = Repository.open(repo.storage)

    report = repo.repair()

    assert report.complete
    assert repo.lookup_branch("main") == tip
    assert repo.diff(from_snapshot_id=parent, to_snapshot_id=tip) == expected
    assert repo.verify("objects", checksums=True).ok


def test_lost_snapshot_is_removed_from_the_history() -> None:
    repo = five_chunks()
    line = [info.id for info in repo.ancestry(branch="main")]
    repo.create_tag("lost", line[2])
    repo.storage.delete([f"snapshots/{line[2]}"])
    repo = Repository.open(repo.storage)
    assert not repo.repair().complete

    repo.repair(drop=True)

    assert [info.id for info in repo.ancestry(branch="main")] == line[:2] + line[3:]
    assert repo.list_tags() == set()
    assert repo.verify("objects").ok
    changed = repo.diff(from_snapshot_id=line[3], to_snapshot_id=line[0])
    assert sorted(changed.updated_chunks["/a"]) == [[2], [3], [4]]


def test_branch_with_lost_tip_is_reset_to_newest_existing_snapshot() -> None:
    repo = five_chunks()
    line = [info.id for info in repo.ancestry(branch="main")]
    repo.storage.delete([f"snapshots/{line[0]}"])
    repo = Repository.open(repo.storage)

    repo.repair(drop=True)

    assert repo.lookup_branch("main") == line[1]
    assert values(repo) == [0, 1, 2, 3, 0, 0, 0, 0]


def test_lost_snapshot_of_version_1_removes_its_ancestors_from_the_history() -> None:
    """Its ancestors are unknown: its child gets the first snapshot as parent, as in an expiration."""
    repo = five_chunks(1)
    repo.record_checksums()
    line = [info.id for info in repo.ancestry(branch="main")]
    repo.storage.delete([f"snapshots/{line[2]}"])
    repo = Repository.open(repo.storage)
    assert not repo.repair().complete
    assert repo.repair(drop=True, dry_run=True).complete
    assert not repo.verify("objects").ok

    assert repo.repair(drop=True).complete

    repo = Repository.open(repo.storage)
    assert [info.id for info in repo.ancestry(branch="main")] == [*line[:2], line[-1]]
    assert values(repo) == LEFT
    assert repo.verify("chunks", checksums=True).ok


def test_branch_of_version_1_with_lost_tip_is_left_unchanged() -> None:
    repo = five_chunks(1)
    repo.create_branch("dev", repo.lookup_branch("main"))
    tip = commit(repo, 5, "dev")
    repo.storage.delete([f"snapshots/{tip}"])
    repo = Repository.open(repo.storage)

    with pytest.raises(IcechunkError, match=f"{tip}, the tip of dev; reset"):
        repo.repair("dev", drop=True)

    assert repo.lookup_branch("dev") == tip


def test_readable_snapshot_is_never_dropped() -> None:
    repo = five_chunks()
    repo.record_checksums()
    tip = repo.lookup_branch("main")
    key = f"snapshots/{tip}"
    data = bytearray(repo.storage.get(key)[0])
    data[12] ^= 1  # the name of the writer, in the header
    repo.storage.put(key, bytes(data))

    report = Repository.open(repo.storage).repair(drop=True, checksums=True)

    assert [(row["object"], row["action"]) for row in report.table().rows()] == [(key, "left unchanged")]
    assert repo.lookup_branch("main") == tip


@VERSIONS
def test_repair_does_not_change_an_intact_repository(version: int) -> None:
    repo = five_chunks(version)
    before = objects(repo.storage)

    report = repo.repair(drop=True, sources=stored)

    assert report.actions == ()
    assert objects(repo.storage) == before


def test_failing_source_changes_nothing() -> None:
    repo = broken(2)
    before = repo.lookup_branch("main")

    def failing(path: str, coords: tuple[int, ...]) -> bytes:
        raise StorageError("the archive is not there")

    with pytest.raises(StorageError, match="archive"):
        repo.repair(sources=failing, drop=True)

    assert repo.lookup_branch("main") == before
    assert zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[1] == 1
    assert in_memory_storage().list_objects() == []
