"""Measure feeds on an S3 server that takes 60 ms per request: many writers, and commits across many arrays.

Run `python -m benchmarks.feeds` for figures as in docs/explanation/benchmark-details.md, or with
`--writers 10 --commits 5` for a small version. The CPU of the server is not counted.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks import slow_s3
from benchmarks.harness import OURS, THEIRS

CELLS = 16_384
"""The size of a row: one chunk of 64 KiB."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=100)
    parser.add_argument("--commits", type=int, default=10, help="per writer")
    parser.add_argument("--arrays", type=int, default=175)
    parser.add_argument("--repeat", type=int, default=20, help="commits across many arrays")
    parser.add_argument("--package", action="append", choices=[OURS, THEIRS])
    parser.add_argument("--only", choices=["arrays", "writers"])
    options = parser.parse_args()
    for name in options.package or [OURS, THEIRS]:
        if options.only != "writers":
            print(measure_arrays(name, options.arrays, options.repeat))
        if options.only != "arrays":
            alone = measure_writers(name, 1, options.writers * options.commits)
            print(alone, flush=True)
            together = measure_writers(name, options.writers, options.commits)
            print(f"{together}; {together.compare(alone)}", flush=True)


def measure_arrays(name: str, arrays: int, repeat: int) -> str:
    """Measure commits that append one chunk to each of many arrays."""
    package = import_module(name)
    url = slow_s3.start(Path(tempfile.mkdtemp()), slow_s3.SLOW_S)
    repo = package.Repository.create(slow_s3.storage(package, url, f"{name}-arrays"))
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    for number in range(arrays):
        group.create_array(
            f"v{number}", shape=(0, 64), chunks=(1, 64), dtype="f4", dimension_names=("time", "x")
        )
    session.commit("arrays")
    walls, cpu = [], time.process_time()
    for step in range(repeat):
        session = repo.writable_session("main")
        group = zarr.open_group(session.store)
        for number in range(arrays):
            array: Any = group[f"v{number}"]
            array.resize((step + 1, 64))
            array[step] = np.full(64, step + number, "f4")
        began = time.perf_counter()
        session.commit(f"step {step}")
        walls.append(time.perf_counter() - began)
    cpu = (time.process_time() - cpu) / repeat
    p50, p99 = np.percentile(walls, [50, 99])
    return (
        f"{name}: commit of {arrays} arrays p50 {p50:.2f} s, p99 {p99:.2f} s, {cpu:.2f} CPU s with its writes"
    )


@dataclass(frozen=True, slots=True)
class Feed:
    """The cost of a feed."""

    name: str
    writers: int
    commits: int
    wall_s: float
    cpu_s: float
    attempts: float
    """The median number of attempts per commit."""
    uploaded_bytes: int
    """Without `repo` and its backups."""
    requests: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.writers} writers, {self.commits} commits in {self.wall_s:.1f} s,"
            f" {self.cpu_s:.1f} CPU s, {self.attempts:g} attempts (median), {self.requests} requests,"
            f" {self.uploaded_bytes / 1e6:.1f} MB"
        )

    def compare(self, other: Feed) -> str:
        """Compare with one writer."""
        wall, size = self.wall_s / other.wall_s, self.uploaded_bytes / other.uploaded_bytes
        return f"{wall:.2f} x the time and {size:.2f} x the bytes of one writer"


def measure_writers(name: str, writers: int, commits: int) -> Feed:
    """Let processes append one chunk per commit, and check the result."""
    package = import_module(name)
    url = slow_s3.start(Path(tempfile.mkdtemp()), slow_s3.SLOW_S)
    prefix = f"{name}-{writers}"
    repo = package.Repository.create(slow_s3.storage(package, url, prefix))
    _create(repo)
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.feeds_writer", name, url, prefix, str(number), str(commits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(writers)
    ]
    for job in jobs:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
    slow_s3.traffic(url)
    used, began = _child_cpu(), time.perf_counter()
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("go\n")
        job.stdin.flush()
    for job in jobs:
        assert job.wait() == 0
    wall = time.perf_counter() - began
    cpu = _child_cpu() - used
    seen = slow_s3.traffic(url)
    _check(repo, writers, commits)
    uploaded = sum(size for kind, size in seen.uploaded.items() if kind not in ("repo", "overwritten"))
    return Feed(
        name,
        writers,
        writers * commits,
        wall,
        cpu,
        statistics.median(seen.attempts),
        uploaded,
        sum(seen.requests.values()),
    )


def _create(repo: Any) -> None:
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array(
        "t", shape=(0, CELLS), chunks=(1, CELLS), dtype="f4", dimension_names=("time", "x"), compressors=None
    )
    group.create_array("time", shape=(0,), chunks=(4096,), dtype="i8", dimension_names=("time",))
    session.commit("create")


def _check(repo: Any, writers: int, commits: int) -> None:
    """Check that every label exists once, with its value."""
    group = zarr.open_group(repo.readonly_session("main").store, mode="r")
    labels: Any = group["time"]
    values: Any = group["t"]
    found = np.asarray(labels[:])
    assert sorted(found.tolist()) == list(range(writers * commits)), "rows are missing or doubled"
    for row in range(0, len(found), max(len(found) // 20, 1)):
        assert values[row, 0] == found[row], f"row {row} has the values of another label"


def _child_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
