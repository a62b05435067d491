"""Incremental garbage collection: the same result as a full one, with fewer requests."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from icefloe import GCSummary, Repository
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import IcechunkError
from icefloe.format.id_columns import IdIndex
from icefloe.maintenance import reachable_index
from icefloe.maintenance.reachable_index import PATH, ReachableIndex
from icefloe.ops import UpdateType
from icefloe.storage.base import Storage
from tests.support.histories import commit, now, objects, repository, values


@pytest.fixture(autouse=True)
def every_file_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable_index, "_FEW_FILES", 0)


def collected_once(commits: int = 6) -> Repository:
    repo = repository()
    for value in range(1, 1 + commits):
        commit(repo, value)
    repo.garbage_collect(now())
    return repo


def has_index(repo: Repository) -> bool:
    return any(key == PATH for key, _ in repo.storage.list_objects())


def refs_of(repo: Repository) -> RefStoreV2:
    refs = repo._refs
    assert isinstance(refs, RefStoreV2)
    return refs


def made_of(ids: Any) -> ReachableIndex:
    return ReachableIndex(ids, ids, IdIndex(ids))


def reads(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the paths that a repository reads from now on."""
    seen: list[str] = []
    kind = type(repo.storage)
    for name in ("get", "get_range"):
        original = getattr(kind, name)

        def record(storage: Storage, path: str, *args: Any, original: Any = original) -> Any:
            seen.append(path)
            return original(storage, path, *args)

        monkeypatch.setattr(kind, name, record)
    return seen


def full_dry_run(repo: Repository, moment: Any) -> tuple[GCSummary, list[str]]:
    """Return what a collection without an index would delete."""
    data = repo.storage.get(PATH)[0]
    repo.storage.delete([PATH])
    try:
        return repo.garbage_collect(moment, dry_run=True), list(repo.find_garbage(moment)["object"])
    finally:
        repo.storage.put(PATH, data)


def test_second_incremental_collection_reads_only_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = collected_once()
    commit(repo, 100)
    seen = reads(repo, monkeypatch)

    repo.garbage_collect(now())

    assert len([path for path in seen if path.startswith("snapshots/")]) == 1
    assert len([path for path in seen if path.startswith("manifests/")]) == 1
    assert values(repo)[4] == 100


def test_index_is_not_written_for_a_few_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable_index, "_FEW_FILES", 64)

    repo = collected_once()

    assert not has_index(repo)
    assert refs_of(repo).load().extra is None


def test_large_repositories_have_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable_index, "_MAX_IDS", 10)

    assert not has_index(collected_once())


def test_dry_run_writes_nothing() -> None:
    repo = repository()
    commit(repo, 1)

    repo.garbage_collect(now(), dry_run=True)
    repo.find_garbage(now())

    assert not has_index(repo)


def test_repository_of_version_1_has_no_index() -> None:
    repo = repository(1)
    commit(repo, 1)

    repo.garbage_collect(now())

    assert not has_index(repo)


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "longer", "forged", "older"])
def test_unusable_reachability_index_does_not_change_the_collection(damage: str) -> None:
    repo = collected_once()
    older = repo.storage.get(PATH)[0]
    for value in range(20, 24):
        commit(repo, value)
    repo.garbage_collect(now())
    data = repo.storage.get(PATH)[0]
    forged = made_of(refs_of(repo).load().snapshots.ids).encode()
    before = objects(repo.storage)
    if damage == "missing":
        repo.storage.delete([PATH])
    else:
        changed = {
            "truncated": data[:-5],
            "flipped": data[:-1] + bytes([data[-1] ^ 1]),
            "longer": data + bytes(12),
            "forged": forged,
            "older": older,
        }
        repo.storage.put(PATH, changed[damage])

    summary = repo.garbage_collect(now())

    assert summary == GCSummary()
    assert objects(repo.storage) == before
    assert values(repo) == [0, 1, 2, 3, 20, 21, 22, 23]


