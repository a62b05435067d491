"""Compare two implementations of the same job.

The result is CPU seconds of all threads, because wall time on a shared machine depends on other processes.
The sides alternate, so that both see the same load, and the median counts. Peak memory is measured in a
separate process per side, relative to the memory before the job: a second job in one process would reuse the
memory of the first.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Final

Job = Callable[[], Any]
RUN: Final = Path(__file__).with_name("run.py")
OURS: Final = "icefloe"
THEIRS: Final = "icechunk"
LIMIT: Final = "limit"
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Side:
    """An implementation of a job."""

    does: str
    """Description of the timed work."""
    prepare: Callable[[Path, Path], Job]
    """Preparation, which receives the folder of the row and an empty folder. Not measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """A job with both implementations and the targets of ours."""

    name: str
    title: str
    ours: Side
    theirs: Side | None = None
    limit: Side | None = None
    """The work that no implementation can avoid, in one process."""
    limit_ratio: float | None = None
    """Largest ratio of CPU time, ours / limit."""
    cpu_ratio: float | None = None
    """Smallest ratio of CPU time, theirs / ours."""
    wall_ratio: float | None = None
    """Smallest ratio of wall time, for rows that wait for a network."""
    memory_ratio: float | None = None
    """Largest ratio of memory, ours / theirs."""
    memory_bytes: int | None = None
    """Largest memory of the whole process."""
    setup: Callable[[Path], None] | None = None
    """Function that prepares the folder of the row."""
    setup_needs_theirs: bool = False
    check: Callable[[Any, Any], None] | None = None
    """Compares what the sides gave: the same job must have the same result."""
    repeat: int = 5


@dataclass(frozen=True, slots=True)
class Peak:
    """Memory of one run in a separate process."""

    job_bytes: int
    """Peak memory relative to the memory before the job."""
    process_bytes: int
    cpu_s: float


@dataclass(slots=True)
class Figures:
    """Measurements of one side."""

    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    peak: Peak | None = None

    @property
    def cpu(self) -> float:
        """Median of the CPU seconds."""
        return median(self.cpu_s)

    @property
    def wall(self) -> float:
        """Median of the wall seconds."""
        return median(self.wall_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row with its measurements."""

    row: Row
    ours: Figures | None
    theirs: Figures | None
    note: str = ""
    limit: Figures | None = None

    @property
    def cpu_ratio(self) -> float | None:
        """Ratio of CPU time, theirs / ours."""
        return self.theirs.cpu / self.ours.cpu if self.ours and self.theirs else None

    @property
    def wall_ratio(self) -> float | None:
        """Ratio of wall time, theirs / ours."""
        return self.theirs.wall / self.ours.wall if self.ours and self.theirs else None

    @property
    def limit_ratio(self) -> float | None:
        """Ratio of CPU time, ours / limit."""
        return self.ours.cpu / self.limit.cpu if self.ours and self.limit else None

    @property
    def memory_ratio(self) -> float | None:
        """Ratio of peak memory, ours / theirs."""
        if not (self.ours and self.theirs and self.ours.peak and self.theirs.peak):
            return None
        if not self.theirs.peak.job_bytes:  # the job fitted into memory that the process already had
            return None
        return self.ours.peak.job_bytes / self.theirs.peak.job_bytes

    @property
    def passed(self) -> bool | None:
        """True if all targets were met; None if one of them could not be measured."""
        found: list[bool | None] = []
        row = self.row
        if row.cpu_ratio is not None:
            found.append(None if self.cpu_ratio is None else self.cpu_ratio >= row.cpu_ratio)
        if row.wall_ratio is not None:
            found.append(None if self.wall_ratio is None else self.wall_ratio >= row.wall_ratio)
        if row.limit_ratio is not None:
            found.append(None if self.limit_ratio is None else self.limit_ratio <= row.limit_ratio)
        if row.memory_ratio is not None:
            found.append(None if self.memory_ratio is None else self.memory_ratio <= row.memory_ratio)
        if row.memory_bytes is not None:
            peak = self.ours.peak if self.ours else None
            found.append(None if peak is None else peak.process_bytes <= row.memory_bytes)
        if False in found:
            return False
        return None if None in found else True


def measure(row: Row, repeat: int | None, unavailable: str) -> Outcome:
    """Run one row. Where `unavailable` says why the other side cannot run, ours runs alone if it can."""
    if unavailable and row.setup_needs_theirs:
        return Outcome(row, None, None, unavailable)
    sides = {OURS: row.ours}
    if row.theirs is not None and not unavailable:
        sides[THEIRS] = row.theirs
    with _folder() as shared:
        if row.setup is not None:
            row.setup(shared)
        if row.limit is not None:
            sides[LIMIT] = row.limit
        # In new processes, and first, while this process is still small.
        peaks = {name: _measure_peak(row, name, shared) for name in sides if name != LIMIT}
        figures = {name: Figures(peak=peaks.get(name)) for name in sides}
        for turn in range(repeat or row.repeat):
            results = {name: _run_once(side, shared, figures[name]) for name, side in sides.items()}
            if turn == 0 and row.check is not None and THEIRS in results:
                row.check(results[OURS], results[THEIRS])
            del results
    note = unavailable if row.theirs is not None else ""
    return Outcome(row, figures[OURS], figures.get(THEIRS), note, figures.get(LIMIT))


def _run_once(side: Side, shared: Path, figures: Figures) -> Any:
    with _folder() as scratch:
        job = side.prepare(shared, scratch)
        gc.collect()
        wall, cpu = time.perf_counter(), cpu_seconds()
        result = job()
        figures.cpu_s.append(cpu_seconds() - cpu)
        figures.wall_s.append(time.perf_counter() - wall)
        return result


def _measure_peak(row: Row, side: str, shared: Path) -> Peak:
    command = [sys.executable, str(RUN), "--row", row.name, "--peak-of", side, "--folder", str(shared)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def run_for_peak(side: Side, shared: Path) -> Peak:
    """Run a job in this process, which does nothing else."""
    with _folder() as scratch:
        job = side.prepare(shared, scratch)
        gc.collect()
        before, cpu = peak_bytes(), cpu_seconds()
        result = job()
        cpu_s, after = cpu_seconds() - cpu, peak_bytes()
        del result
    return Peak(after - before, after, cpu_s)


def adopt_orphans() -> None:
    """Adopt orphaned child processes, so that their CPU time is counted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants, including running workers."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = sum(map(_cpu_of, descendants()))
    return time.process_time() + children.ru_utime + children.ru_stime + running


def descendants() -> Iterator[int]:
    """Return all running descendants of this process."""
    if not Path("/proc/self/stat").exists():
        return
    parents = {int(each): _stat(int(each))[1] for each in os.listdir("/proc") if each.isdigit()}
    found = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
        yield from new


def _cpu_of(pid: int) -> float:
    """Return the CPU time of a process and of the children that it waited for."""
    return sum(_stat(pid)[11:15]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[int]:
    """Return the fields of /proc/PID/stat, with the parent at index 1; zeros if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return [0] * 20
    return [0, *map(int, text.rpartition(")")[2].split()[1:])]


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the parent process
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="icefloe-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def versions(packages: Sequence[str] = (OURS, THEIRS, "numpy", "zstandard", "zarr")) -> dict[str, str]:
    """Describe the environment of the measurement."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
    }
