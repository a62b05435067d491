"""Kill the driver of a stream that writes into a repository, again and again, and count its rows.

`ICEFLOE_DRIVER_KILLS=20` kills more drivers at random times.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import icefloe
from tests.support.spark.clusters import finished, kill_when, started_job
from tests.support.spark.stream_job import write_files
from tests.support.spark.weather import opened

DRIVER_KILLS = int(os.environ.get("ICEFLOE_DRIVER_KILLS", "1"))


def check_stream_survives_kills(
    folder: Path, kills: int, commit: Callable[[Path], None] = lambda _: None
) -> None:
    """Run a stream, kill its driver at random times, and check that each row was written exactly once.

    Another writer commits with the given function each time before the stream starts.
    """
    chance = random.Random()
    expected = write_files(folder / "rows", 10 + 8 * kills)
    path = folder / "repo"
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(path)))
    for _ in range(kills):
        commit(path)
        job = started_job("tests.support.spark.stream_job", "local[1]", str(path))
        goal = count_keys(repo) + chance.randrange(3)
        kill_when(job, partial(has_committed, job, repo, goal), chance.uniform(0, 1))
        if chance.random() < 0.3:
            repo.expire_snapshots(older_than=datetime.now(UTC))

    finished(started_job("tests.support.spark.stream_job", "local[1]", str(path)))

    keys = list_keys(repo)
    assert len(keys) == len(set(keys))
    assert opened(repo.readonly_session("main"))["v"].values.tolist() == expected.tolist()


def list_keys(repo: icefloe.Repository) -> list[str]:
    """List the batches that were committed and have not expired."""
    infos = repo.ancestry(branch="main")
    return [info.metadata["txnVersion"] for info in infos if "txnVersion" in info.metadata]


def count_keys(repo: icefloe.Repository) -> int:
    """Count the batches that were committed and have not expired."""
    return len(list_keys(repo))


def has_committed(job: subprocess.Popen[str], repo: icefloe.Repository, goal: int) -> bool:
    """Check whether a stream has committed more than this many batches, or is finished."""
    return count_keys(repo) > goal or job.poll() is not None
