"""Tests of the checker itself: each breaks the engine in one place, and the checker must detect it."""

from __future__ import annotations

from typing import Any

import pytest

from icefloe import session
from icefloe.core import receipts as receipts_module
from icefloe.core.changeset import ChangeSet
from icefloe.core.merge import branches as branching
from icefloe.core.merge import rebase, three_way
from icefloe.core.merge.conflicts import Detection
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.format import pruning
from icefloe.format.snapshot import Nodes
from icefloe.maintenance import gc
from icefloe.maintenance import reachable as reach
from icefloe.storage.base import ALWAYS, Buffer, Version
from icefloe.storage.memory import MemoryStorage
from tests.support.simulation.worlds import run_seed

ENOUGH = 200
"""So many seeds must suffice."""


def assert_found(world: str, words: str = "", first: int = 0) -> None:
    """Try seeds until one finds a violation; `first` is one that did when this was written."""
    seeds = (*range(first, ENOUGH), *range(first))
    found = (run_seed(world, seed).violation for seed in seeds)
    assert any(each is not None and words in each for each in found), "no such violation found"


@pytest.mark.parametrize("world", ["v1", "v2"])
def test_unconditional_overwrite_is_detected(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put = MemoryStorage.put

    def overwrite(
        self: MemoryStorage, path: str, data: Buffer, condition: object = ALWAYS, **rest: Any
    ) -> Version:
        return put(self, path, data, ALWAYS, **rest)

    monkeypatch.setattr(MemoryStorage, "put", overwrite)

    assert_found(world)


@pytest.mark.parametrize("world", ["v1", "v2"])
def test_dropped_conflict_rule_is_detected(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Detection, "_find_chunk_double_updates", lambda self: iter(()))

    assert_found(world, first={"v1": 3, "v2": 1}[world])


def test_rebase_that_loses_a_chunk_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    transfer_changes = rebase.transfer_changes

    def forgetful(nodes: Nodes, changes: ChangeSet) -> ChangeSet:
        for delta in changes.chunks.values():
            delta.forget(delta.coords()[:1])
        return transfer_changes(nodes, changes)

    monkeypatch.setattr(rebase, "transfer_changes", forgetful)

    assert_found("v2", "expected")


def test_merge_that_loses_a_fork_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_receipts = receipts_module.merge_receipts

    def careless(workspace: Any, origin: Any, receipts: list[Any]) -> None:
        merge_receipts(workspace, origin, receipts[:-1])

    monkeypatch.setattr(session, "merge_receipts", careless)

    assert_found("v2", "expected", first=12)


def test_merge_that_ignores_conflicts_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(three_way, "_find_conflicts", lambda *sides: [])

    assert_found("v2", "there are conflicts")


def test_merge_that_loses_a_chunk_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = three_way.merge

    def forgetful(sides: three_way.Sides, strategy: Any) -> three_way.Merged:
        merged = merge(sides, strategy)
        for delta in merged.changes.chunks.values():
            delta.forget(delta.coords()[:1])
        return merged

    monkeypatch.setattr(branching, "merge", forgetful)

    assert_found("v2", "expected", first=9)


def test_squash_that_loses_concurrent_commits_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let squash overwrite the branch unconditionally."""
    monkeypatch.setattr(
        RefStoreV1, "reset_branch", lambda self, name, snapshot, _=None: self._move(name, snapshot, None, "")
    )

    assert_found("v1", "squash", first=49)


def test_acknowledgement_before_the_ref_moves_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    replace = RefStoreV2._replace

    def forget_some(self: RefStoreV2, new: Any, version: Version, backup: str, newest_us: int | None) -> bool:
        every_third = new.latest_updates[0].updated_at_us % 3 == 0
        return every_third or replace(self, new, version, backup, newest_us)

    monkeypatch.setattr(RefStoreV2, "_replace", forget_some)

    assert_found("v2", "was acknowledged, but changed the refs 0 times")


@pytest.mark.parametrize("world", ["v1-maintenance", "v2-maintenance"])
def test_collection_that_overlooks_a_manifest_is_detected(
    world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gc, "list_manifests_used", lambda *given, **how: reach.list_manifests_used(*given, **how)[:-1]
    )

    assert_found(world, "which are in use")


def test_collection_that_deletes_recent_objects_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collect = gc.collect

    def hasty(refs: Any, assets: Any, cutoff: int, executor: Any, **options: Any) -> Any:
        return collect(refs, assets, cutoff + 10**13, executor, **options)

    monkeypatch.setattr(gc, "collect", hasty)

    assert_found("v2-maintenance", "not old enough")


@pytest.mark.parametrize("world", ["v1-maintenance", "v2-maintenance"])
def test_collection_that_does_not_reread_refs_is_detected(
    world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the collection use the refs from its start."""
    monkeypatch.setattr(gc._Plan, "_keep_objects", lambda self, snapshots, may_miss=False: None)

    assert_found(world, "which are in use")


def test_commit_that_ignores_a_collection_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RefStoreV2, "collected_since", lambda self, info, since: False)

    assert_found("v2-maintenance", "is missing", first=79)


def test_expiration_that_loses_logs_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(snapshots: Any, keep: Any, parents: Any, skipped: Any) -> Any:
        return pruning.prune_snapshots(snapshots, keep, parents, {})

    monkeypatch.setattr("icefloe.maintenance.expire.prune_snapshots", forgetful)

    assert_found("v2-maintenance", "expire")
