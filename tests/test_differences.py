"""Deliberate differences from the official package: each row of reference/differences.md has a test."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from icefloe import (
    ConflictError,
    IcechunkError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    RepoAvailability,
    Repository,
    RepositoryConfig,
    RepoStatus,
    SnapshotNotFoundError,
    in_memory_storage,
    local_filesystem_storage,
)
from tests.support.source_tree import ROOT

PROTOTYPE = default_buffer_prototype()
PAGE = ROOT / "docs" / "reference" / "differences.md"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest) -> Repository:
    """Create a repository with an array of six numbers in native chunks of three."""
    made = Repository.create(in_memory_storage(), spec_version=request.param)
    with made.transaction("main", message="numbers") as store:
        group = zarr.open_group(store, mode="a")
        data = np.arange(6, dtype="u1").reshape(2, 3)
        group.create_array("a", data=data, chunks=(1, 3), compressors=None)
    return made


def get(store: Any, key: str, part: Any = None) -> bytes | None:
    found = asyncio.run(store.get(key, PROTOTYPE, part))
    return None if found is None else found.to_bytes()


# Reading keys


def test_byte_ranges_are_clipped_as_zarr_documents(repo: Repository) -> None:
    store = repo.readonly_session("main").store

    assert get(store, "a/c/0/0", RangeByteRequest(1, 99)) == b"\x01\x02"
    assert get(store, "a/c/0/0", OffsetByteRequest(99)) == b""
    assert get(store, "a/c/0/0", SuffixByteRequest(99)) == b"\x00\x01\x02"


def test_metadata_keys_support_byte_ranges(repo: Repository) -> None:
    store = repo.readonly_session("main").store
    whole = get(store, "zarr.json") or b""

    assert get(store, "zarr.json", SuffixByteRequest(4)) == whole[-4:]
    assert get(store, "zarr.json", RangeByteRequest(2, 9999)) == whole[2:]
    with pytest.raises(IcechunkError):
        get(store, "zarr.json", RangeByteRequest(5, 2))


def test_partial_values_of_a_missing_key_are_none(repo: Repository) -> None:
    store = repo.readonly_session("main").store
    wanted = [("a/c/0/0", None), ("nowhere/zarr.json", None)]

    found = asyncio.run(store.get_partial_values(PROTOTYPE, wanted))

    assert [None if each is None else each.to_bytes() for each in found] == [b"\x00\x01\x02", None]


def test_zarr_2_keys_do_not_exist(repo: Repository) -> None:
    store = repo.readonly_session("main").store

    assert not asyncio.run(store.exists(".zgroup"))
    assert not asyncio.run(store.exists("a/.zarray"))


def test_size_of_a_missing_chunk_raises_an_error(repo: Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="empty", shape=(3,), dtype="u1")

    with pytest.raises(FileNotFoundError) as error:
        asyncio.run(session.store.getsize("empty/c/0"))

    assert isinstance(error.value, NodeNotFoundError)


def test_chunk_key_requires_segment_c(repo: Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="ab", data=np.arange(2))

    with pytest.raises(InvalidInputError):
        get(session.store, "abc/0")


# Writing


def test_read_only_store_of_a_writable_session_rejects_writes(repo: Repository) -> None:
    store = repo.writable_session("main").store.with_read_only(True)

    with pytest.raises(ReadOnlyError):
        asyncio.run(store.set("zarr.json", PROTOTYPE.buffer.from_bytes(b"{}")))


def test_flush_of_a_read_only_session_raises(repo: Repository) -> None:
    with pytest.raises(ReadOnlyError):
        repo.readonly_session("main").flush("never")


def test_chunks_have_as_many_coordinates_as_their_array(repo: Repository) -> None:
    store = repo.writable_session("main").store

    with pytest.raises(InvalidInputError) as error:
        asyncio.run(store.set("a/c/0", PROTOTYPE.buffer.from_bytes(b"x")))

    assert error.value.kind == "invalid-chunk-index"


def test_nodes_inside_an_array_are_rejected(repo: Repository) -> None:
    session = repo.writable_session("main")
    document = get(session.store, "a/zarr.json") or b""

    with pytest.raises(IcechunkError):
        asyncio.run(session.store.set("a/b/zarr.json", PROTOTYPE.buffer.from_bytes(document)))


def test_rectilinear_grid_accepts_one_size_for_a_dimension() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    zarr.create_array(session.store, name="plain", shape=(10, 10), chunks=(5, 5), dtype="u1")
    document = json.loads(get(session.store, "plain/zarr.json") or b"")
    configuration = {"kind": "inline", "chunk_shapes": [[2, 3, 5], 5]}
    document["chunk_grid"] = {"name": "rectilinear", "configuration": configuration}
    data = PROTOTYPE.buffer.from_bytes(json.dumps(document).encode())

    asyncio.run(session.store.set("uneven/zarr.json", data))
    asyncio.run(session.store.set("uneven/c/2/1", PROTOTYPE.buffer.from_bytes(b"x")))

    with pytest.raises(InvalidInputError):
        asyncio.run(session.store.set("uneven/c/2/2", PROTOTYPE.buffer.from_bytes(b"x")))


def test_shift_requires_one_offset_per_dimension(repo: Repository) -> None:
    for offset in [(1,), (1, 0, 0)]:
        with pytest.raises(InvalidInputError):
            repo.writable_session("main").shift_array("/a", offset)


def test_shift_by_zero_is_not_a_change(repo: Repository) -> None:
    session = repo.writable_session("main")

    session.shift_array("/a", (0, 0))

    assert not session.has_uncommitted_changes


def test_exception_of_a_reindex_function_is_raised_unchanged(repo: Repository) -> None:
    def fail(index: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        repo.writable_session("main").reindex_array("/a", fail)


def test_amended_commit_lists_each_node_once() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="new") as store:
        zarr.create_array(store, name="a", data=np.arange(2))
        zarr.create_array(store, name="b", data=np.arange(2))
    session = repo.writable_session("main")
    group = zarr.open_group(session.store)
    group["a"].attrs["x"] = 1
    del group["b"]
    tip = session.amend("amended")

    log = repo.inspect_transaction_log(tip)

    assert (len(log["new_arrays"]), log["deleted_arrays"], log["updated_arrays"]) == (1, [], [])


def test_no_commit_is_lost_on_a_folder(tmp_path: Path) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path)))
    done: list[str] = []

    def commit(number: int) -> None:
        while True:
            session = repo.writable_session("main")
            zarr.create_group(session.store, path=f"g{number}")
            try:
                done.append(session.commit(str(number)))
            except ConflictError:
                continue
            return

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {info.id for info in repo.ancestry(branch="main")} >= set(done)
    assert len(set(done)) == 8


# Repositories


def test_offline_repository_rejects_writes() -> None:
    repo = Repository.create(in_memory_storage())
    repo.set_status(RepoStatus(RepoAvailability.offline))

    with pytest.raises(ReadOnlyError):
        repo.writable_session("main")

    assert repo.status.availability is RepoAvailability.offline


def test_only_explicit_configuration_is_saved(repo: Repository) -> None:
    repo.reopen(RepositoryConfig(inline_chunk_threshold_bytes=3)).save_config()

    stored = Repository.fetch_config(repo.storage)

    assert stored == RepositoryConfig(inline_chunk_threshold_bytes=3)


def test_non_ascii_names_are_listed_in_every_version(tmp_path: Path) -> None:
    for version in (1, 2):
        storage = local_filesystem_storage(str(tmp_path / str(version)))
        repo = Repository.create(storage, spec_version=version)
        tip = repo.lookup_branch("main")
        repo.create_branch("Zürich", tip)
        repo.create_tag("überholt", tip)

        again = Repository.open(storage)
        assert again.list_branches() == {"main", "Zürich"}
        assert again.lookup_tag("überholt") == tip


def test_missing_snapshot_raises_not_found_in_every_version(repo: Repository) -> None:
    with pytest.raises(SnapshotNotFoundError):
        repo.lookup_snapshot("0" * 20)


def test_pickled_repository_in_memory_keeps_its_objects(repo: Repository) -> None:
    session = pickle.loads(pickle.dumps(repo)).readonly_session("main")

    assert get(session.store, "a/c/1/0") == b"\x03\x04\x05"


def test_configurations_pickle_and_copy() -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=3)

    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


# The page


def test_every_test_named_on_the_differences_page_exists() -> None:
    named = re.findall(r"`([\w/.]+\.py)::(test_\w+)`", PAGE.read_text(encoding="utf-8"))

    missing = [
        (file, name)
        for file, name in named
        if not (ROOT / file).is_file() or f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]

    assert missing == []
    assert len(named) > 20


def test_differences_page_names_every_test_of_this_file() -> None:
    text = Path(__file__).read_text(encoding="utf-8").partition("# The page\n")[0]
    page = PAGE.read_text(encoding="utf-8")

    assert [name for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE) if name not in page] == []


def test_session_on_a_missing_snapshot_fails_to_open(tmp_path: Path) -> None:
    storage = local_filesystem_storage(str(tmp_path))
    Repository.create(storage)
    for file in (tmp_path / "snapshots").iterdir():
        file.unlink()
    repo = Repository.open(storage)

    for open_session in (repo.writable_session, repo.readonly_session):
        with pytest.raises(SnapshotNotFoundError, match=repo.lookup_branch("main")):
            open_session("main")
