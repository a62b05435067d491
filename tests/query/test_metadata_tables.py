"""Read metadata tables without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.query.metadata_tables import TABLES, View, get_metadata_table
from icefloe.query.spark_types import to_ddl
from tests.support.spark.weather import CHUNKS, put, weather


@pytest.fixture(scope="module")
def repo() -> icefloe.Repository:
    config = icefloe.RepositoryConfig.default()
    container = icefloe.VirtualChunkContainer("s3://bucket/", icefloe.s3_store("us-east-1"))
    config.set_virtual_chunk_container(container)
    config.inline_chunk_threshold_bytes = 64
    made = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    put(made, weather(), CHUNKS)
    made.create_tag("v1", made.lookup_branch("main"))
    session = made.writable_session("main")
    zarr.create_array(session.store, name="outside", shape=(4,), chunks=(2,), dtype="i8")
    session.store.set_virtual_ref(
        "outside/c/0", "s3://bucket/file.nc", offset=10, length=16, checksum="etag1"
    )
    zarr.open_array(session.store, path="rain", mode="r+")[0, 0, 0] = 7
    session.commit("more", {"by": "test"})
    return made


def contents(repo: icefloe.Repository, name: str, **versions: str) -> list[dict[str, Any]]:
    earlier = repo.readonly_session(tag=versions["start"]) if "start" in versions else None
    table = get_metadata_table(name)
    view = View(repo, repo.readonly_session(versions.get("branch", "main")), earlier)
    batches = [batch for order in table.tasks(view) for batch in table.read(view, order)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_refs_table_lists_branches_and_tags(repo: icefloe.Repository) -> None:
    found = contents(repo, "refs")

    assert [(row["kind"], row["name"], row["snapshot_id"]) for row in found] == [
        ("branch", "main", repo.lookup_branch("main")),
        ("tag", "v1", repo.lookup_tag("v1")),
    ]
    assert found[0]["message"] == "more"


def test_snapshots_table_lists_all_snapshots(repo: icefloe.Repository) -> None:
    found = contents(repo, "snapshots")

    ancestry = list(repo.ancestry(branch="main"))
    assert [row["snapshot_id"] for row in found] == [info.id for info in ancestry]
    assert [row["parent_id"] for row in found] == [info.parent_id for info in ancestry]
    assert [row["committed_at"] for row in found] == [info.written_at for info in ancestry]
    assert json.loads(found[0]["metadata"])["by"] == "test"


def test_ops_table_lists_operations(repo: icefloe.Repository) -> None:
    found = contents(repo, "ops")

    assert len(found) == len(list(repo.ops_log()))
    assert "TagCreated" in {row["kind"] for row in found}
    assert json.loads(next(row["details"] for row in found if row["kind"] == "TagCreated"))["name"] == "v1"


def test_nodes_table_describes_groups_and_arrays(repo: icefloe.Repository) -> None:
    found = {row["path"]: row for row in contents(repo, "nodes")}

    assert found["/"]["kind"] == "group"
    assert found["/t2m"]["shape"] == [10, 6, 8]
    assert found["/t2m"]["chunk_shape"] == [4, 3, 4]
    assert found["/t2m"]["num_chunks"] == [3, 2, 2]
    assert found["/t2m"]["dimension_names"] == ["time", "lat", "lon"]
    assert found["/t2m"]["dtype"] == "float32"
    assert json.loads(found["/t2m"]["attributes"])["units"] == "K"


def test_manifests_table_lists_manifests(repo: icefloe.Repository) -> None:
    found = contents(repo, "manifests")

    files = repo.list_manifest_files(repo.lookup_branch("main"))
    assert {row["manifest_id"] for row in found} == {info.id for info in files}
    assert sum(row["num_chunk_refs"] for row in found) == sum(info.num_chunk_refs for info in files)
    assert any("/t2m" in row["arrays"] for row in found)


def test_chunks_table_lists_references(repo: icefloe.Repository) -> None:
    found = contents(repo, "chunks")
    session = repo.readonly_session("main")

    rain = [row for row in found if row["path"] == "/rain"]
    assert sorted(tuple(row["coords"]) for row in rain) == [
        (i, j, k) for i in range(3) for j in range(2) for k in range(2)
    ]
    for row in found:
        assert row["kind"] == session.chunk_type(row["path"], row["coords"]).name
    (outside,) = (row for row in found if row["path"] == "/outside")
    assert (outside["location"], outside["offset"], outside["length"]) == ("s3://bucket/file.nc", 10, 16)
    assert outside["etag"] == "etag1"
    native = next(row for row in found if row["kind"] == "native")
    assert native["location"].startswith("chunks/")
    inline = next(row for row in found if row["kind"] == "inline")
    assert inline["location"] is None
    assert 0 < inline["length"] <= 64


def test_large_manifests_get_their_own_task(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.query.metadata_tables._REFS_PER_TASK", 1)
    view = View(repo, repo.readonly_session("main"))

    tasks = get_metadata_table("chunks").tasks(view)

    assert len(tasks) == len([ref for order in tasks for ref in order])
    assert len(contents(repo, "chunks")) == sum(row["num_chunk_refs"] for row in contents(repo, "manifests"))


def test_diff_table_lists_changes(repo: icefloe.Repository) -> None:
    found = contents(repo, "diff", start="v1")

    assert {(row["change"], row["path"]) for row in found} >= {
        ("new array", "/outside"),
        ("updated chunk", "/rain"),
    }
    assert next(row["coords"] for row in found if row["path"] == "/rain") == [0, 0, 0]
    with pytest.raises(InvalidInputError, match="the option fromVersion"):
        contents(repo, "diff")


def test_storage_table_sums_bytes(repo: icefloe.Repository) -> None:
    found = {row["path"]: row for row in contents(repo, "storage")}

    chunks = [row for row in contents(repo, "chunks") if row["path"] == "/t2m"]
    assert found["/t2m"]["chunks"] == len(chunks) == 12
    assert found["/t2m"]["bytes"] == sum(row["length"] for row in chunks)
    assert found["/outside"]["virtual_bytes"] == 16
    assert found["/time"]["inline_chunks"] == 1


def test_unknown_table_is_rejected() -> None:
    assert get_metadata_table("REFS") is TABLES["refs"]
    with pytest.raises(InvalidInputError, match="no table 'snapshot'; did you mean 'snapshots'"):
        get_metadata_table("snapshot")


@pytest.mark.parametrize("name", list(TABLES))
def test_all_columns_have_spark_types(name: str) -> None:
    assert to_ddl(get_metadata_table(name).schema).startswith("`")
