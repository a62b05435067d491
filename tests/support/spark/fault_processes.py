"""Find the processes of a Spark job in /proc, with their parents and roles."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_EXECUTOR = "CoarseGrainedExecutorBackend"
_DAEMON = "pyspark.daemon"


def below(*roots: int) -> Iterator[int]:
    """Return all descendants of processes."""
    parents = {int(each): _parent(int(each)) for each in os.listdir("/proc") if each.isdigit()}
    found = set(roots)
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
        yield from new


def workers(*roots: int) -> list[int]:
    """Find Python workers, which the daemon of an executor forks."""
    daemons = {pid for pid in below(*roots) if _DAEMON in command(pid)}
    return sorted(pid for pid in daemons if _parent(pid) in daemons)


def executors(*roots: int) -> list[int]:
    """Find the JVMs of executors."""
    return sorted(pid for pid in below(*roots) if _EXECUTOR in command(pid))


def driver_machines(*roots: int) -> list[int]:
    """Find the JVM of a driver."""
    found = (pid for pid in below(*roots) if "java" in command(pid) and _EXECUTOR not in command(pid))
    return sorted(found)


def command(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def stop_for(pid: int, seconds: float) -> None:
    """Suspend a process for a while."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    _send(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    """Kill a process with SIGKILL, if it still exists."""
    _send(pid, signal.SIGKILL)


def without_handles(pid: int) -> None:
    """Set the file limit of a process so that it cannot open files."""
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, hard))
    except ProcessLookupError:
        return


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
