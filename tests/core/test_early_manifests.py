"""Manifests that are written before the commit: reused if possible, read otherwise."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import (
    ConflictDetector,
    ConflictType,
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    Repository,
    RepositoryConfig,
    in_memory_storage,
)
from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe.core.changeset import ChangeSet
from icefloe.core.changeset_codec import decode_changes, encode_changes
from icefloe.core.commit.flush import flush, make_log
from icefloe.core.early_manifests import EarlyManifest
from icefloe.distributed import receipt
from icefloe.errors import ConflictError, FormatError, RebaseFailedError, StorageError
from icefloe.format import chunk_regions, transaction_log
from icefloe.format.snapshot import ArrayNodeData, ManifestFileInfo
from icefloe.session import ForkSession, Session
from tests.support.histories import now

GRID = (8, 3)
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


def repository(window: int = 2, names: Sequence[str] = ("a",), version: int = 2) -> Repository:
    """Create an array of 8 x 3 chunks, with `window` rows of chunks per manifest."""
    rules: Any = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Axis(0): window}}
    splitting = ManifestSplittingConfig.from_dict(rules)
    config = RepositoryConfig(manifest=ManifestConfig(splitting=splitting), inline_chunk_threshold_bytes=0)
    repo = Repository.create(in_memory_storage(), config, spec_version=version)
    session = repo.writable_session("main")
    for name in names:
        zarr.create_array(session.store, name=name, shape=GRID, chunks=(1, 1), dtype="i4", fill_value=-1)
    session.commit("arrays")
    return repo


def array(session: Session, name: str = "a") -> Any:
    return zarr.open_array(session.store, path=name)


def manifests(repo: Repository, name: str = "a") -> dict[tuple[range, ...], str]:
    node = repo.readonly_session("main")._workspace.array(f"/{name}")
    assert isinstance(node.node_data, ArrayNodeData)
    return {ref.extents: str(ref.id) for ref in node.node_data.manifests}


def written(fork: ForkSession, rows: range, value: int, window: Sequence[range] | None = None) -> bytes:
    """Write rows in a fork, as a worker does."""
    mine = fork.fork()
    array(mine)[rows.start : rows.stop] = value
    mine.write_manifests("/a", window)
    return receipt(mine)


def test_commit_uses_early_manifests_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    session = repo.writable_session("main")
    fork = session.fork()
    receipts = [written(fork, range(start, start + 2), start) for start in range(0, 8, 2)]
    monkeypatch.setattr(EarlyManifest, "refs", None)  # the committer reads none of them

    session._merge_receipts(receipts)
    session.commit("all")

    assert list(manifests(repo)) == [(range(start, start + 2), range(3)) for start in range(0, 8, 2)]
    assert array(repo.readonly_session("main"))[:, 0].tolist() == [0, 0, 2, 2, 4, 4, 6, 6]
    (log,) = (each for each in [repo.diff(from_snapshot_id=_first(repo), to_branch="main")])
    assert len(log.updated_chunks["/a"]) == 24


def _first(repo: Repository) -> str:
    return [info.id for info in repo.ancestry(branch="main")][1]


def test_manifests_in_a_shared_window_are_rewritten() -> None:
    """Two writers share a window, one overwrites committed chunks, one single writes, and one is alone."""
    repo = repository(window=4)
    session = repo.writable_session("main")
    fork = session.fork()
    session._merge_receipts([written(fork, range(2), 1), written(fork, range(2, 4), 2)])
    session.commit("two in one window")
    before = manifests(repo)
    assert list(before) == [(range(4), range(3))]

    session = repo.writable_session("main")
    fork = session.fork()
    receipts = [written(fork, range(1, 3), 3), written(fork, range(4, 6), 4)]
    session._merge_receipts(receipts)
    array(session)[5, 2] = 9
    session.commit("over what was there")

    found = array(repo.readonly_session("main"))[...]
    assert found[:, 0].tolist() == [1, 3, 3, 2, 4, 4, -1, -1]
    assert found[5, 2] == 9
    assert list(manifests(repo)) == [(range(4), range(3)), (range(4, 6), range(3))]


def test_later_writes_replace_early_manifests_in_every_representation() -> None:
    repo = repository(window=8)
    session = repo.writable_session("main")
    fork = session.fork()
    plain = fork.fork()
    array(plain)[0:3] = 5
    receipts = [written(fork, range(2), 1), receipt(plain), written(fork, range(1, 2), 7)]

    session._merge_receipts(receipts)

    assert array(session)[:4, 0].tolist() == [5, 7, 5, -1]
    session.commit("in order")
    assert array(repo.readonly_session("main"))[:4, 0].tolist() == [5, 7, 5, -1]


def test_references_outside_the_window_are_dropped() -> None:
    repo = repository()
    session = repo.writable_session("main")
    session._merge_receipts([written(session.fork(), range(8), 3, [range(2, 4), range(3)])])

    session.commit("a window")

    assert array(repo.readonly_session("main"))[:, 0].tolist() == [-1, -1, 3, 3, -1, -1, -1, -1]


def test_sparse_windows_and_deletions_are_committed() -> None:
    repo = repository()
    session = repo.writable_session("main")
    array(session)[...] = 1
    session.commit("full")
    session = repo.writable_session("main")
    fork = session.fork()
    mine = fork.fork()
    array(mine)[0, 0] = 5
    array(mine)[1, 2] = 6
    mine.store.delete_sync("a/c/0/1")
    mine.write_manifests("/a")

    session._merge_receipts([receipt(mine)])
    session.commit("sparse")

    assert array(repo.readonly_session("main"))[:2].tolist() == [[5, -1, 1], [1, 1, 6]]


def test_deletions_of_missing_chunks_do_not_prevent_reuse() -> None:
    repo = repository()
    session = repo.writable_session("main")
    mine = session.fork()
    array(mine)[0] = 5
    mine.store.delete_sync("a/c/1/1")
    mine.write_manifests("/a")

    assert not mine._workspace.changes.chunks[mine._workspace.array("/a").id].segments


def test_pickled_fork_keeps_its_manifests(tmp_path: Any) -> None:
    from icefloe import local_filesystem_storage

    source = repository()
    repo = Repository.create(local_filesystem_storage(str(tmp_path / "repo")), source.config)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=GRID, chunks=(1, 1), dtype="i4", fill_value=-1)
    session.commit("array")
    session = repo.writable_session("main")
    fork = session.fork()
    array(fork)[0:2] = 4
    fork.write_manifests("/a")

    back = pickle.loads(pickle.dumps(fork))

    assert array(back)[0, 0] == 4
    array(back)[0, 0] = 5
    session.merge(back)
    session.commit("travelled")
    assert array(repo.readonly_session("main"))[:3, 0].tolist() == [5, 4, -1]


def test_early_manifests_survive_a_concurrent_commit() -> None:
    """The window that the other commit changed is rewritten; the conflict solver decides as usual."""
    from icefloe import BasicConflictSolver, VersionSelection

    repo = repository()
    session = repo.writable_session("main")
    session._merge_receipts([written(session.fork(), range(4), 3)])
    other = repo.writable_session("main")
    array(other)[0, 0] = 8
    other.commit("meanwhile")

    session.commit("late", rebase_with=BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs))

    assert array(repo.readonly_session("main"))[:5, 0].tolist() == [3, 3, 3, 3, -1]


@pytest.mark.parametrize("version", [1, 2])
def test_collected_early_manifest_is_explained(version: int) -> None:
    """Early manifests that share a window are read again, and were not cached by the committing process."""
    repo = repository(window=8, version=version)
    session = repo.writable_session("main")
    receipts = [written(session.fork(), range(start, start + 2), start) for start in (0, 2)]
    Repository.open(repo.storage).garbage_collect(now())
    late = Repository.open(repo.storage).writable_session("main")
    late._merge_receipts(receipts)
    lost = r"manifest .* of /a was deleted by a garbage collection"

    with pytest.raises(StorageError, match=lost):
        late.commit("late")
    with pytest.raises(StorageError, match=lost):
        array(late)[:]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep more than four changed chunks as regions."""
    monkeypatch.setattr(chunk_regions, "BLOCK_CHUNKS", 4)
    monkeypatch.setattr(transaction_log, "BLOCK_CHUNKS", 4)


