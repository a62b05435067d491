"""Packs: many small arrays in one manifest."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import (
    BasicConflictSolver,
    ConflictDetector,
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    Repository,
    RepositoryConfig,
    in_memory_storage,
)
from icefloe.core.commit import packs
from tests.support.histories import now


def packed_repository(version: int = 2, inline: int = 0, **manifest: Any) -> Repository:
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=inline,
        manifest=ManifestConfig(pack_small_arrays=True, **manifest),
    )
    repo = Repository.create(in_memory_storage(), config, spec_version=version)
    repo.save_config()
    return repo


def create(repo: Repository, names: list[str], chunks: int = 3) -> None:
    session = repo.writable_session("main")
    for number, name in enumerate(names):
        array = zarr.create_array(session.store, name=name, shape=(chunks,), chunks=(1,), dtype="i4")
        array[:] = np.arange(chunks) + 10 * number
    session.commit("create")


def write(repo: Repository, name: str, value: int, **options: Any) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path=name)[0] = value
    session.commit(f"write {name}", **options)


def read(repo: Repository, name: str) -> list[int]:
    array = zarr.open_array(repo.readonly_session("main").store, path=name, mode="r")
    found: list[int] = np.asarray(array[...]).tolist()
    return found


def manifests(repo: Repository) -> dict[str, set[str]]:
    """Return the arrays of each manifest of the tip."""
    found: dict[str, set[str]] = {}
    for node in repo.readonly_session("main")._workspace.base.nodes:
        for ref in getattr(node.node_data, "manifests", ()):
            found.setdefault(str(ref.id), set()).add(node.path)
    assert set(found) == {info.id for info in repo.list_manifest_files(repo.lookup_branch("main"))}
    return found


@pytest.mark.parametrize("version", [1, 2])
def test_small_arrays_share_one_manifest(version: int) -> None:
    repo = packed_repository(version)
    create(repo, ["g/a", "g/b", "h/c"])

    assert list(manifests(repo).values()) == [{"/g/a", "/g/b", "/h/c"}]
    assert [read(repo, name) for name in ("g/a", "g/b", "h/c")] == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
    assert repo.verify("chunks").ok


def test_arrays_are_not_packed_by_default() -> None:
    repo = Repository.create(in_memory_storage())
    create(repo, ["a", "b"])

    assert len(manifests(repo)) == 2


def test_setting_is_stored_and_shown_only_if_it_is_set() -> None:
    assert "pack_small_arrays" not in ManifestConfig().to_plain()
    assert "pack_small_arrays" not in repr(ManifestConfig())
    config = ManifestConfig(pack_small_arrays=True)

    assert ManifestConfig.from_plain(config.to_plain()) == config
    assert "pack_small_arrays=True" in repr(config)
    repo = packed_repository()
    assert Repository.open(repo.storage).config.manifest == config


def test_packs_are_limited_by_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_REFS", 10)
    repo = packed_repository()
    names = [f"a{number}" for number in range(9)]
    create(repo, names)
    create(repo, ["large"], 11)

    found = manifests(repo)

    assert sorted(map(len, found.values())) == [1, 3, 3, 3]
    assert {"/large"} in found.values()
    assert [read(repo, name)[0] for name in names] == list(range(0, 90, 10))


def test_packs_are_limited_by_inline_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_BYTES", 400)
    repo = packed_repository(inline=512)
    create(repo, ["a", "b", "c", "d"])

    assert sorted(map(len, manifests(repo).values())) == [2, 2]


def test_arrays_with_a_splitting_rule_keep_their_manifests() -> None:
    rule = {
        ManifestSplitCondition.name_matches("split"): {ManifestSplitDimCondition.Any(): 2},
    }
    repo = packed_repository(splitting=ManifestSplittingConfig.from_dict(rule))
    create(repo, ["a", "b", "split"])

    assert sorted(map(sorted, manifests(repo).values())) == [["/a", "/b"], ["/split"], ["/split"]]


def test_commit_rewrites_only_packs_that_it_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_REFS", 6)
    repo = packed_repository()
    create(repo, ["a", "b", "c", "d"])
    before = manifests(repo)

    write(repo, "a", 99)

    after = manifests(repo)
    assert [after.get(id) for id, arrays in before.items() if "/a" not in arrays] == [{"/c", "/d"}]
    assert sorted(map(sorted, after.values())) == [["/a", "/b"], ["/c", "/d"]]
    assert read(repo, "a") == [99, 1, 2]
    assert read(repo, "b") == [10, 11, 12]


def test_new_array_is_added_to_the_nearest_pack_with_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_REFS", 7)
    repo = packed_repository()
    create(repo, ["a", "b"])
    create(repo, ["z"])
    create(repo, ["zz"])

    assert [sorted(arrays) for arrays in manifests(repo).values()].count(["/a", "/b", "/z"]) == 1
    assert read(repo, "zz") == [0, 1, 2]


def test_deleted_array_leaves_the_pack_when_it_is_rewritten() -> None:
    repo = packed_repository()
    create(repo, ["a", "b", "c"])
    session = repo.writable_session("main")
    del zarr.open_group(session.store)["b"]
    session.commit("delete")
    write(repo, "a", 5)

    (info,) = repo.list_manifest_files(repo.lookup_branch("main"))

    assert info.num_chunk_refs == 6
    assert read(repo, "c") == [20, 21, 22]


def test_recreated_array_has_no_chunks_of_its_packed_predecessor() -> None:
    repo = packed_repository()
    create(repo, ["a", "b"])
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(2,), chunks=(1,), dtype="i4", overwrite=True)
    zarr.open_array(session.store, path="b")[0] = 7
    session.commit("replace")

    assert read(repo, "a") == [0, 0]
    assert read(repo, "b") == [7, 11, 12]
    assert repo.verify("chunks").ok


def test_resized_and_emptied_arrays_of_a_pack_are_read_correctly() -> None:
    repo = packed_repository()
    create(repo, ["a", "b", "c"])
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a").resize((1,))
    zarr.open_array(session.store, path="b")[:] = 0  # drops all chunks
    zarr.open_array(session.store, path="b").attrs["k"] = 1
    session.commit("shrink")

    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a").resize((3,))
    session.commit("grow")

    assert read(repo, "a") == [0, 0, 0]
    assert read(repo, "b") == [0, 0, 0]
    assert read(repo, "c") == [20, 21, 22]
    assert repo.verify("chunks").ok


def test_changed_attributes_follow_a_rewritten_pack() -> None:
    repo = packed_repository()
    create(repo, ["a", "b"])
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a").attrs["k"] = 1
    zarr.open_array(session.store, path="b")[0] = 5
    session.commit("both")

    assert len(manifests(repo)) == 1
    assert read(repo, "a") == [0, 1, 2]
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert array.attrs["k"] == 1


def test_moved_arrays_stay_in_their_pack() -> None:
    repo = packed_repository()
    create(repo, ["g/a", "g/b"])
    session = repo.rearrange_session("main")
    session.move("/g", "/h")
    session.commit("move")
    write(repo, "h/a", 5)

    assert list(manifests(repo).values()) == [{"/h/a", "/h/b"}]
    assert read(repo, "h/b") == [10, 11, 12]


def test_concurrent_commits_to_arrays_of_one_pack_do_not_conflict() -> None:
    repo = packed_repository()
    create(repo, ["a", "b", "c"])
    mine, theirs = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_array(mine.store, path="a")[0] = 1
    zarr.open_array(theirs.store, path="b")[0] = 2
    theirs.commit("theirs")

    mine.commit("mine", rebase_with=ConflictDetector())

    assert [read(repo, name)[0] for name in ("a", "b", "c")] == [1, 2, 20]
    assert len(manifests(repo)) == 1


def test_conflicts_in_a_packed_array_can_be_resolved() -> None:
    repo = packed_repository()
    create(repo, ["a", "b"])
    mine, theirs = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_array(mine.store, path="a")[0] = 1
    zarr.open_array(theirs.store, path="a")[:] = 2
    theirs.commit("theirs")

    mine.commit("mine", rebase_with=BasicConflictSolver())

    assert read(repo, "a") == [1, 2, 2]


def test_branches_of_a_packed_repository_merge() -> None:
    repo = packed_repository()
    create(repo, ["a", "b", "c"])
    repo.create_branch("dev", repo.lookup_branch("main"))
    write(repo, "a", 1)
    session = repo.writable_session("dev")
    zarr.open_array(session.store, path="b")[0] = 2
    session.commit("dev")

    repo.merge("dev", "main", message="merge")

    assert [read(repo, name)[0] for name in ("a", "b", "c")] == [1, 2, 20]
    assert repo.verify("chunks").ok


def test_array_in_a_pack_can_be_shifted() -> None:
    repo = packed_repository()
    create(repo, ["a", "b"])
    session = repo.writable_session("main")
    session.shift_array("/a", (1,))
    session.commit("shift")

    assert read(repo, "a")[1:] == [0, 1]
    assert read(repo, "b") == [10, 11, 12]


def test_virtual_references_keep_their_locations_and_checksums() -> None:
    repo = packed_repository()
    config = repo.config
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer("s3://bucket/", icefloe.s3_store(region="x"))
    )
    repo = Repository.open(repo.storage, config)
    create(repo, ["a", "b", "c"])
    session = repo.writable_session("main")
    for name, etag in (("a", "one"), ("b", "two")):
        session.store.set_virtual_ref(f"{name}/c/1", f"s3://bucket/{name}", offset=3, length=4, checksum=etag)
    session.commit("virtual")
    write(repo, "c", 5)

    workspace = repo.readonly_session("main")._workspace
    found = [workspace.ref(workspace.array(path), (1,)) for path in ("/a", "/b")]

    assert [(ref.location, ref.offset, ref.checksum.value) for ref in found] == [  # type: ignore[union-attr]
        ("s3://bucket/a", 3, "one"),
        ("s3://bucket/b", 3, "two"),
    ]
    assert len(manifests(repo)) == 1


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_with_packs_read_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_REFS", 25)
    rng = random.Random(seed)
    repo = packed_repository(rng.choice([1, 2]), rng.choice([0, 512]))
    wanted: dict[str, Any] = {}
    zarr.create_group(repo.writable_session("main").store)
    for step in range(12):
        session = repo.writable_session("main")
        group = zarr.group(session.store)
        for number in range(rng.randrange(5)):
            rank = rng.randrange(4)
            name = f"g{rng.randrange(3)}/a{step}-{number}"
            group.create_array(name, shape=(3,) * rank, chunks=(2,) * rank, dtype="i4")
            wanted[name] = np.zeros((3,) * rank, "i4")
        for name in rng.sample(sorted(wanted), min(len(wanted), rng.randrange(5))):
            value = np.full(wanted[name].shape, rng.randrange(3))
            zarr.open_array(session.store, path=name)[...] = value
            wanted[name] = value
        if wanted and rng.random() < 0.3:
            name = rng.choice(sorted(wanted))
            del group[name], wanted[name]
        session.commit(f"step {step}", allow_empty=True)
        for name, value in wanted.items():
            assert read(repo, name) == value.tolist()
    repo.expire_snapshots(now())
    repo.garbage_collect(now())
    for name, value in wanted.items():
        assert read(repo, name) == value.tolist()
    assert repo.verify("chunks").ok
