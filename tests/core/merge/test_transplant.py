"""Commits that are applied to another branch as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    Repository,
    RepositoryConfig,
    in_memory_storage,
)
from icefloe._internal.ids import NodeId, SnapshotId
from icefloe.encoding import envelope
from icefloe.errors import FormatError
from icefloe.format import files
from icefloe.format.files import SealedLog, read_transaction_log, write_transaction_log
from icefloe.format.spec import get_spec
from icefloe.format.transaction_log import TransactionLog

Change = Callable[[Any], object]


def commit(repo: Repository, branch: str, change: Change) -> str:
    session = repo.writable_session(branch)
    change(zarr.open_group(session.store))
    name = getattr(change, "__name__", "")
    return session.commit(name, {"by": name})


def start(root: Any) -> None:
    for name in ("a", "b"):
        root.create_array(name, shape=(8,), chunks=(2,), dtype="i8")[:] = np.arange(8)


def write_a(root: Any) -> None:
    root["a"][:4] = -1


def create_c(root: Any) -> None:
    root.create_group("g").create_array("c", data=np.arange(6), chunks=(2,))


def append_to_c(root: Any) -> None:
    root["g/c"].resize((8,))
    root["g/c"][6:] = [6, 7]


def write_b(root: Any) -> None:
    root["b"][4:] = 9


def create_d(root: Any) -> None:
    root.create_array("d", data=np.arange(3))


def delete_b(root: Any) -> None:
    del root["b"]


def create_other_g(root: Any) -> None:
    root.create_group("g")


def write_other_chunk_of_a(root: Any) -> None:
    root["a"][6:] = 5


@pytest.fixture
def repo() -> Repository:
    repo = Repository.create(in_memory_storage())
    repo.create_branch("side", commit(repo, "main", start))
    return repo


def transplant(repo: Repository) -> str | None:
    base = SnapshotId.parse(next(info.id for info in repo.ancestry(branch="side") if info.message == "start"))
    source = SnapshotId.parse(repo.lookup_branch("side"))
    branching = repo._branching()
    possible = branching.can_transplant(base, source, "main")
    tip = branching.transplant(base, source, "main", {"by": "the last"})
    assert possible == (tip is not None)
    return None if tip is None else str(tip)


def test_commits_are_applied_one_by_one_with_their_manifests_and_logs(repo: Repository) -> None:
    for change in (write_a, create_c, append_to_c):
        commit(repo, "side", change)
    for change in (write_b, create_d):
        commit(repo, "main", change)
    manifests = {key for key, _ in repo.storage.list_objects(prefix="manifests")}

    tip = transplant(repo)

    assert tip == repo.lookup_branch("main")
    root: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert root["a"][:].tolist() == [-1] * 4 + [4, 5, 6, 7]
    assert root["b"][:].tolist() == [0, 1, 2, 3, 9, 9, 9, 9]
    assert root["g/c"][:].tolist() == list(range(8))
    assert root["d"][:].tolist() == [0, 1, 2]
    history = list(repo.ancestry(branch="main"))
    assert [info.message for info in history[:3]] == ["append_to_c", "create_c", "write_a"]
    assert [info.metadata["by"] for info in history[:3]] == ["the last", "create_c", "write_a"]
    assert {key for key, _ in repo.storage.list_objects(prefix="manifests")} == manifests
    assert not repo.verify("chunks").findings
    for number in range(3):
        ends = {"from_snapshot_id": history[number + 1].id, "to_snapshot_id": history[number].id}
        their = list(repo.ancestry(branch="side"))
        expected = repo.diff(from_snapshot_id=their[number + 1].id, to_snapshot_id=their[number].id)
        assert repo.diff(**ends).updated_chunks == expected.updated_chunks
    assert repo.merge("side", into="main", message="again").outcome == "up-to-date"


def test_arrays_with_many_manifests_are_applied() -> None:
    every_chunk = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 1}}
    )
    config = RepositoryConfig(manifest=ManifestConfig(splitting=every_chunk))
    repo = Repository.create(in_memory_storage(), config)
    repo.create_branch("side", commit(repo, "main", start))

    def create_many(root: Any) -> None:
        root.create_array("many", data=np.arange(100), chunks=(1,))

    def append_more(root: Any) -> None:
        root["many"].resize((200,))
        root["many"][100:] = 1

    for change in (create_many, append_more):
        commit(repo, "side", change)
    commit(repo, "main", create_d)

    assert transplant(repo) == repo.lookup_branch("main")
    found: Any = zarr.open_array(repo.readonly_session("main").store, path="many", mode="r")
    assert found[:].tolist() == [*range(100), *[1] * 100]
    assert not repo.verify("chunks").findings


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (write_a, write_other_chunk_of_a),
        (create_c, create_other_g),
        (delete_b, create_d),
        (write_b, delete_b),
    ],
)
def test_changes_of_the_same_nodes_are_refused(repo: Repository, theirs: Change, ours: Change) -> None:
    commit(repo, "side", theirs)
    tip = commit(repo, "main", ours)
    before = repo.storage.list_objects()

    assert transplant(repo) is None
    assert repo.lookup_branch("main") == tip
    assert repo.storage.list_objects() == before


def test_children_of_deleted_groups_are_refused(repo: Repository) -> None:
    commit(repo, "main", create_c)
    repo.reset_branch("side", repo.lookup_branch("main"))
    base = SnapshotId.parse(repo.lookup_branch("main"))

    def create_e(root: Any) -> None:
        root["g"].create_group("e")

    def delete_g(root: Any) -> None:
        del root["g"]

    source = SnapshotId.parse(commit(repo, "side", create_e))
    commit(repo, "main", delete_g)

    assert repo._branching().transplant(base, source, "main", {}) is None


def test_version_1_is_refused() -> None:
    repo = Repository.create(in_memory_storage(), spec_version=1)
    repo.create_branch("side", commit(repo, "main", start))
    commit(repo, "side", write_a)

    assert transplant(repo) is None


def _sealed_log() -> tuple[bytes, SnapshotId, SnapshotId]:
    """Return a transaction log file with incompressible coordinates, its id, and another id."""
    own, other = SnapshotId.random(), SnapshotId.random()
    numbers = np.random.default_rng(0).choice(1 << 31, 3000, replace=False).astype(np.uint32)
    log = TransactionLog.of(own, {NodeId.random(): np.sort(numbers).reshape(-1, 1)})
    return write_transaction_log(log, get_spec(2, "test")), own, other


@pytest.mark.parametrize("part_bytes", [8, 200, 10_000], ids=["id in a later part", "parts", "one part"])
def test_large_log_is_copied_in_parts(monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    data, own, other = _sealed_log()
    expected = SealedLog(data, own).with_id(other)
    monkeypatch.setattr(files, "LARGE_LOG_BYTES", 0)
    monkeypatch.setattr(envelope, "_PART_BYTES", part_bytes)

    copied = SealedLog(data, own).with_id(other)

    assert read_transaction_log(copied, other) == read_transaction_log(expected, other)
    for damaged in (data[:-1], data + b"x", data[:500] + bytes(len(data) - 500), data[:39]):
        with pytest.raises(FormatError):
            SealedLog(damaged, own).with_id(other)
