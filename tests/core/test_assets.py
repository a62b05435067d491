"""Assets of a repository: how many of them are decoded at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import zarr

from icefloe import Repository, in_memory_storage
from icefloe._internal.ids import SnapshotId
from icefloe.core import assets
from icefloe.format.files import read_transaction_log
from icefloe.format.transaction_log import TransactionLog

COMMITS = 8


@pytest.fixture
def repo() -> Repository:
    repo = Repository.create(in_memory_storage())
    for number in range(COMMITS):
        with repo.transaction("main", message=f"group {number}") as store:
            zarr.create_group(store, path=f"g{number}")
    return repo


@pytest.mark.parametrize("large_bytes", [0, 4 << 20])
def test_large_transaction_logs_are_decoded_one_at_a_time(
    repo: Repository, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = threading.Lock()
    all_here = threading.Barrier(COMMITS, timeout=60)

    def watched(data: bytes, id: SnapshotId) -> TransactionLog:
        if large_bytes:
            all_here.wait()  # small ones are decoded at the same time
        else:
            assert alone.acquire(blocking=False), "another log is decoded"
            try:
                return read_transaction_log(data, id)
            finally:
                alone.release()
        return read_transaction_log(data, id)

    monkeypatch.setattr(assets, "LARGE_LOG_BYTES", large_bytes)
    monkeypatch.setattr(assets, "read_transaction_log", watched)
    ids = [SnapshotId.parse(info.id) for info in repo.ancestry(branch="main")][:COMMITS]

    with ThreadPoolExecutor(COMMITS) as threads:
        logs = list(threads.map(repo._assets.transaction_log, ids))

    assert [log.id for log in logs] == ids
