"""Transaction logs that are written in blocks are read by the official package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.distributed import receipt
from icefloe.format import chunk_regions, transaction_log
from tests.support.compat.official import icechunk, needs_v2

pytestmark = [pytest.mark.compat, needs_v2]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commit 60 chunks of two tasks, with a log written in blocks of at most seven chunks."""
    for module in (chunk_regions, transaction_log):
        monkeypatch.setattr(module, "BLOCK_CHUNKS", 7)
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(20, 3), chunks=(1, 1), dtype="i4")
    repo.create_tag("empty", repo.lookup_branch("main"))
    session = repo.writable_session("main")
    fork = session.fork()
    for rows in (range(10, 20), range(10)):
        task: Any = fork.fork()
        zarr.open_array(task.store, path="a")[rows.start : rows.stop] = 1
        task.write_manifests("/a")
        session._merge_receipts([receipt(task)])
    session.commit("many chunks")
    return tmp_path


def test_official_diff_lists_the_chunks_of_a_streamed_log(repository: Path) -> None:
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(repository)))

    found = repo.diff(from_tag="empty", to_branch="main")

    expected = [[row, column] for row in range(20) for column in range(3)]
    assert sorted(map(list, found.updated_chunks["/a"])) == expected


@pytest.mark.parametrize(("row", "conflicts"), [(9, [[9, 2]]), (20, [])])
def test_official_rebase_compares_with_a_streamed_log(
    repository: Path, row: int, conflicts: list[list[int]]
) -> None:
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(repository)))
    main = repo.lookup_branch("main")
    repo.reset_branch("main", repo.lookup_tag("empty"))
    session = repo.writable_session("main")
    if conflicts:
        zarr.open_array(session.store, path="a")[row, 2] = 5
    else:
        zarr.create_array(session.store, name="b", shape=(1,), chunks=(1,), dtype="i4")
    repo.reset_branch("main", main)

    if conflicts:
        with pytest.raises(icechunk.RebaseFailedError) as failed:
            session.rebase(icechunk.ConflictDetector())
        (found,) = failed.value.conflicts
        assert found.conflicted_chunks == conflicts
    else:
        session.rebase(icechunk.ConflictDetector())
        assert session.commit("after the rebase") == repo.lookup_branch("main")
