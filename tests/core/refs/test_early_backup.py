"""Backups of the repo info file that are written while a commit uploads its files."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe.storage.memory import MemoryStorage


class _Remote(MemoryStorage):
    """A storage that does not answer at once, like an object store."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    @property
    def answers_at_once(self) -> bool:
        return False

    def get(self, path: str, *arguments: Any, **options: Any) -> Any:
        self.calls.append(f"get {path}")
        return super().get(path, *arguments, **options)

    def put(self, path: str, *arguments: Any, **options: Any) -> Any:
        self.calls.append(f"put {path.partition('/')[0]}")
        return super().put(path, *arguments, **options)


def _create(storage: icefloe.Storage) -> icefloe.Repository:
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    session.commit("root")
    return repo


def _write(repo: icefloe.Repository, value: int) -> icefloe.Session:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name=f"a{value}", data=np.array([value]), overwrite=True)
    return session


def test_commit_writes_each_file_once_and_backs_up_the_refs_it_read() -> None:
    storage = _Remote()
    repo = _create(storage)
    for value in (1, 2, 3):
        session = _write(repo, value)
        before = storage.get("repo")[0]
        storage.calls.clear()
        session.commit(str(value))

        puts = [call for call in storage.calls if call.startswith("put")]
        assert sorted(puts[:-1]) == ["put manifests", "put overwritten", "put snapshots", "put transactions"]
        assert puts[-1] == "put repo"
        newest = min(info.key for info in storage.list_prefix("overwritten/"))
        assert storage.get(newest)[0] == before
    kinds = [type(update.kind).__name__ for update in repo.ops_log()]
    assert kinds.count("NewCommit") == 4
    assert len({update.backup_path for update in repo.ops_log()}) == len(kinds)


def test_ops_log_backup_of_a_lost_race_is_not_reused() -> None:
    storage = _Remote()
    repo = _create(storage)
    first, second = _write(repo, 1), _write(icefloe.Repository.open(storage), 2)
    first.commit("first")
    second.commit("second", rebase_with=icefloe.ConflictDetector())

    tips = [icefloe.Repository.open(storage).lookup_branch("main"), repo.lookup_branch("main")]
    assert tips[0] == tips[1]
    assert [info.message for info in repo.ancestry(branch="main")][:2] == ["second", "first"]
    backups = [update.backup_path for update in repo.ops_log() if update.backup_path]
    for path in backups:
        assert storage.exists(f"overwritten/{path.rpartition('/')[2]}")