@pytest.mark.parametrize(
    "mark", [b"another library", reachable_index._MARK, reachable_index._MARK + b"x" * 99]
)
def test_unknown_extra_data_in_the_repo_info_is_not_taken_for_an_index(mark: bytes) -> None:
    repo = collected_once()
    refs_of(repo).update(lambda info: (replace(info, extra=mark), UpdateType.MetadataChanged()))
    for value in range(20, 24):
        commit(repo, value)

    repo.garbage_collect(now())

    kept = refs_of(repo).load().extra
    assert kept == mark if mark == b"another library" else kept is not None and kept != mark
    assert values(repo) == [0, 1, 2, 3, 20, 21, 22, 23]


def test_index_whose_ids_are_not_sorted_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = collected_once()
    info = refs_of(repo).load()
    ids = info.snapshots.ids
    mark = reachable_index.write_index(repo.storage, ReachableIndex(ids[::-1], ids, IdIndex(ids)))

    index = reachable_index.read_index(repo.storage, reachable_index.add_mark(info, mark), ids)

    assert len(index.snapshots) == 0


def test_expired_snapshots_are_collected_with_their_objects() -> None:
    repo = collected_once()
    for value in range(9, 17):  # all chunks again
        commit(repo, value)
    repo.expire_snapshots(now())
    moment = now()
    expected, _ = full_dry_run(repo, moment)

    summary = repo.garbage_collect(moment)

    assert summary == expected
    assert summary.chunks_deleted == 6
    assert values(repo) == [16, 9, 10, 11, 12, 13, 14, 15]


def test_gc_after_reset_deletes_objects_in_the_index() -> None:
    repo = collected_once()
    first = list(repo.ancestry(branch="main"))[-2].id
    repo.reset_branch("main", first)

    assert repo.garbage_collect(now()).chunks_deleted == 6


def test_lost_manifest_stops_the_collection_as_without_an_index() -> None:
    repo = collected_once()
    commit(repo, 30)
    lost = min(key for key in objects(repo.storage) if key.startswith("manifests/"))
    repo.storage.delete([lost])
    before = objects(repo.storage)

    with pytest.raises(IcechunkError, match=lost.split("/")[1]):
        repo.garbage_collect(now())

    assert objects(repo.storage) == before


def test_failed_write_of_the_index_does_not_stop_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    commit(repo, 1)
    put = type(repo.storage).put

    def fail(storage: Storage, path: str, *args: Any, **options: Any) -> Any:
        if path == PATH:
            raise IcechunkError("disk full")
        return put(storage, path, *args, **options)

    monkeypatch.setattr(type(repo.storage), "put", fail)

    assert repo.garbage_collect(now()) == GCSummary()
    assert refs_of(repo).load().extra is None


@pytest.mark.parametrize("seed", range(4))
def test_garbage_collection_is_the_same_with_and_without_an_index(seed: int) -> None:
    rng = random.Random(seed)
    repo = repository()
    repo.create_branch("other", next(iter(repo.ancestry(branch="main"))).id)
    number = 0
    for _ in range(8):
        for _ in range(rng.randrange(4)):
            number += 1
            commit(repo, number, rng.choice(["main", "other"]))
        match rng.randrange(6):
            case 0:
                repo.expire_snapshots(now())
            case 1:
                history = list(repo.ancestry(branch="other"))
                repo.reset_branch("other", rng.choice(history[:-1] or history).id)
            case 2:
                repo.create_tag(f"t{number}-{rng.random()}", repo.lookup_branch("main"))
            case 3:
                for tag in list(repo.list_tags())[:1]:
                    repo.delete_tag(tag)
            case 4 if has_index(repo):
                data = bytearray(repo.storage.get(PATH)[0])
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                repo.storage.put(PATH, bytes(data))
        wanted = values(repo), values(repo, branch="other")
        moment = now()
        if has_index(repo):
            expected, garbage = full_dry_run(repo, moment)
            assert list(repo.find_garbage(moment)["object"]) == garbage
            assert repo.garbage_collect(moment) == expected
        else:
            repo.garbage_collect(moment)
        assert (values(repo), values(repo, branch="other")) == wanted
        assert repo.verify("chunks").ok


def test_index_survives_commits_and_is_sorted() -> None:
    repo = collected_once()
    commit(repo, 50)

    info = refs_of(repo).load()
    index = reachable_index.read_index(repo.storage, info, info.snapshots.ids)

    assert len(index.snapshots) == len(info.snapshots) - 1
    assert len(index.chunks) == 6
    assert np.array_equal(index.snapshots, np.unique(index.snapshots, axis=0))