@pytest.mark.usefixtures("small_blocks")
def test_log_of_early_manifests_lists_all_chunks() -> None:
    repo = repository(names=("a", "b"))
    session = repo.writable_session("main")
    fork = session.fork()
    session._merge_receipts([written(fork, rows, 3) for rows in (range(4, 6), range(3))])
    array(session)[7, 2] = 8
    array(session, "b")[0, 0] = 9

    kept = make_log(session._workspace, SnapshotId.random()).updated_chunks

    id = session.commit("early")

    session = Repository.open(repo.storage).readonly_session("main")
    read = session._workspace.assets.transaction_log(SnapshotId.parse(id)).updated_chunks
    rows = [[row, column] for row in (0, 1, 2, 4, 5) for column in range(3)] + [[7, 2]]
    listed = {node: coords.tolist() for node, coords in read}
    assert listed == {
        session._workspace.array("/a").id: rows,
        session._workspace.array("/b").id: [[0, 0]],
    }
    assert read == kept
    assert len(kept.regions) == 1
    assert not read.regions


@pytest.mark.usefixtures("small_blocks")
def test_conflicts_with_early_manifests_name_all_chunks() -> None:
    repo = repository()
    session, others = repo.writable_session("main"), repo.writable_session("main")
    session._merge_receipts([written(session.fork(), range(4), 3)])
    array(session)[6, 1] = 3
    others._merge_receipts([written(others.fork(), range(3, 7), 4)])
    others.commit("meanwhile")

    with pytest.raises(ConflictError):
        session.commit("late")
    with pytest.raises(RebaseFailedError) as failed:
        session.rebase(ConflictDetector())

    (conflict,) = failed.value.conflicts
    assert conflict.conflict_type is ConflictType.ChunkDoubleUpdate
    assert conflict.conflicted_chunks == [[3, 0], [3, 1], [3, 2], [6, 1]]


