"""Map functions over a local Spark, and write forks on executors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import ErrorKind, ForkSession, NodeNotFoundError, Repository, local_filesystem_storage
from icefloe._internal.executor import Executor, Task
from icefloe.distributed import commit_forks, receipt
from icefloe.spark import SparkExecutor, local_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
]


def write_part(order: tuple[ForkSession, int]) -> tuple[int, bytes]:
    fork, part = order
    zarr.open_array(fork.store, path="a", mode="r+")[100 * part : 100 * part + 100] = part
    return os.getpid(), receipt(fork)


def refuse(number: int) -> int:
    if number > 1:
        raise NodeNotFoundError(f"there is no {number}", kind=ErrorKind.NODE_NOT_FOUND)
    return number


def test_executors_write_and_driver_commits(spark: Any, tmp_path: Path) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path / "repo")))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(400,), chunks=(10,), dtype="f8", fill_value=-1)
    fork = session.fork()
    executor: Executor = SparkExecutor(spark, tasks=2)

    results = list(executor.map(Task(write_part, "parts"), [(fork, part) for part in range(4)]))
    commit_forks(session, [receipt for _, receipt in results], "all parts")

    assert os.getpid() not in {process for process, _ in results}
    values = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[...]
    assert np.array_equal(np.asarray(values), np.repeat(np.arange(4), 100))
    assert len(list(repo.ancestry(branch="main"))) == 2


def test_exception_is_raised_unchanged_on_driver(spark: Any) -> None:
    with pytest.raises(NodeNotFoundError, match="there is no 2") as caught:
        list(SparkExecutor(spark, tasks=1).map(Task(refuse, "numbers"), range(5)))

    assert caught.value.kind == ErrorKind.NODE_NOT_FOUND


def test_empty_map_starts_no_job() -> None:
    nobody: Any = None

    assert list(SparkExecutor(nobody).map(Task(refuse, "numbers"), [])) == []
    with pytest.raises(ValueError, match="at least 1"):
        SparkExecutor(nobody, tasks=0)


def test_active_session_is_reused(spark: Any) -> None:
    assert local_session() is spark
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
