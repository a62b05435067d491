"""Writers of chunks, compared with a model that records the writer of each chunk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig
from tests.support.edits import (
    CreateArray,
    CreateGroup,
    Delete,
    Edit,
    Erase,
    SetAttribute,
    Write,
    make,
    resize,
)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def spec_version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[0, 512], ids=["native", "inline"])
def repo(request: pytest.FixtureRequest, spec_version: int) -> Repository:
    config = RepositoryConfig(inline_chunk_threshold_bytes=request.param)
    return Repository.create(icefloe.in_memory_storage(), config, spec_version=spec_version)


def commit(repo: Any, edits: list[Edit], branch: str = "main", message: str = "x") -> str:
    session = repo.writable_session(branch)
    make(session, edits)
    return str(session.commit(message, allow_empty=True))


def writers(found: icefloe.Blame) -> dict[tuple[int, ...], str]:
    rows = found.table().rows()
    rank = found.coords.shape[1]
    return {tuple(row[f"chunk_{axis}"] for axis in range(rank)): row["snapshot_id"] for row in rows}


@pytest.mark.parametrize("seed", range(4))
def test_blame_equals_the_model(repo: Repository, seed: int) -> None:
    random = np.random.default_rng(seed)
    model: dict[tuple[int, ...], tuple[str, bytes]] = {}
    commit(repo, [CreateGroup("/"), CreateArray("/a", (8,))])
    for number in range(25):
        at = [(int(each),) for each in random.choice(6, random.integers(1, 4), replace=False)]
        match random.integers(0, 6):
            case 0:
                commit(repo, [Erase("/a", each) for each in at])
                model = {each: value for each, value in model.items() if each not in at}
            case 1:
                commit(repo, [SetAttribute("/a", number), resize("/a", int(random.choice([6, 9])))])
            case _:
                data = b"%d" % number
                made = commit(repo, [Write("/a", each, data + bytes(each)) for each in at])
                model |= dict.fromkeys(at, (made, data))

    assert writers(icefloe.blame(repo, "a")) == {at: made for at, (made, _) in model.items()}


def test_blame_of_a_recreated_array_starts_at_its_creation(repo: Repository) -> None:
    commit(repo, [CreateGroup("/"), CreateArray("/a", (4,)), Write("/a", (0,), b"x")])
    again = commit(repo, [Delete("/a"), CreateArray("/a", (4,)), Write("/a", (0,), b"x")])

    assert writers(icefloe.blame(repo, "/a")) == {(0,): again}


def test_blame_follows_a_moved_array() -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    first = commit(repo, [CreateGroup("/"), CreateArray("/a", (4,)), Write("/a", (0,)), Write("/a", (1,))])
    second = commit(repo, [Write("/a", (1,), b"other")])
    session = repo.rearrange_session("main")
    session.move("/a", "/b")
    session.commit("move")

    assert writers(icefloe.blame(repo, "b")) == {(0,): first, (1,): second}


def test_blame_follows_shifted_chunks(repo: Repository) -> None:
    made = [commit(repo, [CreateGroup("/"), CreateArray("/a", (4,))])]
    made += [commit(repo, [Write("/a", (at,), b"value %d" % at)]) for at in range(4)]
    session = repo.writable_session("main")
    session.shift_array("/a", (-1,))
    session.commit("shift")
    session = repo.writable_session("main")
    session.shift_array("/a", (-1,))
    make(session, [Write("/a", (3,), b"new")])
    last = session.commit("shift and write")

    assert writers(icefloe.blame(repo, "a")) == {(0,): made[3], (1,): made[4], (3,): last}


def test_equal_bytes_at_other_coordinates_count_as_a_new_write(repo: Repository) -> None:
    first = commit(repo, [CreateGroup("/"), CreateArray("/a", (4,)), Write("/a", (0,), b"same")])
    second = commit(repo, [Write("/a", (1,), b"same"), Write("/a", (2,), b"other")])
    third = commit(repo, [Write("/a", (0,), b"third"), Write("/a", (3,), b"same")])

    assert writers(icefloe.blame(repo, "a")) == {(0,): third, (1,): second, (2,): second, (3,): third}
    assert writers(icefloe.blame(repo, "a", snapshot_id=first)) == {(0,): first}


def test_merged_chunk_is_credited_to_its_original_commit(repo: Repository) -> None:
    start = commit(repo, [CreateGroup("/"), CreateArray("/a", (5,)), Write("/a", (0,)), Write("/a", (4,))])
    repo.create_branch("dev", start)
    one = commit(repo, [Write("/a", (1,), b"dev 1")], "dev")
    repo.create_branch("deeper", one)
    deep = commit(repo, [Write("/a", (3,), b"deeper")], "deeper")
    commit(repo, [SetAttribute("/", 1)], "dev")
    inner = repo.merge("deeper", "dev", message="inner").snapshot_id
    two = commit(repo, [Write("/a", (4,), b"dev 4")], "dev")
    mine = commit(repo, [Write("/a", (2,), b"main 2")])
    merged = repo.merge("dev", "main", message="merge").snapshot_id
    commit(repo, [SetAttribute("/a", 3)])

    found = icefloe.blame(repo, "a")

    assert writers(found) == {(0,): start, (1,): one, (2,): mine, (3,): deep, (4,): two}
    merges = [row["merged_by"] for row in found.table().rows()]
    assert merges == [None, merged, None, merged, merged]
    assert inner is not None


def test_chunks_written_before_the_search_limit_are_shown_as_older(repo: Repository) -> None:
    commit(repo, [CreateGroup("/"), CreateArray("/a", (4,)), Write("/a", (0,))])
    last = commit(repo, [Write("/a", (1,), b"new")])

    found = icefloe.blame(repo, "a", limit=1)

    assert writers(found) == {(0,): "older", (1,): last}
    assert [row["message"] for row in found.table().rows()] == [None, "x"]


def test_chunks_of_expired_commits_are_shown_as_older(repo: Repository) -> None:
    commit(repo, [CreateGroup("/"), CreateArray("/a", (4,)), Write("/a", (0,))])
    commit(repo, [Write("/a", (1,), b"two")])
    kept = commit(repo, [Write("/a", (2,), b"three")])
    last = commit(repo, [Write("/a", (3,), b"four")])
    boundary = repo.lookup_snapshot(kept).written_at
    repo.expire_snapshots(boundary)

    assert writers(icefloe.blame(repo, "a")) == {(0,): "older", (1,): "older", (2,): kept, (3,): last}
    repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert writers(icefloe.blame(repo, "a")) == {(0,): "older", (1,): "older", (2,): kept, (3,): last}


def test_scalars_and_empty_arrays_can_be_blamed(repo: Repository) -> None:
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, name="scalar", data=np.array(3.0))
        zarr.create_array(store, name="empty", shape=(0,), dtype="f8")

    assert writers(icefloe.blame(repo, "scalar")) == {(): repo.lookup_branch("main")}
    assert len(icefloe.blame(repo, "empty")) == 0
