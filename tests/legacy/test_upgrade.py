"""Upgrades: rejected repositories, preserved content, and resumption after an interruption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import (
    ErrorKind,
    IcechunkError,
    InvalidInputError,
    RepositoryNotFoundError,
    SessionStateError,
    StorageError,
)
from icefloe.legacy.upgrade import migrate
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage, local_filesystem_storage
from icefloe.storage.base import Storage
from icefloe.testing.storages import PassingStorage
from tests.support.format import golden
from tests.support.legacy.contents import described
from tests.support.legacy.locations import contents, place
from tests.support.legacy.repositories import FORMATS, write_older
from tests.support.legacy.small import tiny

# Number of writes between two interruptions of an upgrade; `make torture` interrupts at every write.
EVERY = int(os.environ.get("ICEFLOE_BREAK_EVERY", "3"))


class BreakingStorage(PassingStorage):
    """A storage whose power goes out after a number of writes."""

    def __init__(self, inner: Storage | None = None) -> None:
        super().__init__(inner or in_memory_storage())
        self.left: list[int] = []

    def writing(self) -> None:
        if self.left:
            self.left[0] -= 1
            if self.left[0] < 0:
                raise StorageError("the power is out", kind=ErrorKind.IO)


def breaks_off(source: Storage, storage: BreakingStorage, after: int, **options: Any) -> bool:
    """Upgrade until the power goes out, if it does, after a number of writes."""
    storage.left[:] = [after]
    try:
        migrate(source, None if source is storage else storage, **options)
    except StorageError:
        return True
    finally:
        storage.left.clear()
    return False


@pytest.mark.parametrize(
    ("name", "delete_old_files"), [("001-json", True), ("002-alpha2", False), ("004-0.1.3", True)]
)
def test_interrupted_upgrade_in_place_can_be_resumed(name: str, delete_old_files: bool) -> None:
    source = tiny()
    expected = described(source)
    older: Storage = in_memory_storage()
    write_older(source, older, FORMATS[name])
    files = contents(older)

    for after in range(0, 60, EVERY):
        storage = BreakingStorage(place(files))
        broken = breaks_off(storage, storage, after, delete_old_files=delete_old_files)

        assert described(Repository.open(storage)) == expected, after
        if not broken:
            break
        migrate(storage, delete_old_files=delete_old_files)
        assert described(Repository.open(storage)) == expected, after
        assert not storage.exists("icefloe-migration/plan.json")

    assert 8 < after < 59


@pytest.mark.parametrize("name", ["001-dev", "004-0.1.3"])
def test_interrupted_upgrade_to_a_target_can_be_resumed(name: str) -> None:
    source = tiny()
    expected = described(source)
    older: Storage = in_memory_storage()
    write_older(source, older, FORMATS[name])
    before = contents(older)

    for after in range(0, 60, EVERY):
        target = BreakingStorage()
        broken = breaks_off(older, target, after)
        if not broken:
            break
        migrate(older, target)
        assert described(Repository.open(target)) == expected, after

    assert 8 < after < 59
    assert contents(older) == before


@pytest.mark.parametrize("name", golden.OLDER_NAMES)
def test_dry_run_writes_nothing(name: str) -> None:
    storage = place(golden.load(name).files)
    before = contents(storage)

    report = icefloe.migrate(storage, dry_run=True)

    assert contents(storage) == before
    assert report.dry_run
    assert report.snapshots == len(golden.load(name).expected["snapshots"])
    assert (report.branches, report.tags, report.references) == (
        len(golden.load(name).expected["branches"]),
        1,
        73,
    )


def test_old_files_are_kept_by_default() -> None:
    storage = place(golden.load("handmade-004-alpha15").files)
    before = contents(storage)

    migrate(storage)

    after = contents(storage)
    for path, data in before.items():
        kept = f"icefloe-migration/replaced/{path}"
        assert data in (after[path], after.get(kept)), path
    assert not storage.exists("icefloe-migration/plan.json")


def test_progress_is_reported() -> None:
    stages: dict[str, tuple[int, int]] = {}
    storage = place(golden.load("handmade-001-json").files)

    migrate(
        storage,
        in_memory_storage(),
        progress=lambda stage, done, total: stages.update({stage: (done, total)}),
    )

    assert set(stages) == {
        "manifests read",
        "snapshots read",
        "manifests written",
        "chunks copied",
        "snapshots written",
        "manifests compared",
        "snapshots compared",
    }
    assert all(done == total for done, total in stages.values())


def test_properties_of_references_become_metadata() -> None:
    storage = place(golden.load("handmade-001-json").files)

    migrate(storage)

    repo = Repository.open(storage)
    assert repo.metadata == {"ref_properties": {"tags": {"v1": {"note": "tag"}}}}


def test_ops_log_reconstructs_the_history() -> None:
    storage = place(golden.load("handmade-002-alpha8").files)

    migrate(storage)

    log = [(type(update.kind).__name__, update.updated_at) for update in Repository.open(storage).ops_log()]
    assert [name for name, _ in log] == [
        "RepoMigrated",
        "BranchCreated",
        "NewCommit",
        "TagCreated",
        "NewCommit",
        "NewCommit",
        "RepoInitialized",
    ]
    assert [time for _, time in log] == sorted((time for _, time in log), reverse=True)


def test_upgraded_repository_can_be_written() -> None:
    storage = place(golden.load("handmade-002-alpha2").files)

    migrate(storage)

    repo = Repository.open(storage)
    with repo.transaction("main", message="more") as store:
        array: Any = zarr.open_array(store, path="types/int64")
        array[:] = 5
    assert [info.message for info in repo.ancestry(branch="main")][:2] == ["more", "data ❄"]
    assert np.asarray(zarr.open_array(repo.readonly_session("main").store, path="types/int64")[:]).min() == 5


# Rejected upgrades


def test_empty_location_has_nothing_to_upgrade() -> None:
    with pytest.raises(RepositoryNotFoundError):
        migrate(in_memory_storage())


@pytest.mark.parametrize(
    ("version", "words"), [(1, "upgrade_icechunk_repository"), (2, "nothing to upgrade")]
)
def test_newer_repositories_are_not_upgraded(version: int, words: str) -> None:
    storage = in_memory_storage()
    Repository.create(storage, spec_version=version)

    with pytest.raises(SessionStateError, match=words):
        migrate(storage)


def test_target_must_be_empty() -> None:
    target: Storage = in_memory_storage()
    target.put("something", b"x")

    with pytest.raises(InvalidInputError, match="must be empty, but it contains something"):
        migrate(place(golden.load("handmade-002-alpha2").files), target)


def test_target_of_another_upgrade_is_rejected() -> None:
    target = BreakingStorage()
    assert breaks_off(place(golden.load("handmade-002-alpha2").files), target, 3)

    with pytest.raises(SessionStateError, match="a different repository"):
        migrate(place(golden.load("handmade-001-json").files), target)


def test_repository_without_main_is_rejected() -> None:
    files = golden.load("handmade-002-alpha2").files
    storage = place({path: data for path, data in files.items() if "branch.main" not in path})

    with pytest.raises(SessionStateError, match="no readable branch main"):
        migrate(storage)


@pytest.mark.parametrize("what", ["snapshots/SW", "manifests/11", "chunks/65"])
def test_missing_objects_stop_an_upgrade_before_it_writes(what: str) -> None:
    files = golden.load("handmade-004-0.1.3").files
    storage = place({path: data for path, data in files.items() if not path.startswith(what)})
    before = contents(storage)

    with pytest.raises(SessionStateError, match="keep_gaps"):
        migrate(storage)

    assert contents(storage) == before
    report = migrate(storage, dry_run=True)
    assert len(report.gaps) == 1
    assert what[:-2].rstrip("s/") in report.gaps[0] or "11FKWP" in report.gaps[0]


@pytest.mark.parametrize("what", ["manifests/11", "chunks/65"])
def test_missing_objects_stay_missing(what: str) -> None:
    files = golden.load("handmade-004-0.1.3").files
    storage = place({path: data for path, data in files.items() if not path.startswith(what)})

    report = migrate(storage, keep_gaps=True)

    assert len(report.gaps) == 1
    repo = Repository.open(storage)
    array: Any = zarr.open_array(repo.readonly_session("main").store, path="grp/native 日本", mode="r")
    with pytest.raises(IcechunkError):
        array[:]


def test_missing_ancestor_is_removed_from_history() -> None:
    files = golden.load("handmade-002-alpha2").files
    storage = place({path: data for path, data in files.items() if not path.startswith("snapshots/SW")})

    report = migrate(storage, keep_gaps=True)

    assert any("SW5143T880YYN2KFHCQ0" in gap for gap in report.gaps)
    messages = [info.message for info in Repository.open(storage).ancestry(branch="main")]
    assert messages == ["data ❄", "Repository initialized"]


def test_upgrade_leaves_no_empty_folders(tmp_path: Path) -> None:
    folder = golden.unpack("handmade-001-dev-20240918", tmp_path) / "repo"

    migrate(local_filesystem_storage(str(folder)), delete_old_files=True)

    assert sorted(path.name for path in folder.iterdir()) == [
        "chunks",
        "manifests",
        "repo",
        "snapshots",
        "transactions",
    ]


def test_user_files_survive_the_deletion_of_old_files(tmp_path: Path) -> None:
    folder = golden.unpack("handmade-001-dev-20240918", tmp_path) / "repo"
    mine = [folder / name for name in ("r/notes.txt", "s/notes.json", "m/below/notes", "refs/notes")]
    for file in mine:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("of a user")

    migrate(local_filesystem_storage(str(folder)), delete_old_files=True)

    assert all(file.exists() for file in mine)
    assert {path.name for path in (folder / "s").iterdir()} == {"notes.json"}
