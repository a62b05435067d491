"""Maintenance interrupted at every storage request, and writers between any two requests.

In every case, the content of branches and tags is unchanged, and the next run of the same operation has the
same result as an uninterrupted one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, RetentionPolicy, SpecVersion
from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.errors import IcechunkError
from icefloe.maintenance.upgrade_v1 import has_files_of_version_1
from icefloe.storage.base import Storage
from icefloe.testing.flaky import Crashed, Fault, FlakyStorage
from icefloe.testing.storages import Call
from tests.support.histories import commit, copy_of, lived_in, now, objects, repository, values

# Number of requests at which each operation is interrupted; ICEFLOE_CRASHES=1000 covers all of them.
CRASHES = int(os.environ.get("ICEFLOE_CRASHES", "4"))


class Death:
    """The crash of a process at one request, before or after its effect. Later requests fail."""

    def __init__(self, at: int, how: Fault) -> None:
        self.left, self.how = at, how
        self.dead = False

    def sending(self, call: Call) -> Fault:
        if self.dead:
            raise Crashed
        self.left -= 1
        if self.left < 0:
            self.dead = True
            return self.how
        return Fault.NONE

    def answered(self, call: Call, fault: Fault) -> None:
        pass

    def repeat_later(self, call: Call, request: Callable[[], object]) -> None:
        raise AssertionError("never asked for")


def seen(storage: Storage) -> dict[str, Any]:
    """Return the content of every branch and tag."""
    repo = Repository.open(storage)
    found: dict[str, Any] = {name: values(repo, branch=name) for name in repo.list_branches()}
    return found | {f"tag {name}": values(repo, tag=name) for name in repo.list_tags()}


def needs_care(version: int) -> Storage:
    """Create a repository with garbage, expired snapshots, two branches and a tag."""
    repo = lived_in(version)
    for value in (10, 18, 26):
        commit(repo, value)
    repo.expire_snapshots(now())
    commit(repo, 5)
    commit(repo, 6)
    return repo.storage


def split(storage: Storage) -> Repository:
    splitting = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 3}}
    )
    return Repository.open(storage, RepositoryConfig(manifest=ManifestConfig(splitting=splitting)))


def lose_a_chunk(storage: Storage) -> None:
    """Delete the chunk at index 5 of main."""
    workspace = Repository.open(storage).readonly_session("main")._workspace
    ref: Any = workspace.ref(workspace.array("/a"), (5,))
    storage.delete([f"chunks/{ref.chunk_id}"])


def source(path: str, coords: tuple[int, ...]) -> Any:
    return np.array([5], "i4") if coords == (5,) else None


def upgrade(storage: Storage) -> None:
    """Upgrade the repository; accept that a previous attempt finished without a response."""
    repo = Repository.open(storage)
    if repo.spec_version == SpecVersion.v1 or has_files_of_version_1(storage):
        icefloe.upgrade_icechunk_repository(repo, dry_run=False)


LATER = datetime(2999, 1, 1, tzinfo=UTC)

VERBS: dict[str, Callable[[Storage], object]] = {
    "gc": lambda storage: Repository.open(storage).garbage_collect(LATER),
    "expire": lambda storage: Repository.open(storage).expire_snapshots(LATER),
    "retention": lambda storage: Repository.open(storage).retain(RetentionPolicy(last=1)),
    "rewrite": lambda storage: split(storage).rewrite_manifests("split", branch="main"),
    "checksums": lambda storage: Repository.open(storage).record_checksums(),
    "repair": lambda storage: Repository.open(storage).repair(sources=source),
    "upgrade": upgrade,
}


def shape(verb: str, storage: Storage) -> Any:
    """Return the state that must not depend on interruptions."""
    repo = Repository.open(storage)
    if verb in ("rewrite", "repair"):  # a commit each; the broken ones left orphans
        return seen(storage), len(repo.list_manifest_files(repo.lookup_branch("main")))
    histories = {b: [info.id for info in repo.ancestry(branch=b)] for b in repo.list_branches()}
    kept = objects(storage) if verb in ("gc", "upgrade") else None
    return seen(storage), histories, kept, repo.spec_version


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("verb", VERBS)
def test_operation_interrupted_at_any_request_resumes(verb: str, version: int) -> None:
    if verb == "upgrade" and version == 2:
        pytest.skip("there is nothing to upgrade")
    start = needs_care(version)
    before = seen(start)
    if verb == "repair":
        lose_a_chunk(start)
    whole, counting = copy_of(start), Death(10**9, Fault.NONE)
    VERBS[verb](FlakyStorage(whole, counting))
    expected = shape(verb, whole)
    requests = 10**9 - counting.left

    crashes = 0
    chosen = random.Random(f"{verb} {version}").sample(range(requests), min(requests, CRASHES))
    for at in sorted(chosen):
        storage = copy_of(start)
        how = Fault.CRASH_BEFORE if at % 2 else Fault.CRASH_AFTER
        try:
            VERBS[verb](FlakyStorage(storage, Death(at, how)))
        except Crashed:
            crashes += 1
        if verb != "repair":
            assert seen(storage) == before, at
            assert Repository.open(storage).verify("objects").ok, at
        VERBS[verb](storage)
        assert shape(verb, storage) == expected, at
        assert Repository.open(storage).verify("chunks", branch="main", history=False).ok

    assert crashes >= min(requests, CRASHES) - 1  # threads may send a request more or less
    assert seen(storage)["main"] == before["main"]


@pytest.mark.parametrize("version", [1, 2])
def test_writers_between_requests_of_a_collection_lose_nothing(version: int) -> None:
    """An open session commits, and a branch is created at a snapshot that is about to be deleted."""

    class Meanwhile(Death):
        def __init__(self, at: int, act: Callable[[], None]) -> None:
            super().__init__(at, Fault.NONE)
            self.act = act

        def answered(self, call: Call, fault: Fault) -> None:
            self.left -= 1
            if self.left == -1:
                self.act()

        def sending(self, call: Call) -> Fault:
            return Fault.NONE

    refused = done = 0
    for at in range(version, 60, 3):
        repo = repository(version)
        commit(repo, 1)
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a")[3] = 33
        outcome: list[str] = []

        def act(session: Any = session, outcome: list[str] = outcome) -> None:
            try:
                outcome.append(session.commit("in between"))
            except IcechunkError:
                outcome.append("")

        moment = now()
        weather = Meanwhile(at, act)
        Repository.open(FlakyStorage(repo.storage, weather)).garbage_collect(moment)
        if not outcome:
            break

        again = Repository.open(repo.storage)
        if outcome[0]:
            done += 1
            assert again.lookup_branch("main") == outcome[0]
            assert again.verify("chunks").ok
            assert values(again)[3] == 33
        else:
            refused += 1
            assert values(again) == [0, 1, 0, 0, 0, 0, 0, 0]
            assert again.verify("chunks").ok

    assert refused + done >= 3
