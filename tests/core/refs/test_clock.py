"""Writers with wrong clocks, and writers that follow them."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import Repository, local_filesystem_storage
from icefloe.core.commit import flush as commit_module
from icefloe.core.refs import v2 as refs_v2
from icefloe.errors import ErrorKind, FormatError

DAY_S = 86_400
REAL_TIME_NS = time.time_ns


def set_clock(patch: pytest.MonkeyPatch, seconds_ahead: float) -> None:
    """Set the clock of this process ahead of the file system."""
    patch.setattr(time, "time_ns", lambda: REAL_TIME_NS() + int(seconds_ahead * 1e9))


def repository(folder: Path, version: int) -> Repository:
    repo = Repository.create(local_filesystem_storage(str(folder)), spec_version=version)
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")
    return repo


def write(repo: Repository, index: int) -> str:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[index] = index + 1
    return session.commit(f"write {index}")


def values(repo: Repository) -> list[int]:
    store = repo.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path="a", mode="r")[:]).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", [1, 2])
def test_writer_with_a_fast_clock_is_rejected(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository(tmp_path, version)
    tip = repo.lookup_branch("main")

    with monkeypatch.context() as patch:
        set_clock(patch, DAY_S)
        with pytest.raises(FormatError, match=r"clock of this machine is 8\d{4} s ahead of") as refused:
            write(repo, 0)

    assert refused.value.kind == ErrorKind.SNAPSHOT_TIMESTAMP
    assert str(tmp_path) in str(refused.value)
    assert repo.lookup_branch("main") == tip
    write(repo, 1)
    assert values(repo) == [0, 2, 0, 0]


@pytest.mark.parametrize("seconds", [-300, 300])
@pytest.mark.parametrize("version", [1, 2])
def test_small_clock_differences_are_tolerated(
    tmp_path: Path, version: int, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository(tmp_path, version)

    with monkeypatch.context() as patch:
        set_clock(patch, seconds)
        write(repo, 0)
    write(repo, 1)

    assert values(repo) == [1, 2, 0, 0]
    times = [info.written_at for info in repo.ancestry(branch="main")]
    assert times == sorted(set(times), reverse=True)


def let_a_wrong_clock_through(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> str:
    """Commit a day ahead, as the official library and earlier releases do."""

    def unchecked(*ignored: Any) -> None:
        return None

    with monkeypatch.context() as patch:
        set_clock(patch, DAY_S)
        for module in (commit_module, refs_v2):
            patch.setattr(module, "check_clock", unchecked)
        return write(repo, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_other_writers_can_commit_after_a_writer_with_a_fast_clock(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    repo = repository(tmp_path, version)
    ahead = let_a_wrong_clock_through(repo, monkeypatch)
    repo = Repository.open(repo.storage)

    with caplog.at_level(logging.WARNING):
        write(repo, 1)
    repo.create_branch("dev", repo.lookup_branch("main"))
    repo.create_tag("t", ahead)
    repo.expire_snapshots(datetime.now(UTC) - timedelta(days=1))
    repo.garbage_collect(datetime.now(UTC))
    repo.reset_branch("main", ahead)
    write(repo, 2)

    assert values(repo) == [1, 0, 3, 0]
    assert "the clock of its writer was wrong" in caplog.text
    times = [info.written_at for info in repo.ancestry(branch="main")]
    assert times == sorted(set(times), reverse=True)
    assert repo.verify().ok


@pytest.mark.parametrize("version", [1, 2])
def test_writer_with_a_slow_clock_is_rejected(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository(tmp_path, version)

    with monkeypatch.context() as patch:
        set_clock(patch, -DAY_S)
        with pytest.raises(FormatError, match=r"clock of this machine is 8\d{4} s behind"):
            write(repo, 0)

    write(repo, 1)
    assert values(repo) == [0, 2, 0, 0]
