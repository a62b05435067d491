"""Start Spark clusters and programs that use them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from icefloe.spark import QUICK_START
from icefloe.spark.java import find_java_home
from tests.support.source_tree import ROOT

LIMIT_SECONDS = 3600
"""Timeout of programs that never end; long enough for a slow machine."""


def environment(**more: str) -> dict[str, str]:
    folders = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_DAEMON_JAVA_OPTS": QUICK_START["spark.driver.extraJavaOptions"],
        "SPARK_DAEMON_MEMORY": "512m",
        **more,
    }


def started_job(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program of these tests in its own process group."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        cwd=ROOT,
        env=environment(SPARK_LOCAL_IP="127.0.0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(job: subprocess.Popen[str]) -> None:
    """Wait until a program prints that all is well. If it fails, kill its process group."""
    try:
        out, errors = job.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    assert out.strip().endswith("all well"), errors[-3000:]


def kill_when(job: subprocess.Popen[str], time_has_come: Callable[[], bool], wait_s: float = 0) -> None:
    """Kill a driver and its JVM when a condition holds, or some time later."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not time_has_come():
        assert job.poll() is None, job.stderr.read() if job.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(wait_s)
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate()


@contextmanager
def started(arguments: list[str], log: Path, ready: str, **more: str) -> Iterator[str]:
    """Start a daemon of Spark, and return the line in which it reports to be ready."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(program), *arguments], env=environment(**more), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while (found := re.search(ready, log.read_text())) is None:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.5)
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:  # Spark takes a while to stop
            process.kill()
            process.wait()


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Start a master with two workers that appear to be on two hosts, and yield its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
    master += ["--webui-port", "0"]
    worker = ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
    worker += ["--work-dir", str(folder / "work")]
    joined = "Successfully registered with master"

    here, there = {"SPARK_LOCAL_IP": "127.0.0.1"}, {"SPARK_LOCAL_IP": "127.0.0.2"}
    with (
        started(master, folder / "master.log", r"spark://127\.0\.0\.1:\d+", **here) as url,
        started([*worker, "--host", "127.0.0.1", url], folder / "one.log", joined, **here),
        started([*worker, "--host", "127.0.0.2", url], folder / "two.log", joined, **there),
    ):
        yield url