def test_smaller_shape_drops_chunks_outside() -> None:
    repo = repository(window=4)
    session = repo.writable_session("main")
    session._merge_receipts([written(session.fork(), range(8), 3)])
    array(session).resize((6, 3))

    session.commit("cut")

    assert list(manifests(repo)) == [(range(4), range(3)), (range(4, 6), range(3))]
    assert array(repo.readonly_session("main"))[...].tolist() == [[3] * 3] * 6


def test_early_manifests_survive_encoding() -> None:
    repo = repository()
    fork = repo.writable_session("main").fork()
    array(fork)[0:2] = 1
    array(fork)[3, 1] = 1
    fork.write_manifests("/a")
    data = encode_changes(fork._workspace.changes)

    back = decode_changes(data, read=fork._workspace.assets.manifest)

    ((id, delta),) = back.chunks.items()
    ours = fork._workspace.changes.chunks[id]
    assert [each.info for each in delta.early] == [each.info for each in ours.early]
    assert np.array_equal(delta.coords(), ours.coords())
    with pytest.raises(FormatError, match="no storage to read it from"):
        decode_changes(data)


def test_receipt_with_inconsistent_chunks_is_rejected() -> None:
    repo = repository()
    fork = repo.writable_session("main").fork()
    array(fork)[0:2] = 1
    fork.write_manifests("/a")
    (delta,) = fork._workspace.changes.chunks.values()
    (early,) = delta.early
    info = ManifestFileInfo(ManifestId.random(), 10, 5)
    changes = ChangeSet(chunks={NodeId(bytes(8)): delta})
    delta.early = [EarlyManifest(early.node, info, early.extents, None, early.read)]

    with pytest.raises(FormatError, match="5 references for 6 chunks"):
        decode_changes(encode_changes(changes), read=early.read)


def test_snapshot_for_a_fork_uses_early_manifests() -> None:
    repo = repository()
    session = repo.writable_session("main")
    session._merge_receipts([written(session.fork(), range(2), 3)])

    made = flush(session._workspace, "look", {}, session.executor, None).snapshot

    assert array(session.fork())[0, 0] == 3
    assert [info.num_chunk_refs for info in made.manifest_files] == [6]


def _committed_half(version: int = 2) -> Repository:
    """Create an array whose first window of four rows contains two committed rows."""
    repo = repository(window=4, version=version)
    session = repo.writable_session("main")
    array(session)[:2] = 1
    session.commit("half a window")
    return repo


