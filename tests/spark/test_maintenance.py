"""Compare maintenance on Spark with maintenance on threads."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, RetentionPolicy
from icefloe.cli import main as app
from icefloe.errors import InvalidInputError, StorageError
from icefloe.export import export_zarr
from icefloe.spark.maintenance import on_spark, to_dataframe
from icefloe.storage import in_memory_storage, local_filesystem_storage
from tests.support.format import golden
from tests.support.histories import objects, values

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
]


def make(folder: Path) -> Repository:
    """Create a repository with twelve commits on two branches, and some garbage."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = Repository.create(local_filesystem_storage(str(folder)), config=config)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), dtype="i4")
    repo.create_branch("dev", session.commit("array"))
    for step in range(10):
        session = repo.writable_session("dev" if step % 3 == 0 else "main")
        zarr.open_array(session.store, path="a")[step % 4] = step + 1
        session.commit(f"step {step}")
    repo.retain(RetentionPolicy(last=2))
    return repo


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("upkeep") / "repo"
    make(folder)
    return folder


def twin(original: Path, tmp_path: Path, name: str) -> Repository:
    """Copy the folder, so that both executors start with the same repository."""
    shutil.copytree(original, tmp_path / name)
    return Repository.open(local_filesystem_storage(str(tmp_path / name)))


def test_tables_and_gc_equal_those_without_spark(spark: Any, original: Path, tmp_path: Path) -> None:
    here, there = (twin(original, tmp_path, name) for name in ("threads", "spark"))
    moment = datetime.now(UTC)

    frame = to_dataframe(spark, on_spark(spark, there).find_garbage(moment))
    table = here.find_garbage(moment)

    assert frame.columns == table.names
    assert {row["object"] for row in frame.collect()} == set(table["object"])
    big = frame.where("kind = 'chunk' and bytes > 0").count()
    assert big == sum(table["kind"] == "chunk") > 0
    summary = on_spark(spark, there).garbage_collect(moment)
    assert summary == here.garbage_collect(moment)
    assert objects(there.storage) == objects(here.storage)


