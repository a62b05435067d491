"""Kill workers, executors and drivers while they write (`make test-cluster`).

`ICEFLOE_DRIVER_KILLS=20` kills more drivers at random times.
"""

from __future__ import annotations

import random
import subprocess
from functools import partial
from pathlib import Path

import pytest

import icefloe
from tests.support.spark.clusters import finished, kill_when, started_job
from tests.support.spark.kill_job import LONGEST_WAIT_S, after
from tests.support.spark.stream_kills import DRIVER_KILLS, check_stream_survives_kills
from tests.support.spark.weather import CHUNKS, opened, repository, weather

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def prepared(folder: Path) -> icefloe.Repository:
    repo = repository(weather(), icefloe.local_filesystem_storage(str(folder / "repo")), CHUNKS)
    (folder / "base").write_text(repo.lookup_branch("main"))
    return repo


def commits(repo: icefloe.Repository) -> int:
    return len(list(repo.ancestry(branch="main"))) - 2


def started(folder: Path, master: str, how: str, *more: str, job: str = "fault_job") -> subprocess.Popen[str]:
    return started_job(f"tests.support.spark.{job}", master, str(folder / "repo"), how, *more)


@pytest.mark.parametrize("how", ["write", "save"])
def test_write_survives_killed_workers_and_executors(tmp_path: Path, how: str) -> None:
    repo = prepared(tmp_path)

    finished(started(tmp_path, "local-cluster[2,1,1024]", how, "worker", "executor"))

    assert commits(repo) == 2
    assert (opened(repo.readonly_session("main"))["rain"].values == weather()["rain"].values + 2).all()


@pytest.mark.parametrize("how", ["write", "save"])
def test_write_survives_killed_drivers(tmp_path: Path, how: str) -> None:
    repo = prepared(tmp_path)

    kill_when(started(tmp_path, "local[2]", how), lambda: any((tmp_path / "traces").glob("*/*")))

    assert commits(repo) == 0

    kill_when(started(tmp_path, "local[2]", how), lambda: commits(repo) > 0)
    finished(started(tmp_path, "local[2]", how))

    assert commits(repo) == 1
    assert (opened(repo.readonly_session("main"))["rain"].values == weather()["rain"].values + 1).all()


@pytest.mark.parametrize("how", ["write", "save"])
def test_write_survives_kills_at_any_time(tmp_path: Path, how: str) -> None:
    repo, chance = prepared(tmp_path), random.Random()
    order = (tmp_path, "local-cluster[2,1,1024]", how, str(WRITES))
    for _ in range(DRIVER_KILLS):
        job = started(*order, job="kill_job")
        # After the first rows of this run, or some time after the first rows of a later write.
        goal = traces(tmp_path) + chance.randrange(5)
        kill_when(job, partial(has_come, job, tmp_path, goal), chance.uniform(0, LONGEST_WAIT_S))

    finished(started(*order, job="kill_job"))

    infos = repo.ancestry(branch="main")
    keys = [info.metadata["txnVersion"] for info in infos if "txnVersion" in info.metadata]
    assert sorted(keys, key=int) == [str(number) for number in range(WRITES)]
    assert (opened(repo.readonly_session("main"))["rain"].values == after(WRITES)).all()


WRITES = 8


def test_stream_survives_kills_at_any_time(tmp_path: Path) -> None:
    check_stream_survives_kills(tmp_path, DRIVER_KILLS)


def traces(folder: Path) -> int:
    return len(list((folder / "traces").glob("*/*")))


def has_come(job: subprocess.Popen[str], folder: Path, goal: int) -> bool:
    """Check whether a job has left more than this many traces, or is finished."""
    return traces(folder) > goal or job.poll() is not None
