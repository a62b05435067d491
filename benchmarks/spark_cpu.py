"""Measure the CPU time of a Spark job: driver, JVM and Python workers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one run."""

    cpu_s: float
    wall_s: float


def interleaved(sides: Mapping[str, Callable[[], Any]], repeat: int, before: int = 1) -> dict[str, Cost]:
    """Return the median cost of each side, after warm-up runs, in alternating turns that are printed."""
    for _ in range(before):
        for name, side in sides.items():
            print(f"    {name}: {_cost(side)}", file=sys.stderr, flush=True)
    found: dict[str, list[Cost]] = {name: [] for name in sides}
    for _ in range(repeat):
        for name, side in sides.items():
            found[name].append(_cost(side))
            print(f"    {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    return {
        name: Cost(median(each.cpu_s for each in costs), median(each.wall_s for each in costs))
        for name, costs in found.items()
    }


def _cost(side: Callable[[], Any]) -> Cost:
    cpu, wall = _tree_cpu(), time.perf_counter()
    side()
    return Cost(_tree_cpu() - cpu, time.perf_counter() - wall)


def _tree_cpu() -> float:
    """Return the CPU seconds of this process and its descendants, including children that have ended."""
    children: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has just ended
            continue
        children.setdefault(int(fields[1]), []).append(int(folder.name))
        spent[int(folder.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += spent.get(process, 0)
        waiting += children.get(process, [])
    return total / _TICKS