def test_verify_and_statistics_equal_those_without_spark(spark: Any, original: Path, tmp_path: Path) -> None:
    repo = twin(original, tmp_path, "repo")
    recorded = on_spark(spark, repo).record_checksums()
    assert recorded > 0
    assert repo.record_checksums() == 0
    assert to_dataframe(spark, on_spark(spark, repo).verify("chunks").table()).count() == 0
    assert on_spark(spark, repo).chunk_storage_stats() == repo.chunk_storage_stats()
    by_snapshot = to_dataframe(spark, on_spark(spark, repo).storage_stats(by="snapshot"))
    assert [row["snapshot"] for row in by_snapshot.collect()] == list(
        repo.storage_stats(by="snapshot")["snapshot"]
    )
    by_array = to_dataframe(spark, on_spark(spark, repo).storage_stats(by="array"))
    assert [row.asDict() for row in by_array.collect()] == list(repo.storage_stats(by="array").rows())
    (lost, *_) = [key for key in objects(repo.storage) if key.startswith("chunks/")]
    repo.storage.delete([lost])
    (in_use, *_) = repo.list_manifest_files(repo.lookup_branch("main"))
    manifest = f"manifests/{in_use.id}"
    data, _ = repo.storage.get(manifest)
    repo.storage.put(manifest, data[: len(data) // 2])
    again = Repository.open(repo.storage)

    found = to_dataframe(spark, on_spark(spark, again).verify("objects", checksums=True).table()).collect()

    expected = Repository.open(repo.storage).verify("objects", checksums=True).table()
    assert {(row["kind"], row["object"]) for row in found} == set(
        zip(expected["kind"], expected["object"], strict=True)
    )
    with pytest.raises(icefloe.IcechunkError, match="manifests/"):
        on_spark(spark, again).garbage_collect(datetime.now(UTC))


def test_clone_export_and_rewrite_equal_those_without_spark(
    spark: Any, original: Path, tmp_path: Path
) -> None:
    repo = twin(original, tmp_path, "repo")
    here, there = (local_filesystem_storage(str(tmp_path / name)) for name in ("copy1", "copy2"))

    on_spark(spark, repo).clone_to(there, read_back=True)
    repo.clone_to(here)

    assert objects(there) == objects(here)
    assert Repository.open(there).verify("chunks").ok
    session = repo.readonly_session("main")
    target = local_filesystem_storage(str(tmp_path / "plain"))
    report = export_zarr(session, target, executor=on_spark(spark, repo).executor)
    plain = zarr.open_array(str(tmp_path / "plain"), path="a", mode="r")
    assert np.asarray(plain[:]).tolist() == values(repo)
    assert report.chunks_copied == len([value for value in values(repo) if value])
    before, count = values(repo), len(objects(repo.storage))
    split = repo.reopen(
        icefloe.RepositoryConfig(
            manifest=icefloe.ManifestConfig(
                splitting=icefloe.ManifestSplittingConfig.from_dict(
                    {icefloe.ManifestSplitCondition.AnyArray(): {icefloe.ManifestSplitDimCondition.Any(): 2}}
                )
            )
        )
    )
    id = on_spark(spark, split).rewrite_manifests("split", branch="main")
    assert len(repo.list_manifest_files(id)) == 2
    assert len(objects(repo.storage)) == count + 2 + 2  # manifests, a snapshot and its log
    assert values(repo) == before


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run a command on Spark, and return the JSON that it prints."""
    assert app.main([*words, "--json", "--executor", "spark:local[2]"]) == 0
    return json.loads(capsys.readouterr().out)


def test_commands_rewrite_manifests_on_spark(
    spark: Any, original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = twin(original, tmp_path, "repo")
    before, objects_before = values(repo), objects(repo.storage)
    (was,) = repo.list_manifest_files(repo.lookup_branch("main"))

    done = answer(capsys, "rewrite-manifests", str(tmp_path / "repo"))

    (now,) = repo.list_manifest_files(done["snapshot"])
    assert done["manifests"] == 1
    assert (now.id != was.id, now.num_chunk_refs) == (True, was.num_chunk_refs)
    assert values(Repository.open(repo.storage)) == before
    assert len(objects(repo.storage).keys() - objects_before) == 3  # the manifest, a snapshot and its log
    assert spark.range(3).count() == 3  # a session that was active before stays open


@pytest.mark.parametrize("name", ["v1-1.1.21-expire_gc", "handmade-004-alpha12"])
def test_commands_migrate_on_spark(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    here, there = (golden.unpack(name, tmp_path / side) / "repo" for side in ("threads", "spark"))

    answer(capsys, "migrate", str(there))
    assert app.main(["migrate", str(here)]) == 0

    ours, theirs = (Repository.open(local_filesystem_storage(str(place))) for place in (there, here))
    assert ours.spec_version == theirs.spec_version == icefloe.SpecVersion.v2
    assert ours.list_branches() == theirs.list_branches()
    assert [info.id for info in ours.ancestry(branch="main")] == [
        info.id for info in theirs.ancestry(branch="main")
    ]
    assert ours.verify("objects").ok


def test_in_memory_repository_is_rejected(spark: Any) -> None:
    repo = Repository.create(in_memory_storage())

    with pytest.raises(InvalidInputError, match="memory"):
        on_spark(spark, repo).find_garbage(datetime.now(UTC))


def test_executor_failure_stops_clone_with_its_message(spark: Any, original: Path, tmp_path: Path) -> None:
    repo = twin(original, tmp_path, "repo")
    target = tmp_path / "copy"
    target.mkdir()
    (target / "chunks").write_text("in the way")

    with pytest.raises((StorageError, icefloe.IcechunkError)):
        on_spark(spark, repo).clone_to(local_filesystem_storage(str(target)))

    assert not (target / "repo").exists()
