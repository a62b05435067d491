"""Run simulations and processes for a given time: `python -m tests.support.simulation.torture --minutes 30`.

Prints figures, and ends with 1 if anything was violated; each failing seed comes with the command that runs
it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from typing import Any

from tests.support.servers.moto import make_bucket, moto_server
from tests.support.simulation import bank
from tests.support.simulation.feed import simulate_feed
from tests.support.simulation.worlds import WORLDS, run_seed

_LONG_STEPS = 200
"""Every fourth history has so many steps, the others 50."""


def history(world: str, seed: int, steps: int) -> tuple[Counter[str], str | None]:
    """Run one simulation; return statistics, and how to repeat it if it failed."""
    done = run_seed(world, seed, steps)
    figures = Counter(
        histories=1,
        steps=done.steps,
        commits=done.commits,
        merges=done.merges,
        maintenance=done.maintenance,
        crashes=done.crashes,
        faults=done.faults,
    )
    if done.violation is None:
        return figures, None
    command = f"python -m tests.support.simulation.replay {world} {seed} --steps {steps}"
    return figures, f"{command}: {done.violation[:500]}"


def feed(seed: int, spec_version: int, steps: int) -> tuple[Counter[str], str | None]:
    """Simulate a feed; return statistics, and how to repeat it if it failed."""
    done = simulate_feed(seed, spec_version=spec_version, steps=steps)
    figures = Counter(
        feeds=1,
        appends=done.appends,
        windows=done.windows,
        grouped=done.grouped,
        crashes=done.crashes,
        faults=done.faults,
    )
    if done.violation is None:
        return figures, None
    command = f"python -m tests.support.simulation.feed --seed {seed} --spec-version {spec_version}"
    return figures, f"{command} --steps {steps}: {done.violation[:500]}"


def processes(place: dict[str, Any], spec_version: int, transfers: int) -> tuple[Counter[str], str | None]:
    """Run one round of processes on a new bank; return statistics."""
    try:
        bank.found(place, spec_version)
        acknowledged = bank.run(place, 4, transfers, seed=int(time.time()))
        bank.check(place, acknowledged)
    except AssertionError:
        return Counter(rounds=1), f"processes at {place}, V{spec_version}: {traceback.format_exc()}"
    where = "folder" if "folder" in place else "S3"
    return Counter({"rounds of processes": 1, f"commits on {where}": len(acknowledged)}), None


def work(first: int, folder: str, url: str) -> Iterator[tuple[Any, ...]]:
    """Yield simulations without end, and a round of processes now and then."""
    for number in count():
        version = 1 + number // 100 % 2
        if number % 100 == 0:
            yield processes, {"folder": f"{folder}/bank-{number}"}, version, 250
        if number % 100 == 50:
            place = {"bucket": "bank", "prefix": f"bank-{number}", "endpoint_url": url}
            yield processes, place, version, 25
        if number % 10 == 0:
            yield feed, first + number, version, _LONG_STEPS if number % 40 == 0 else 30
        seed = first + number // len(WORLDS)
        yield history, WORLDS[number % len(WORLDS)], seed, _LONG_STEPS if seed % 4 == 0 else 50


def torture(minutes: float, jobs: int, first: int) -> tuple[Counter[str], list[str]]:
    """Run until the time is over; return statistics and failures."""
    figures: Counter[str] = Counter()
    failures: list[str] = []
    deadline = time.monotonic() + minutes * 60
    with (
        tempfile.TemporaryDirectory() as folder,
        moto_server() as url,
        ProcessPoolExecutor(jobs) as pool,
    ):
        make_bucket(url, "bank")
        running: set[Future[tuple[Counter[str], str | None]]] = set()
        for task in work(first, folder, url):
            running.add(pool.submit(*task))
            over = time.monotonic() > deadline
            while running and (over or len(running) > jobs):
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    counted, failure = future.result()
                    figures += counted
                    failures += [] if failure is None else [failure]
            if over:
                return figures, failures
    raise AssertionError("there is always work")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed")
    given = parser.parse_args()
    figures, failures = torture(given.minutes, given.jobs, given.first)
    for name, number in sorted(figures.items()):
        sys.stdout.write(f"{name}: {number}\n")
    sys.stdout.write(f"violations: {len(failures)}\n")
    for failure in failures:
        sys.stdout.write(f"FAILED {failure}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
