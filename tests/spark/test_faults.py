"""Workers, executors and drivers that are killed while they write: `make test-cluster`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import icefloe
from tests.source_tree import ROOT
from tests.spark.test_clusters import LIMIT_SECONDS, environment
from tests.spark.weather import CHUNKS, opened, repository, weather

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def prepared(folder: Path) -> icefloe.Repository:
    repo = repository(weather(), icefloe.local_filesystem_storage(str(folder / "repo")), CHUNKS)
    (folder / "base").write_text(repo.lookup_branch("main"))
    return repo


def commits(repo: icefloe.Repository) -> int:
    return len(list(repo.ancestry(branch="main"))) - 2


def started(folder: Path, master: str, how: str, *victims: str) -> subprocess.Popen[str]:
    job = [sys.executable, "-W", "ignore", "-m", "tests.spark.fault_job", master, str(folder / "repo"), how]
    return subprocess.Popen(
        [*job, *victims],
        cwd=ROOT,
        env=environment(SPARK_LOCAL_IP="127.0.0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(job: subprocess.Popen[str]) -> None:
    out, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert out.strip().endswith("all well"), errors[-3000:]


@pytest.mark.parametrize("how", ["write", "save"])
def test_workers_and_executors_that_are_killed(tmp_path: Path, how: str) -> None:
    repo = prepared(tmp_path)

    finished(started(tmp_path, "local-cluster[2,1,1024]", how, "worker", "executor"))

    assert commits(repo) == 2
    assert (opened(repo.readonly_session("main"))["rain"].values == weather()["rain"].values + 2).all()


@pytest.mark.parametrize("how", ["write", "save"])
def test_drivers_that_are_killed(tmp_path: Path, how: str) -> None:
    repo = prepared(tmp_path)

    kill_when(started(tmp_path, "local[2]", how), lambda: any((tmp_path / "traces").glob("*/*")))

    assert commits(repo) == 0

    kill_when(started(tmp_path, "local[2]", how), lambda: commits(repo) > 0)
    finished(started(tmp_path, "local[2]", how))

    assert commits(repo) == 1
    assert (opened(repo.readonly_session("main"))["rain"].values == weather()["rain"].values + 1).all()


def kill_when(job: subprocess.Popen[str], time_has_come: Callable[[], bool]) -> None:
    """Kill a driver with its JVM at a moment."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not time_has_come():
        assert job.poll() is None, job.stderr.read() if job.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
