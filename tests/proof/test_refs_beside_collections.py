"""Branches and tags created at an unused snapshot during a collection, for every interleaving of requests.

The collection stops before one of its requests, another writer advances to one of its own, the collection
finishes, and then the writer does. The new ref points to a complete snapshot, or is rejected.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from icefloe import Repository
from icefloe.errors import IcechunkError
from icefloe.storage.base import Storage
from icefloe.testing.storages import PassingStorage
from tests.support.histories import commit, copy_of, now, repository

PAIRS = int(os.environ.get("ICEFLOE_CRASHES", "12"))
REFS: dict[str, Callable[[Repository, str], None]] = {
    "branch": lambda repo, id: repo.create_branch("late", id),
    "tag": lambda repo, id: repo.create_tag("late", id),
    "reset": lambda repo, id: repo.reset_branch("dev", id),
}
VERBS = ("get", "get_if_changed", "put", "delete", "exists", "list_prefix", "list_columns")


class Stopping(PassingStorage):
    """A storage that calls a function before one of its requests."""

    def __init__(self, inner: Storage, at: int, act: Callable[[], None]) -> None:
        super().__init__(inner)
        self.left, self._act = at, act

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in VERBS:
            self.left -= 1
            if self.left == -1:
                self._act()
        return found


def with_garbage(version: int) -> tuple[Repository, str]:
    """Create a repository with two unused snapshots, and return it with the id of one."""
    repo = repository(version)
    commit(repo, 1)
    repo.create_branch("dev", repo.lookup_branch("main"))
    kept = repo.lookup_branch("dev")
    commit(repo, 2, "dev")
    orphan = commit(repo, 3, "dev")
    repo.reset_branch("dev", kept)
    return repo, orphan


def requests(act: Callable[[Storage], object], storage: Storage) -> int:
    """Count the requests of an operation."""
    counting = Stopping(copy_of(storage), 10**9, lambda: None)
    act(counting)
    return 10**9 - counting.left


def interleaved(storage: Storage, orphan: str, how: str, collected: int, put: int) -> str:
    """Create a ref at one request of a collection, and return the outcome."""
    here, there = threading.Event(), threading.Event()
    outcome: list[str] = []

    def wait() -> None:
        here.set()
        assert there.wait(300)

    def act() -> None:
        try:
            REFS[how](Repository.open(Stopping(storage, put, wait)), orphan)
            outcome.append("done")
        except IcechunkError as refusal:
            outcome.append(str(refusal))
        finally:
            here.set()

    other = threading.Thread(target=act)

    def start() -> None:
        other.start()
        assert here.wait(300)

    Repository.open(Stopping(storage, collected, start)).garbage_collect(now())
    there.set()
    other.join()
    return outcome[0]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("how", REFS)
def test_new_ref_points_to_a_complete_snapshot_or_is_rejected(how: str, version: int) -> None:
    repo, orphan = with_garbage(version)
    before = {branch: repo.lookup_branch(branch) for branch in repo.list_branches()}
    collecting = requests(lambda storage: Repository.open(storage).garbage_collect(now()), repo.storage)
    putting = requests(lambda storage: REFS[how](Repository.open(storage), orphan), repo.storage)
    pairs = [(collected, put) for collected in range(collecting) for put in range(putting + 1)]
    chosen = random.Random(f"{how} {version}").sample(pairs, min(len(pairs), PAIRS))

    seen = set()
    for collected, put in [(0, putting), *chosen]:  # the first ref is there before anything is listed
        storage = copy_of(repo.storage)

        outcome = interleaved(storage, orphan, how, collected, put)

        again = Repository.open(storage)
        report = again.verify("objects")
        assert report.ok, (collected, put, outcome, report.findings)
        if outcome != "done":
            assert {branch: again.lookup_branch(branch) for branch in again.list_branches()} == before
            assert again.list_tags() == set()
        seen.add(outcome == "done")

    assert seen == {True, False}
