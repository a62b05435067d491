"""Provide running Spark and dask sessions for benchmarks, and the memory of their workers."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness import descendants

WORKERS = 2
SCALE = float(os.environ.get("ICEFLOE_BENCH_SCALE", "1"))
"""Scale of the data, to try a row: 0.01 takes seconds."""

_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

_running: list[Any] = []
_clusters: list[Any] = []
_before: dict[str, int] = {}
"""Memory of the largest worker of each kind before the first job."""


def scaled(count: int, least: int = 1) -> int:
    """Scale a number by ICEFLOE_BENCH_SCALE."""
    return max(least, round(count * SCALE))


def spark(cores: int = WORKERS) -> Any:
    """Start a session whose workers have imported their modules, and stop one with other cores."""
    from icefloe._internal.executor import Task
    from icefloe.spark import QUICK_START, local_session
    from icefloe.spark.executor import SparkExecutor

    if _running and _running[0].sparkContext.defaultParallelism != cores:
        _running.pop().stop()
    if not _running:
        _running.append(local_session(cores=cores, settings=QUICK_START))  # like the command line
        atexit.register(_running[0].stop)
        for _ in range(2):
            list(SparkExecutor(_running[0]).map(Task(warm, "warm-ups"), range(2 * cores)))
        _before["pyspark.daemon"] = max(_held("pyspark.daemon", "VmRSS:"), default=0)
    _confine(cores)
    return _running[0]


def _confine(cores: int) -> None:
    """Restrict this process and its children to this many cores: a single task uses several threads."""
    allowed = sorted(_CORES)[:cores]
    if not allowed:  # only on Linux
        return
    for pid in (os.getpid(), *descendants()):
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):  # the process has ended
                os.sched_setaffinity(int(thread.name), allowed)


def dask() -> Any:
    """Start a dask cluster of processes with one thread each, and return its client.

    Call `stop_dask` afterwards: idle workers take a tenth of a core, which would count for the other side.
    """
    distributed: Any = importlib.import_module("distributed")
    cluster = distributed.LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None)
    client = distributed.Client(cluster)
    client.gather(client.map(warm, range(2 * WORKERS), pure=False))
    _before["multiprocessing"] = max(_held("multiprocessing", "VmRSS:"), default=0)
    _clusters.append((client, cluster))
    return client


def stop_dask() -> None:
    """Stop the dask cluster, if one runs."""
    while _clusters:
        for each in _clusters.pop():
            each.close()


@functools.cache
def pool() -> ProcessPoolExecutor:
    """Start a pool of two processes that have imported their modules."""
    started = ProcessPoolExecutor(WORKERS)
    list(started.map(warm, range(2 * WORKERS)))
    atexit.register(started.shutdown)
    return started


def warm(_: int) -> int:
    """Import the modules that a worker needs."""
    names = ["icefloe.ingest.job", "icefloe.ingest.rechunk_job", "icefloe.virtual", "h5netcdf", "xarray"]
    names += ["icechunk.dask", "virtualizarr.parsers"]
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except ImportError:  # modules of the peer
            continue
    return len(found)


def tell(who: str, kind: str) -> None:
    """Print the peak memory of the largest worker of each kind to standard error."""
    peak, before = max(_held(kind, "VmHWM:"), default=0) >> 20, _before.get(kind, 0) >> 20
    print(f"    {who}: largest worker {peak} MiB, {before} MiB before it began", file=sys.stderr)


def _held(kind: str, what: str) -> list[int]:
    return [_status(pid, what) for pid in descendants() if kind in _command(pid)]


def _status(pid: int, what: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # the process has ended
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(what)), 0)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
