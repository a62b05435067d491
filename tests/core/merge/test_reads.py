"""Detect commits that changed what a session has read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.conflicts import ConflictType
from icefloe.core.merge.reads import ChunkMasks, ReadDetector
from icefloe.errors import RebaseFailedError

FIRST = (np.array([True, False]), np.array([True, True]))
SECOND = (np.array([False, True]), np.array([True, True]))


@pytest.fixture
def repo() -> icefloe.Repository:
    made = icefloe.Repository.create(icefloe.in_memory_storage())
    session = made.writable_session("main")
    for name in ("ours", "read"):
        zarr.create_array(session.store, name=name, shape=(4, 4), chunks=(2, 2), dtype="i4")
    session.commit("arrays")
    return made


def commit_after(repo: icefloe.Repository, change: Any, reads: dict[str, ChunkMasks | None]) -> str:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="ours", mode="r+")[0, 0] = 1
    theirs = repo.writable_session("main")
    change(theirs)
    theirs.commit("theirs")
    return session.commit("ours", rebase_with=ReadDetector(reads))


def write(session: icefloe.Session) -> None:
    zarr.open_array(session.store, path="read", mode="r+")[:2] = 5


def resize(session: icefloe.Session) -> None:
    array: Any = zarr.open_array(session.store, path="read", mode="r+")
    array.resize((6, 4))


def delete(session: icefloe.Session) -> None:
    del zarr.open_group(session.store, mode="a")["read"]


@pytest.mark.parametrize(
    ("change", "masks", "chunks"),
    [
        (write, FIRST, [[0, 0], [0, 1]]),
        (write, None, [[0, 0], [0, 1]]),
        (resize, SECOND, None),
        (delete, SECOND, None),
    ],
)
def test_concurrent_change_of_data_that_was_read_is_a_conflict(
    repo: icefloe.Repository, change: Any, masks: ChunkMasks | None, chunks: list[list[int]] | None
) -> None:
    with pytest.raises(RebaseFailedError) as raised:
        commit_after(repo, change, {"/read": masks})

    (found,) = raised.value.conflicts
    assert (found.path, found.conflict_type) == ("/read", ConflictType.ReadDataChanged)
    assert found.conflicted_chunks == chunks


def test_concurrent_changes_of_unread_data_are_not_a_conflict(repo: icefloe.Repository) -> None:
    made = commit_after(repo, write, {"/read": SECOND, "/missing": None})

    assert repo.lookup_branch("main") == made
    found: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert (found["ours"][0, 0], found["read"][0, 0]) == (1, 5)