def test_early_manifest_contains_committed_references(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = _committed_half()
    session = repo.writable_session("main")
    receipts = [written(session.fork(), range(1, 4), 3), written(session.fork(), range(4, 6), 4)]
    monkeypatch.setattr(EarlyManifest, "refs", None)  # the committer reads neither side

    session._merge_receipts(receipts)
    session.commit("across the seam")

    assert list(manifests(repo)) == [(range(4), range(3)), (range(4, 6), range(3))]
    assert array(repo.readonly_session("main"))[:, 0].tolist() == [1, 3, 3, 3, 4, 4, -1, -1]
    diff = repo.diff(from_snapshot_id=_first(repo), to_branch="main")
    assert diff.updated_chunks == {"/a": [[row, column] for row in range(1, 6) for column in range(3)]}
    assert repo.verify().ok


@pytest.mark.parametrize("rows", [range(1), range(3, 4)], ids=["replaced", "beside"])
def test_early_manifest_with_committed_references_is_joined_again_after_a_commit(rows: range) -> None:
    repo = _committed_half()
    session = repo.writable_session("main")
    session._merge_receipts([written(session.fork(), range(2, 3), 3)])
    other = repo.writable_session("main")
    array(other)[rows.start : rows.stop] = 7
    other.commit("meanwhile")

    session.commit("late", rebase_with=ConflictDetector())

    expected = [1, 1, 3, -1]
    expected[rows.start] = 7
    assert array(repo.readonly_session("main"))[:4, 0].tolist() == expected
    assert repo.verify().ok


@pytest.mark.parametrize("change", ["delete", "write", "shrink"])
def test_early_manifest_with_committed_references_respects_later_changes(change: str) -> None:
    repo = _committed_half()
    session = repo.writable_session("main")
    session._merge_receipts([written(session.fork(), range(2, 4), 3)])
    if change == "delete":
        for column in range(3):
            session.store.delete_sync(f"a/c/0/{column}")
    elif change == "write":
        array(session)[0] = 5
    else:
        array(session).resize((1, 3))
        array(session).resize(GRID)
    expected = array(session)[...].tolist()

    session.commit("changed")

    assert array(repo.readonly_session("main"))[...].tolist() == expected
    assert repo.verify().ok


def test_early_manifest_with_committed_references_survives_encoding() -> None:
    fork = _committed_half().writable_session("main").fork()
    array(fork)[1:3, 1] = 1
    fork.write_manifests("/a")

    back = decode_changes(encode_changes(fork._workspace.changes), read=fork._workspace.assets.manifest)

    ((id, delta),) = back.chunks.items()
    (ours,) = fork._workspace.changes.chunks[id].early
    (read,) = delta.early
    assert read.joined == ours.joined is not None
    assert read.info.num_chunk_refs == 7
    assert read.refs("/a").coords.tolist() == [[1, 1], [2, 1]]


@pytest.mark.usefixtures("small_blocks")
def test_diff_of_very_many_chunks_lists_them_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    session = repo.writable_session("main")
    session._merge_receipts([written(session.fork(), rows, 3) for rows in (range(4, 6), range(3))])
    plain = session.status().updated_chunks["/a"]
    first = session.commit("early")
    session = repo.writable_session("main")
    array(session)[0, 1] = 5
    array(session)[7, 2] = 8
    session.commit("two more")
    listed = repo.diff(from_snapshot_id=_first_of(repo, first), to_branch="main")

    monkeypatch.setattr(chunk_regions, "MAX_LISTED", 4)
    found = repo.diff(from_snapshot_id=_first_of(repo, first), to_branch="main")

    chunks, expected = found.updated_chunks["/a"], [*plain, [7, 2]]
    assert isinstance(chunks, chunk_regions.ListedChunks)
    assert found == listed
    assert chunks == expected
    assert chunks != [*expected[:-1], [7, 1]]
    assert list(chunks) == expected
    assert len(chunks) == len(expected) == 16
    assert chunks[-1] == [7, 2]
    for piece in (slice(3), slice(2, 14), slice(None, None, 3), slice(12, 1, -4), slice(9, 9)):
        assert chunks[piece] == expected[piece]
    assert repr(found) == repr(listed)
    with pytest.raises(IndexError):
        chunks[16]


def _first_of(repo: Repository, commit: str) -> str:
    parent = repo.lookup_snapshot(commit).parent_id
    assert parent is not None
    return parent
