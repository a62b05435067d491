"""Sessions beyond reading and committing: moved chunks, coordinates, locations, pickled sessions."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import (
    InvalidInputError,
    NodeNotFoundError,
    Repository,
    RepositoryConfig,
    Session,
    SessionMode,
    SessionStateError,
    Storage,
    VirtualChunkContainer,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
)
from icefloe._internal.ids import NodeId
from icefloe.format.manifest import ArrayManifest


@pytest.fixture(params=["memory", "folder"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    folder = str(tmp_path / "repo")
    return in_memory_storage() if request.param == "memory" else local_filesystem_storage(folder)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest, storage: Storage) -> Repository:
    """Create a repository with the numbers 0 to 11 in chunks of two, the third of which is missing."""
    made = Repository.create(storage, spec_version=request.param)
    session = made.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    line = group.create_array("line", shape=(12,), chunks=(2,), dtype="i4", fill_value=-1)
    line[:4] = np.arange(4)
    line[6:] = np.arange(6, 12)
    square = group.create_array("square", shape=(4, 6), chunks=(2, 2), dtype="i4", fill_value=-1)
    square[...] = np.arange(24).reshape(4, 6)
    group.create_array("point", data=np.array(5))
    session.commit("numbers")
    return made


def values(session: Session, path: str) -> Any:
    found: Any = np.asarray(zarr.open_array(session.store, path=path, mode="r")[...]).tolist()
    return found


def coordinates(session: Session, path: str, batch_size: int = 1000) -> list[tuple[int, ...]]:
    async def collect() -> list[tuple[int, ...]]:
        return [each async for each in session.chunk_coordinates(path, batch_size)]

    return asyncio.run(collect())


# Shifting


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (1, [-1, -1, 0, 1, 2, 3, -1, -1, 6, 7, 8, 9]),
        (-2, [-1, -1, 6, 7, 8, 9, 10, 11, -1, -1, -1, -1]),
        (6, [-1] * 12),
        (-(2**70), [-1] * 12),
    ],
)
def test_shifted_chunks_leave_fill_values_behind(repo: Repository, offset: int, expected: list[int]) -> None:
    session = repo.writable_session("main")

    session.shift_array("/line", [offset])

    assert values(session, "line") == expected
    session.commit("shifted")
    assert values(repo.readonly_session("main"), "line") == expected


def test_shift_in_several_dimensions_copies_nothing(repo: Repository) -> None:
    before = repo.readonly_session("main")
    session = repo.writable_session("main")

    session.shift_array("/square", (1, -1))

    moved = np.full((4, 6), -1)
    moved[2:, :4] = np.arange(24).reshape(4, 6)[:2, 2:]
    assert values(session, "square") == moved.tolist()
    assert sorted(session.status().updated_chunks["/square"]) == [[r, c] for r in (0, 1) for c in (0, 1, 2)]
    node = session._workspace.array("/square")
    refs, old = session._workspace.refs(node), before._workspace.refs(node)
    assert set(refs.inline.tolist()) <= set(old.inline.tolist())


def test_shift_moves_uncommitted_chunks_in_a_resized_array(repo: Repository) -> None:
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="line")
    array.resize((16,))
    array[4:6] = [4, 5]

    session.shift_array("/line", (2,))

    assert values(session, "line") == [-1] * 4 + list(range(12))


def test_shift_by_zero_changes_nothing(repo: Repository) -> None:
    session = repo.writable_session("main")

    session.shift_array("/square", (0, 0))
    session.shift_array("/point", ())

    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("offset", [(), (1, 2), (1, 0, 0)])
def test_shift_without_an_offset_per_dimension_is_rejected(repo: Repository, offset: tuple[int, ...]) -> None:
    session = repo.writable_session("main")

    with pytest.raises(InvalidInputError, match="1 dimensions") as error:
        session.shift_array("/line", offset)

    assert error.value.kind == "invalid-chunk-index"
    assert not session.has_uncommitted_changes


def test_rectilinear_grid_cannot_be_shifted(repo: Repository) -> None:
    if repo.spec_version == 1:
        pytest.skip("the first version of the format has regular grids only")
    session = repo.writable_session("main")
    document: dict[str, Any] = json.loads(session._workspace.array("/line").user_data)
    configuration = {"kind": "inline", "chunk_shapes": [[5, 7]]}
    document["chunk_grid"] = {"name": "rectilinear", "configuration": configuration}
    session._workspace.set_metadata("/uneven", json.dumps(document).encode())

    with pytest.raises(SessionStateError, match="rectilinear") as error:
        session.shift_array("/uneven", (1,))

    assert error.value.kind == "unimplemented"


# Reindexing


def back_by_one(index: Iterable[int]) -> list[int] | None:
    (number,) = index
    return [number - 1] if number else None


def on_by_one(index: Iterable[int]) -> list[int] | None:
    (number,) = index
    return [number + 1] if number < 5 else None


def test_forward_reindex_keeps_chunks_that_are_not_overwritten(repo: Repository) -> None:
    session = repo.writable_session("main")

    session.reindex_array("/line", back_by_one)

    assert values(session, "line") == [2, 3, 2, 3, 6, 7, 8, 9, 10, 11, 10, 11]


def test_reindex_with_backward_clears_vacated_chunks(repo: Repository) -> None:
    session = repo.writable_session("main")

    session.reindex_array("/line", back_by_one, on_by_one)

    assert values(session, "line") == [2, 3, -1, -1, 6, 7, 8, 9, 10, 11, -1, -1]


def _upside_down(index: Iterable[int]) -> list[int]:
    row, column = index
    return [1 - row, column]


def test_reindex_can_swap_chunks(repo: Repository) -> None:
    session = repo.writable_session("main")

    session.reindex_array("/square", _upside_down)

    assert values(session, "square") == np.arange(24).reshape(2, 2, 6)[::-1].reshape(4, 6).tolist()


@pytest.mark.parametrize("target", [[6], [-1], [0, 0], []])
def test_reindex_outside_the_grid_changes_nothing(repo: Repository, target: list[int]) -> None:
    session = repo.writable_session("main")

    with pytest.raises(InvalidInputError) as error:
        session.reindex_array("/line", lambda index: target if list(index) == [5] else [0])

    assert error.value.kind == "invalid-chunk-index"
    assert not session.has_uncommitted_changes


def test_exception_of_a_reindex_function_is_raised(repo: Repository) -> None:
    session = repo.writable_session("main")

    with pytest.raises(ZeroDivisionError):
        session.reindex_array("/line", lambda index: [1 // 0])

    assert not session.has_uncommitted_changes


# Coordinates and locations


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
def test_chunk_coordinates_are_ordered_for_any_batch_size(repo: Repository, batch_size: int) -> None:
    session = repo.readonly_session("main")

    assert coordinates(session, "/line", batch_size) == [(0,), (1,), (3,), (4,), (5,)]
    assert coordinates(session, "/point", batch_size) == [()]


def test_chunk_coordinates_reject_a_batch_size_of_zero(repo: Repository) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        coordinates(repo.readonly_session("main"), "/line", 0)


def test_locations_of_virtual_chunks_are_listed(storage: Storage) -> None:
    config = RepositoryConfig()
    container = VirtualChunkContainer("file:///data/", local_filesystem_store("/data"), name="data")
    config.set_virtual_chunk_container(container)
    repo = Repository.create(storage, config)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="v", shape=(6,), chunks=(2,), dtype="i4")
    node = session._workspace.array("/v")
    refs = ArrayManifest.virtual([[0], [1]], ["file:///data/a", "vcc://data/b"], [0, 0], [8, 8])
    session._workspace.changes.delta(node).put_many(refs)

    expected = ["file:///data/a", "file:///data/b"]
    assert session.all_virtual_chunk_locations() == expected
    session.commit("virtual")
    assert asyncio.run(session.all_virtual_chunk_locations_async()) == expected


def test_location_in_an_unknown_container_raises_an_error(storage: Storage) -> None:
    session = Repository.create(storage).writable_session("main")
    zarr.create_array(session.store, name="v", shape=(2,), chunks=(2,), dtype="i4")
    node = session._workspace.array("/v")
    session._workspace.put_refs(node, ArrayManifest.virtual([[0]], ["vcc://unknown/c"], [0], [8]))

    with pytest.raises(InvalidInputError) as caught:
        session.all_virtual_chunk_locations()

    assert caught.value.kind == "no-container-for-virtual-chunk"


def test_node_ids_are_stable(repo: Repository) -> None:
    session = repo.writable_session("main")
    before = session.get_node_id("/line")
    zarr.open_array(session.store, path="line").attrs["x"] = 1
    session.commit("attribute")

    assert session.get_node_id("/line") == before == str(NodeId.parse(before))
    with pytest.raises(NodeNotFoundError):
        session.get_node_id("/nowhere")


# Copies of a session


def test_read_only_session_can_be_pickled(repo: Repository) -> None:
    session = repo.readonly_session("main")

    copy = pickle.loads(pickle.dumps(session))

    assert (copy.snapshot_id, copy.mode, copy.branch) == (session.snapshot_id, SessionMode.readonly, None)
    assert copy.config == session.config
    assert values(copy, "line") == values(session, "line")
    assert copy != session


def test_committed_session_can_be_pickled(repo: Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="point")[...] = 6
    session.commit("six")

    assert values(pickle.loads(pickle.dumps(session)), "point") == 6


def test_unpickled_sessions_share_caches(tmp_path: Path) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path)))
    data = pickle.dumps(repo.readonly_session("main"))

    one, other = pickle.loads(data), pickle.loads(data)

    assert one._workspace.assets is other._workspace.assets
    assert pickle.loads(pickle.dumps(repo))._assets is one._workspace.assets


def test_writable_session_cannot_be_pickled(repo: Repository) -> None:
    with pytest.raises(ValueError, match=r"readonly_session.*fork"):
        pickle.dumps(repo.writable_session("main"))


def test_all_stores_of_a_session_share_its_changes(repo: Repository) -> None:
    session = repo.writable_session("main")

    assert session.store.session == session
    assert session != repo.writable_session("main")


def test_another_process_reads_through_a_pickled_session(tmp_path: Path) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path)))
    with repo.transaction("main", message="x") as store:
        zarr.create_array(store, name="line", data=np.arange(3))
    session = repo.readonly_session("main")

    code = "import pickle, sys, zarr; s = pickle.load(sys.stdin.buffer); "
    code += "print(zarr.open_array(s.store, path='line', mode='r')[:].tolist())"
    assert _python(code, pickle.dumps(session)) == "[0, 1, 2]"


def _python(code: str, given: bytes) -> str:
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_configuration_of_a_session_is_a_copy(repo: Repository) -> None:
    session = repo.readonly_session("main")

    copy = session.config
    copy.inline_chunk_threshold_bytes = 1

    assert session.config == repo.config != copy


def test_commit_metadata_is_read_back(repo: Repository) -> None:
    session = repo.writable_session("main")
    odd = {"nan": float("nan"), "pair": (1, 2), "raw": b"ab", "n": np.int16(3)}

    session.commit("odd", odd, allow_empty=True)

    plain = {"nan": None, "pair": [1, 2], "raw": [97, 98], "n": 3}
    assert next(repo.ancestry(branch="main")).metadata == plain
    assert next(Repository.open(repo.storage).ancestry(branch="main")).metadata == plain


def test_invalid_metadata_stops_a_commit(repo: Repository) -> None:
    session = repo.writable_session("main")
    tip = repo.lookup_branch("main")

    with pytest.raises(TypeError):
        session.commit("never", {"a": object()}, allow_empty=True)

    assert repo.lookup_branch("main") == tip
    assert not session.read_only


def test_message_with_lone_surrogates_stops_a_commit(repo: Repository) -> None:
    session = repo.writable_session("main")

    with pytest.raises(InvalidInputError, match="lone surrogates"):
        session.commit("\ud800", allow_empty=True)

    assert not session.read_only
