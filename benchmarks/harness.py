"""Measures two ways to do the same job beside each other.

CPU seconds (all threads) are the figure: wall time on a shared machine says more about the neighbours. The
sides take turns, A B A B, so that both meet the same minute, and the median counts. Peak memory is taken in a
process of its own per side, above what the process held before the job: the second job in a process would
reuse the memory of the first.
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
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Side:
    """One way to do a job."""

    does: str
    """What is timed, in a few words."""
    prepare: Callable[[Path, Path], Job]
    """Given the row's folder and an empty one, neither timed nor counted as memory."""


@dataclass(frozen=True, slots=True)
class Row:
    """A job, both ways to do it, and what is expected of ours."""

    name: str
    title: str
    ours: Side
    theirs: Side | None = None
    cpu_ratio: float | None = None
    """Theirs over ours, at least."""
    wall_ratio: float | None = None
    """The same for wall time: for rows that wait for a network."""
    memory_ratio: float | None = None
    """Ours over theirs, at most."""
    memory_bytes: int | None = None
    """Of the whole process, at most."""
    setup: Callable[[Path], None] | None = None
    """Fills the row's folder, once."""
    setup_needs_theirs: bool = False
    check: Callable[[Any, Any], None] | None = None
    """Compares what the sides gave: the same job must have the same result."""
    repeat: int = 5


@dataclass(frozen=True, slots=True)
class Peak:
    """What one run in a process of its own took."""

    job_bytes: int
    """Above what the process held before."""
    process_bytes: int
    cpu_s: float


@dataclass(slots=True)
class Figures:
    """The measurements of one side."""

    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    peak: Peak | None = None

    @property
    def cpu(self) -> float:
        """The median of the CPU seconds."""
        return median(self.cpu_s)

    @property
    def wall(self) -> float:
        """The median of the wall seconds."""
        return median(self.wall_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row and its figures."""

    row: Row
    ours: Figures | None
    theirs: Figures | None
    note: str = ""

    @property
    def cpu_ratio(self) -> float | None:
        """How many times less CPU ours took."""
        return self.theirs.cpu / self.ours.cpu if self.ours and self.theirs else None

    @property
    def wall_ratio(self) -> float | None:
        """How many times less time went by in ours."""
        return self.theirs.wall / self.ours.wall if self.ours and self.theirs else None

    @property
    def memory_ratio(self) -> float | None:
        """Which part of their peak memory ours took."""
        if not (self.ours and self.theirs and self.ours.peak and self.theirs.peak):
            return None
        if not self.theirs.peak.job_bytes:  # it found room in what the process held before
            return None
        return self.ours.peak.job_bytes / self.theirs.peak.job_bytes

    @property
    def passed(self) -> bool | None:
        """Whether every target was met; None where one could not be measured."""
        found: list[bool | None] = []
        row = self.row
        if row.cpu_ratio is not None:
            found.append(None if self.cpu_ratio is None else self.cpu_ratio >= row.cpu_ratio)
        if row.wall_ratio is not None:
            found.append(None if self.wall_ratio is None else self.wall_ratio >= row.wall_ratio)
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
        # In fresh processes, and first: this process still is small.
        peaks = {name: _measure_peak(row, name, shared) for name in sides}
        figures = {name: Figures(peak=peaks[name]) for name in sides}
        for turn in range(repeat or row.repeat):
            results = {name: _run_once(side, shared, figures[name]) for name, side in sides.items()}
            if turn == 0 and row.check is not None and len(results) == 2:
                row.check(results[OURS], results[THEIRS])
            del results
    note = unavailable if row.theirs is not None else ""
    return Outcome(row, figures[OURS], figures.get(THEIRS), note)


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
    """Have processes whose parent ends come to this one, as they would to init: their CPU is not lost."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_seconds() -> float:
    """What this process has taken, all threads, and those it started: workers that still run, too."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = sum(map(_cpu_of, descendants()))
    return time.process_time() + children.ru_utime + children.ru_stime + running


def descendants() -> Iterator[int]:
    """The processes that run and that this one started, and theirs."""
    if not Path("/proc/self/stat").exists():
        return
    parents = {int(each): _stat(int(each))[1] for each in os.listdir("/proc") if each.isdigit()}
    found = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
        yield from new


def _cpu_of(pid: int) -> float:
    """What a process has taken, and those it waited for."""
    return sum(_stat(pid)[11:15]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[int]:
    """The numbers that Linux tells of a process, from the parent's on at 1; zeros for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return [0] * 20
    return [0, *map(int, text.rpartition(")")[2].split()[1:])]


def peak_bytes() -> int:
    """The most memory this process ever held."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the process that started this one, too
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
    """What was measured, and on what."""
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
