"""Expiration and garbage collection on a disk that is full to the last byte."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import zarr

from icefloe import Repository, RetentionPolicy, local_filesystem_storage
from icefloe.errors import StorageError
from icefloe.storage.base import Storage
from tests.support.histories import commit, now, repository

SIZE = 1 << 21


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def write(repo: Repository, value: float) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = np.full(8192, value)
    session.commit(f"{value}")


def full_repository(disk: Path, version: int, commits: int = 5) -> Repository:
    """Create a repository with some commits, and fill the rest of the disk."""
    repo = Repository.create(local_filesystem_storage(str(disk / "repo")), spec_version=version)
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(8192,), chunks=(8192,), dtype="f8", compressors=None)
    for value in range(commits):
        write(repo, value + 1)
    repo.create_branch("dev", repo.lookup_branch("main"))
    repo.create_tag("t", repo.lookup_branch("main"))
    fill(disk)
    with pytest.raises(StorageError, match="No space left"):
        write(repo, 99)
    fill(disk)  # what the failed commit left free
    return repo


def fill(disk: Path) -> None:
    size = SIZE
    with open(disk / "filler", "ab", buffering=0) as file:
        while size:
            try:
                written = file.write(bytes(size))
            except OSError:
                written = 0
            if written < size:
                size //= 2


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("thin_out", ["expire", "retain"])
def test_expire_and_gc_free_a_full_disk(disk: Path, version: int, thin_out: str) -> None:
    repo = full_repository(disk, version)
    cutoff = now() + timedelta(seconds=1)

    if thin_out == "expire":
        gone = len(repo.expire_snapshots(cutoff))
    else:
        gone = int((~repo.retain(RetentionPolicy(last=1)).table["kept"]).sum())
    fill(disk)
    summary = repo.garbage_collect(cutoff)

    assert gone >= 5
    assert summary.chunks_deleted >= 4
    write(repo, 7)
    opened = Repository.open(local_filesystem_storage(str(disk / "repo")))
    assert opened.verify().ok
    values = zarr.open_array(opened.readonly_session("main").store, path="a", mode="r")[:]
    assert np.array_equal(values, np.full(8192, 7.0))
    assert len(list(opened.ancestry(branch="main"))) == 3


def test_expiration_on_a_full_disk_keeps_the_logs_of_other_tips(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tip of main is old, and in the history of dev."""
    repo = repository(1)
    tip = commit(repo, 1)
    repo.create_branch("dev", tip)
    commit(repo, 2, "dev")
    offered: list[str] = []

    def making_room(
        storage: Storage, expendable: Callable[[], Iterator[str]]
    ) -> AbstractContextManager[None]:
        offered.extend(expendable())
        return nullcontext()

    monkeypatch.setattr(type(repo.storage), "make_room", making_room)
    repo.expire_snapshots(now())

    assert offered
    assert f"transactions/{tip}" not in offered


@pytest.mark.parametrize("version", [1, 2])
def test_objects_of_failed_commits_are_collected_on_a_full_disk(disk: Path, version: int) -> None:
    repo = full_repository(disk, version, commits=1)
    before = [info.id for info in repo.ancestry(branch="main")]

    summary = repo.garbage_collect(now() + timedelta(seconds=1))

    assert summary.objects_failed_to_delete == 0
    assert [info.id for info in repo.ancestry(branch="main")] == before
    assert repo.verify().ok


@pytest.mark.parametrize("version", [1, 2])
def test_branches_and_tags_are_deleted_on_a_full_disk(disk: Path, version: int) -> None:
    repo = full_repository(disk, version)

    repo.delete_branch("dev")
    repo.delete_tag("t")

    assert repo.list_branches() == {"main"}
    assert repo.list_tags() == set()


def test_full_disk_recovery_keeps_needed_ops_log_backups(disk: Path) -> None:
    repo = full_repository(disk, 2)
    config = repo.config
    config.num_updates_per_repo_info_file = 3
    repo = Repository.open(repo.storage, config)
    (disk / "filler").unlink()
    write(repo, 50)
    write(repo, 51)
    kinds = [type(update.kind).__name__ for update in repo.ops_log()]
    fill(disk)

    repo.expire_snapshots(now() + timedelta(seconds=1))

    assert [type(update.kind).__name__ for update in repo.ops_log()][1:] == kinds
