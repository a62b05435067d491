"""Start Spark clusters and programs that use them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from icefloe.spark import QUICK_START
from icefloe.spark.java import find_java_home
from tests.support.source_tree import ROOT

LIMIT_SECONDS = 3600
"""A slow machine is no failure: this ends what would never end."""


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
    """A program of these tests, with a group of processes for itself and all that it starts."""
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
    """Wait for a program to say that all is well; nothing of it is left when it has not."""
    try:
        out, errors = job.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    assert out.strip().endswith("all well"), errors[-3000:]


@contextmanager
def started(arguments: list[str], log: Path, ready: str, **more: str) -> Iterator[str]:
    """A process of Spark's own, up to the line that tells it is ready; the line."""
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
        except subprocess.TimeoutExpired:  # Spark takes its time to say goodbye
            process.kill()
            process.wait()


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master with two workers on two hosts, as far as Spark can tell; its URL."""
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
