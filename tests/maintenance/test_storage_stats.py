"""Storage statistics and estimates, compared with the effect of a collection."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe
from icefloe import Repository, RetentionPolicy
from icefloe._internal.table import Table
from icefloe.format.manifest import InlineRef, NativeRef
from icefloe.format.snapshot import ArrayNodeData
from icefloe.storage import in_memory_storage
from tests.support.histories import commit, names, now, overwrite_ten_times, repository


def chunk_bytes(repo: Repository) -> int:
    """Return the size of all chunk objects."""
    return sum(size for _, size in repo.storage.list_objects(prefix="chunks"))


def random_history(seed: int) -> Repository:
    """Create random commits to three arrays, one of them inline, on two branches."""
    chance = random.Random(seed)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=20)
    repo = Repository.create(in_memory_storage(), config=config)
    session = repo.writable_session("main")
    for name, size in (("a", 10), ("b", 10), ("small", 2)):
        zarr.create_array(
            session.store, name=name, shape=(5 * size,), chunks=(size,), dtype="i4", compressors=None
        )
    session.commit("arrays")
    repo.create_branch("dev", repo.lookup_branch("main"))
    for step in range(1, 13):
        session = repo.writable_session(chance.choice(["main", "dev"]))
        array = zarr.open_array(session.store, path=chance.choice(["a", "b", "small"]))
        at, size = chance.randrange(5), array.chunks[0]
        array[at * size : (at + 1) * size] = step
        session.commit(f"step {step}")
    return repo


def chunks_of(repo: Repository, snapshot: str) -> dict[bytes, int]:
    """Return every chunk of a snapshot with its length, read one by one."""
    workspace = repo.readonly_session(snapshot_id=snapshot)._workspace
    found: dict[bytes, int] = {}
    for node in workspace.arrays_with_chunks(workspace.paths()):
        assert isinstance(node.node_data, ArrayNodeData)
        for part in node.node_data.manifests:
            refs = workspace.manifest_refs(node, part)
            for row in range(len(refs)):
                match refs.ref(row):
                    case NativeRef(chunk, _, length):
                        found[bytes(chunk)] = length
                    case InlineRef(data):
                        found[bytes(part.id) + bytes([row])] = len(data)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_unique_bytes_belong_to_one_snapshot(seed: int) -> None:
    repo = random_history(seed)
    ids = {info.id for branch in ("main", "dev") for info in repo.ancestry(branch=branch)}
    chunks = {id: chunks_of(repo, id) for id in ids}

    table = repo.storage_stats(by="snapshot")

    assert set(table["snapshot"]) == ids
    for row in table.rows():
        own = chunks.pop(row["snapshot"])
        others = {chunk for each in chunks.values() for chunk in each}
        assert row["native_bytes"] + row["inlined_bytes"] == sum(own.values())
        assert row["unique_bytes"] == sum(size for chunk, size in own.items() if chunk not in others)
        assert row["unique_bytes"] + row["shared_bytes"] == sum(own.values())
        chunks[row["snapshot"]] = own


@pytest.mark.parametrize("seed", range(4))
def test_bytes_of_arrays_add_up_to_the_total(seed: int) -> None:
    repo = random_history(seed)

    table = repo.storage_stats(by="array")

    stats = repo.chunk_storage_stats()
    assert int(table["native_bytes"].sum()) == stats.native_bytes
    assert int(table["inlined_bytes"].sum()) == stats.inlined_bytes
    assert int(table["unique_bytes"].sum()) == stats.native_bytes + stats.inlined_bytes
    assert set(table["array"]) <= {"/a", "/b", "/small"}


def test_storage_of_one_snapshot_is_measured() -> None:
    repo = overwrite_ten_times()
    one = len(repo.storage.get(f"chunks/{sorted(names(repo, 'chunks'))[0]}")[0])

    table = repo.storage_stats(by="array", snapshot_id=repo.lookup_branch("main"))

    assert list(table.rows()) == [
        {
            "array": "/a",
            "chunks": 1,
            "native_bytes": one,
            "virtual_bytes": 0,
            "inlined_bytes": 0,
            "unique_bytes": one,
            "shared_bytes": 0,
        }
    ]


def test_deleted_array_is_identified_by_node_id() -> None:
    repo = repository()
    commit(repo, 1)
    session = repo.writable_session("main")
    del zarr.open_group(session.store)["a"]
    session.commit("without a")

    (row,) = repo.storage_stats(by="array").rows()

    assert row["array"].startswith("(deleted) ")


def test_shared_chunk_is_not_unique() -> None:
    repo = repository()
    commit(repo, 1)
    commit(repo, 2)

    by_message = {row["message"]: row for row in repo.storage_stats(by="snapshot").rows()}

    assert by_message["write 1"]["unique_bytes"] == 0
    assert by_message["write 2"]["unique_bytes"] * 2 == by_message["write 2"]["native_bytes"]


@pytest.mark.parametrize("version", [1, 2])
def test_estimate_matches_the_freed_storage(version: int) -> None:
    repo = repository(version)
    for value in range(1, 20):
        commit(repo, value)
    policy = RetentionPolicy(last=3)

    promised = repo.estimate_expiration(policy=policy)
    repo.retain(policy)
    done = repo.garbage_collect(now())

    assert (promised.snapshots, promised.manifests, promised.chunks) == (
        done.snapshots_deleted,
        done.manifests_deleted,
        done.chunks_deleted,
    )
    assert promised.chunks > 0


def test_reclaimable_bytes_of_an_expiration_are_estimated() -> None:
    repo = overwrite_ten_times()
    moment = now()
    commit(repo, 8)

    promised = repo.estimate_expiration(older_than=moment)
    repo.expire_snapshots(moment)

    assert promised.chunks == repo.garbage_collect(now()).chunks_deleted == 10


def test_garbage_table_contains_reasons() -> None:
    repo = overwrite_ten_times()
    repo.expire_snapshots(now())
    moment = now()
    table = repo.find_garbage(moment)
    summary = repo.garbage_collect(moment)

    assert isinstance(table, Table)
    assert int(table["bytes"].sum()) == summary.bytes_deleted
    kinds = dict(zip(*np.unique(table["kind"].astype(str), return_counts=True), strict=True))
    assert kinds == {"chunk": 9, "manifest": 9, "snapshot": 10}
    assert not any(repo.storage.exists(path) for path in table["object"])
    assert set(table["reason"]) == {
        "no branch or tag leads to it",
        "no snapshot uses it",
        "no manifest refers to it",
    }
    assert (table["age_s"] > 0).all()


def test_table_converts_to_arrow_and_pandas() -> None:
    repo = overwrite_ten_times()
    repo.expire_snapshots(now())

    table = repo.find_garbage(now())

    arrow = table.to_arrow()
    assert arrow.schema.field("written_at").type == pa.timestamp("us", "UTC")
    assert arrow.schema.field("object").type == pa.string()
    assert table.to_pandas()["bytes"].sum() == table["bytes"].sum()
    assert "rows: object, kind" in repr(table)
    with pytest.raises(ValueError, match="different lengths"):
        Table({"a": [1, 2], "b": [1]})
