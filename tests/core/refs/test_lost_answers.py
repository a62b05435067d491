"""Changes of refs whose response is lost: they are recognized and never applied twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from icefloe import (
    ConflictError,
    IcechunkError,
    RepoAvailability,
    Repository,
    RepositoryConfig,
    RepoStatus,
    StorageError,
)
from icefloe.storage.base import ALWAYS, ConditionNotMetError, PutCondition
from icefloe.storage.memory import MemoryStorage
from tests.support.edits import CreateGroup, make


class Losing(MemoryStorage):
    """A storage that writes and then reports a failure, a few times. Others may write in between."""

    losses = 0
    error: Callable[[str], StorageError] = ConditionNotMetError
    in_between: Callable[[], Any] | None = None

    def put(self, path: str, data: Any, condition: PutCondition = ALWAYS, **options: Any) -> Any:
        version = super().put(path, data, condition, **options)
        if self.losses and condition is not ALWAYS:
            self.losses -= 1
            if self.in_between is not None:
                self.in_between()
            raise type(self).error(path)
        return version


class LosingOutright(Losing):
    """A storage that writes, and then fails without a response."""

    error = staticmethod(lambda path: StorageError(f"{path}: no answer"))


@pytest.fixture(params=[Losing, LosingOutright])
def storage(request: pytest.FixtureRequest) -> Losing:
    made: Losing = request.param()
    return made


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest, storage: Losing) -> Repository:
    return Repository.create(storage, spec_version=request.param)


def commit(repo: Repository, message: str = "x") -> str:
    return repo.writable_session("main").commit(message, allow_empty=True)


def messages(repo: Repository) -> list[str]:
    return [info.message for info in repo.ancestry(branch="main")][:-1]


def test_commit_is_recognized_after_a_lost_response(repo: Repository, storage: Losing) -> None:
    storage.losses = 1

    id = commit(repo)

    assert repo.lookup_branch("main") == id
    assert messages(repo) == ["x"]


def test_commit_is_recognized_below_another_commit(repo: Repository, storage: Losing) -> None:
    other = Repository.open(storage)
    storage.in_between = lambda: commit(other, "on top")
    storage.losses = 1

    id = commit(repo)

    assert messages(repo) == ["on top", "x"]
    assert [info.id for info in repo.ancestry(branch="main")][1] == id


def test_commit_is_recognized_with_a_short_ops_log(storage: Losing) -> None:
    config = RepositoryConfig(num_updates_per_repo_info_file=1)
    repo = Repository.create(storage, config)
    other = Repository.open(storage, config)
    storage.in_between = lambda: [commit(other, "on top"), commit(other, "and more")]
    storage.losses = 1

    commit(repo)

    assert messages(repo) == ["and more", "on top", "x"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda repo: repo.create_branch("b", repo.lookup_branch("main")), id="create-branch"),
        pytest.param(lambda repo: repo.reset_branch("main", repo.lookup_branch("main")), id="reset-branch"),
        pytest.param(lambda repo: repo.create_tag("t", repo.lookup_branch("main")), id="create-tag"),
        pytest.param(lambda repo: repo.delete_tag("old"), id="delete-tag"),
        pytest.param(lambda repo: repo.delete_branch("old"), id="delete-branch"),
        pytest.param(lambda repo: repo.update_metadata({"a": 1}), id="metadata"),
        pytest.param(lambda repo: repo.set_status(RepoStatus(RepoAvailability.read_only)), id="status"),
        pytest.param(lambda repo: repo.set_feature_flag("move_node", False), id="feature-flag"),
        pytest.param(lambda repo: repo.save_config(), id="config"),
        pytest.param(lambda repo: repo.writable_session("main").flush("f"), id="flush"),
    ],
)
def test_each_repo_info_change_is_applied_once(storage: Losing, change: Callable[[Repository], Any]) -> None:
    repo = Repository.create(storage)
    repo.create_branch("old", repo.lookup_branch("main"))
    repo.create_tag("old", repo.lookup_branch("main"))
    entries = len(list(repo.ops_log()))
    storage.losses = 1

    change(repo)

    assert len(list(repo.ops_log())) == entries + 1


def test_new_ref_after_a_lost_response_raises_an_error() -> None:
    """In V1, the file of the same branch or tag of another writer is identical."""
    storage = LosingOutright()
    repo = Repository.create(storage, spec_version=1)
    storage.losses = 2

    for create in (repo.create_branch, repo.create_tag):
        with pytest.raises(StorageError, match="no answer"):
            create("new", repo.lookup_branch("main"))

    assert (repo.list_branches(), repo.list_tags()) == ({"main", "new"}, {"new"})


def test_amended_commit_is_recognized_after_a_lost_response(storage: Losing) -> None:
    repo = Repository.create(storage)
    commit(repo)
    session = repo.writable_session("main")
    make(session, [CreateGroup("/")])
    storage.losses = 1

    session.amend("better")

    assert messages(repo) == ["better"]


def test_failed_write_is_reported(repo: Repository, storage: Losing) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise StorageError("no answer")

    start, tip = repo.lookup_branch("main"), commit(repo)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStorage, "put", refuse)
        for change in (repo.reset_branch, repo.create_branch, repo.create_tag):
            with pytest.raises(StorageError, match="no answer"):
                change("main" if change == repo.reset_branch else "new", start)

    assert repo.lookup_branch("main") == tip
    assert (repo.list_branches(), repo.list_tags()) == ({"main"}, set())


def test_unconditional_reset_is_retried_while_others_commit(repo: Repository, storage: Losing) -> None:
    other, start = Repository.open(storage), repo.lookup_branch("main")
    put, left = MemoryStorage.put, [3]

    def late(self: Any, path: str, data: Any, condition: PutCondition = ALWAYS, **options: Any) -> Any:
        if left[0] and condition is not ALWAYS:
            left[0] -= 1
            kept, left[0] = left[0], 0
            commit(other)
            left[0] = kept
        return put(self, path, data, condition, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStorage, "put", late)
        repo.reset_branch("main", start)

    assert (left, repo.lookup_branch("main")) == ([0], start)


def test_reset_from_another_tip_is_a_conflict(repo: Repository) -> None:
    start = repo.lookup_branch("main")
    commit(repo)

    with pytest.raises(ConflictError) as lost:
        repo.reset_branch("main", start, from_snapshot_id=start)

    assert lost.value.kind == "branch-update-conflict"


def test_number_of_attempts_is_limited(storage: Losing) -> None:
    from icefloe.config import RepoUpdateRetryConfig, StorageRetriesSettings

    retries = StorageRetriesSettings(max_tries=3, initial_backoff_ms=1, max_backoff_ms=1)
    config = RepositoryConfig(repo_update_retries=RepoUpdateRetryConfig(default=retries))
    repo = Repository.create(storage, config)

    def refuse(self: Any, path: str, data: Any, condition: PutCondition = ALWAYS, **options: Any) -> Any:
        raise ConditionNotMetError(path, condition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStorage, "put", refuse)
        with pytest.raises(IcechunkError) as lost:
            repo.create_tag("t", repo.lookup_branch("main"))

    assert lost.value.kind == "update-attempts-exhausted"
