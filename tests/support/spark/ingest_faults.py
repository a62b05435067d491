"""Inject faults into ingests and rechunks on Spark at random times, and check the invariants each time.

python -m tests.support.spark.ingest_faults FOLDER --master local[2] --count 100 --seed 1 --log cases.jsonl

A driver (`ingest_driver`) runs jobs in one Spark session. This program injects faults: signals, limits, a
full disk, a folder without permission, other writers and changing files. A seed reproduces the cases, but
not their timing, which depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import zarr

import icefloe
from tests.support.ingest import fault_jobs
from tests.support.ingest.fault_jobs import (
    JOBS,
    Job,
    assert_collected,
    assert_complete,
    field_of,
    make_files,
    opened,
)
from tests.support.ingest.files import Travelling, assert_same, expected, read, write
from tests.support.source_tree import ROOT
from tests.support.spark import fault_processes as processes
from tests.support.spark.clusters import environment

LIMIT_SECONDS = 600
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
}
SURVIVED = {"none", "worker", "executor", "slow", "moved"}
"""Faults that a job survives without a second run."""
KILLS = {"driver", "driver alone", "virtual machine"}
"""Faults after which the driver is dead or unusable."""
FAULTS = (
    *sorted(SURVIVED | KILLS),
    "handles",
    "space",
    "permission",
    "rival",
    "deleted",
    "truncated",
    "replaced",
)
NOT_A_SENTENCE = ("Traceback", "Py4J", "java.", "org.apache", "SparkException", "\n")


class Driver:
    """A process with a Spark session that runs jobs on request."""

    def __init__(self, master: str, settings: Mapping[str, str]) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.support.spark.ingest_driver", master]
        command += [f"{name}={value}" for name, value in settings.items()]
        if os.geteuid() == 0:  # root would ignore permissions
            command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(SPARK_LOCAL_IP="127.0.0.1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: Queue[str] = Queue()
        self._unanswered = 1
        threading.Thread(target=self._listen, daemon=True).start()
        assert self.answer() == "ready"

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")

    def order(self, job: Job, folder: Path, files: Sequence[str], on_change: str = "report") -> None:
        """Start a job."""
        assert self.process.stdin is not None
        order = {"job": job.name, "folder": str(folder), "files": list(files), "on_change": on_change}
        self._unanswered += 1
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    @property
    def is_idle(self) -> bool:
        """Check whether the driver waits for a job."""
        return self.process.poll() is None and self._unanswered == 0

    @property
    def is_at_work(self) -> bool:
        """Check whether the job is still running."""
        return self._lines.empty()

    def answer(self) -> str:
        """Return the next line; empty if the driver has ended."""
        self._unanswered -= 1
        try:
            return self._lines.get(timeout=LIMIT_SECONDS)
        except Empty:
            raise AssertionError(f"no answer in {LIMIT_SECONDS} s") from None

    def end(self) -> None:
        """Wait for the end of the job."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait(60)


@dataclass(slots=True)
class Case:
    """A job with its fault, the time of the fault and the outcome."""

    number: int
    master: str
    job: str
    fault: str
    moment: float
    """Approximate progress of the job at the time of the fault."""
    hit: bool = False
    """Whether the job was still running."""
    answer: str = ""
    moved: bool = False
    """Whether main had moved before the second run."""
    garbage: int = 0
    seconds: float = 0.0
    wrong: str = ""
    """Violated invariants."""


class Matrix:
    """Runs cases one after the other, with a driver that is replaced when it was killed."""

    def __init__(self, root: Path, master: str, seed: int, *, speculation: bool = False) -> None:
        self._root = root
        self._master = master
        self._settings = SPECULATION if speculation else {}
        self._random = random.Random(seed)
        self._driver: Driver | None = None
        self._durations: dict[str, float] = {}

    def cases(self, count: int, faults: Sequence[str], jobs: Sequence[str]) -> Iterator[Case]:
        """Generate pairs of faults and jobs in random order, each pair once before any repeats."""
        number = 0
        while number < count:
            pairs = [(fault, job) for fault in faults for job in jobs if self._can(fault, job)]
            self._random.shuffle(pairs)
            for fault, job in pairs[: count - number]:
                yield Case(number, self._master, job, fault, round(self._random.uniform(0, 1.05), 3))
                number += 1

    def _can(self, fault: str, job: str) -> bool:
        if fault == "executor":
            return self._master.startswith(("local-cluster", "spark:"))
        return not (JOBS[job].is_rechunk and fault in {"deleted", "truncated", "replaced"})

    def run(self, case: Case) -> None:
        """Run a job with a fault, check, run it again and check again."""
        began = time.monotonic()
        job = JOBS[case.job]
        with _place(self._root / f"{case.number:04}", full=case.fault == "space") as place:
            files = make_files(place / "data", job)
            folder = place / "disk" / "repo"
            job.prepared(folder, files)
            before = fault_jobs.tip(folder)
            fault = Fault(case, place, folder, files, job)
            self._disturbed(case, fault)
            case.moved = self._looked(case, fault, before)
            again = self._again(case, fault)
            assert again == "null", f"the second run said {again}"
            assert_complete(folder, before, job, files, others=case.fault in {"moved", "rival", "replaced"})
            if case.fault == "moved":
                assert fault.others_are_there()
            assert opened(folder).list_branches() <= {"main", "main.ingest-failed"}
            fault.wait_for_late_ones()
            case.garbage = assert_collected(folder)
        case.seconds = round(time.monotonic() - began, 1)

    def _disturbed(self, case: Case, fault: Fault) -> None:
        driver = self._driver = self._driver or Driver(self._master, self._settings)
        started = time.monotonic()
        driver.order(fault.job, fault.folder, fault.files)
        lasts = self._durations.get(case.job, 4.0)
        time.sleep(case.moment * lasts)
        case.hit = driver.is_at_work
        fault.strike(driver)
        case.answer = driver.answer()
        if case.fault in KILLS:
            self._driver = None
            fault.bury(driver)
        elif case.fault == "none":
            self._durations[case.job] = time.monotonic() - started
        fault.undo()

    def _looked(self, case: Case, fault: Fault, before: str) -> bool:
        """Check the state between the runs; whether main has moved."""
        if case.answer not in {"", "null"}:
            text = json.loads(case.answer)
            assert not any(word in text for word in NOT_A_SENTENCE), text
            assert len(text) < 700, text
        if case.fault in SURVIVED:
            assert case.answer == "null", case.answer
        if case.fault in {"moved", "rival"}:
            return case.answer == "null"
        if fault_jobs.tip(fault.folder) == before:
            assert case.answer != "null"
            return False
        if case.fault == "replaced":
            fault.assert_one_of_both()
        else:
            assert_complete(fault.folder, before, fault.job, fault.files)
        return True

    def _again(self, case: Case, fault: Fault) -> str:
        """Run the job again: on the same Spark, or without, where there is no driver or little to do."""
        if self._driver is None or (case.moved and case.fault != "replaced"):
            fault.job.run(fault.folder, fault.files, Travelling())
            return "null"
        started = time.monotonic()
        on_change = "ingest" if case.fault == "replaced" else "report"
        self._driver.order(fault.job, fault.folder, fault.files, on_change)
        answer = self._driver.answer()
        self._durations.setdefault(case.job, time.monotonic() - started)
        return answer

    def end_unless_idle(self) -> None:
        """Stop a driver that is still running or has died."""
        if self._driver is not None and not self._driver.is_idle:
            self.end()

    def end(self) -> None:
        """Stop the driver."""
        if self._driver is not None:
            self._driver.end()
            self._driver = None


class Fault:
    """A fault that is injected into a job and reverted afterwards."""

    def __init__(self, case: Case, place: Path, folder: Path, files: Sequence[str], job: Job) -> None:
        self.case = case
        self.place = place
        self.folder = folder
        self.files = files
        self.job = job
        self._random = random.Random(f"{case.number} {case.job} {case.fault}")
        self._victim = self._random.choice(list(files))
        self._late: dict[int, str] = {}
        self._was: Any = None

    def strike(self, driver: Driver) -> None:
        """Inject the fault."""
        getattr(self, "_" + self.case.fault.replace(" ", "_"))(driver)

    def undo(self) -> None:
        """Make whatever hindered go away."""
        (self.place / "disk" / "ballast").unlink(missing_ok=True)
        for each in (self.folder, *self.folder.rglob("*")):
            if each.is_dir():
                each.chmod(0o755)
        kept = self.place / "kept.nc"
        if kept.exists():
            shutil.copy2(kept, self._victim)
        for pid in self._late if self.case.fault == "handles" else ():
            processes.kill(pid)

    def _none(self, driver: Driver) -> None:
        """Inject no fault."""

    def _worker(self, driver: Driver) -> None:
        for pid in self._some(processes.workers(os.getpid())):
            processes.kill(pid)

    def _executor(self, driver: Driver) -> None:
        for pid in self._some(processes.executors(os.getpid())):
            processes.kill(pid)

    def _slow(self, driver: Driver) -> None:
        for pid in self._some(processes.workers(os.getpid())):
            processes.stop_for(pid, 4)

    def _handles(self, driver: Driver) -> None:
        for pid in processes.workers(os.getpid()):
            self._late[pid] = processes.command(pid)
            processes.without_handles(pid)

    def _driver(self, driver: Driver) -> None:
        """Kill all processes at once, as if the machine stopped."""
        for pid in (driver.process.pid, *processes.below(driver.process.pid)):
            processes.kill(pid)

    def _driver_alone(self, driver: Driver) -> None:
        """Kill only the driver. Its child processes continue for a while."""
        self._late = {pid: processes.command(pid) for pid in processes.below(driver.process.pid)}
        processes.kill(driver.process.pid)

    def _virtual_machine(self, driver: Driver) -> None:
        self._late = {pid: processes.command(pid) for pid in processes.below(driver.process.pid)}
        for pid in processes.driver_machines(driver.process.pid):
            processes.kill(pid)

    def bury(self, driver: Driver) -> None:
        """Kill the remaining processes of a driver."""
        processes.kill(driver.process.pid)
        driver.process.wait()

    def wait_for_late_ones(self) -> None:
        """Wait until all child processes of a killed driver have ended."""
        deadline = time.monotonic() + 60
        while any(processes.command(pid) == text for pid, text in self._late.items() if text):
            if time.monotonic() > deadline:
                for pid, text in self._late.items():
                    if text and processes.command(pid) == text:
                        processes.kill(pid)
            time.sleep(0.1)

    def _space(self, driver: Driver) -> None:
        with suppress(OSError), (self.place / "disk" / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))

    def _permission(self, driver: Driver) -> None:
        for each in (*self.folder.rglob("*"), self.folder):
            if each.is_dir():
                each.chmod(0o555)

    def _moved(self, driver: Driver) -> None:
        """Commit another array from outside."""
        session = opened(self.folder).writable_session("main")
        zarr.create_array(session.store, name="elsewhere/other", shape=(2,), dtype="i4")[...] = 7
        session.commit("another", rebase_with=icefloe.ConflictDetector())

    def others_are_there(self) -> bool:
        """Check whether main contains the commit from outside."""
        store = opened(self.folder).readonly_session("main").store
        return zarr.open_array(store, path="elsewhere/other", mode="r")[:].tolist() == [7, 7]  # type: ignore[union-attr, no-any-return]

    def _rival(self, driver: Driver) -> None:
        """Run the same job from outside."""
        with suppress(icefloe.IcechunkError):
            self.job.run(self.folder, self.files, Travelling())

    def _deleted(self, driver: Driver) -> None:
        shutil.copy2(self._victim, self.place / "kept.nc")
        os.remove(self._victim)

    def _truncated(self, driver: Driver) -> None:
        shutil.copy2(self._victim, self.place / "kept.nc")
        os.truncate(self._victim, os.path.getsize(self._victim) * 2 // 3)

    def _replaced(self, driver: Driver) -> None:
        """Replace a file with one that has other values of the same shape."""
        number = self.files.index(self._victim)
        other = field_of(number * fault_jobs.DAYS)
        write(
            self.place / "other.nc", other.assign(t2m=other["t2m"] + 1), fault_jobs.encoding(self.job, number)
        )
        self._was = expected(self.files)
        os.replace(self.place / "other.nc", self._victim)

    def assert_one_of_both(self) -> None:
        """Check that a replaced file is in the repository with its old or its new values, not a mixture."""
        if "virtual" in self.job.options.get("mode", "native") or self.job.options.get("mode") == "hybrid":
            return  # references to a file that was replaced: reading them raises an error
        found = read(opened(self.folder))
        wanted = self._was if bool(found["t2m"].equals(self._was["t2m"])) else expected(self.files)
        assert_same(found, wanted)

    def _some(self, pids: Sequence[int]) -> Sequence[int]:
        return [self._random.choice(pids)] if pids else []


@contextmanager
def _place(folder: Path, *, full: bool) -> Iterator[Path]:
    """Provide a folder on a disk, which has only four megabytes if it should fill up."""
    disk = folder / "disk"
    disk.mkdir(parents=True)
    if full:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        yield folder
    finally:
        if full:
            subprocess.run(["umount", str(disk)], check=True)
        shutil.rmtree(folder)


def figures(cases: Sequence[Case]) -> str:
    """Count the cases and their outcomes per fault."""
    lines = []
    for fault in dict.fromkeys(case.fault for case in cases):
        mine = [case for case in cases if case.fault == fault]
        ended = Counter(
            "done" if case.answer == "null" else "said why" if case.answer else "dead" for case in mine
        )
        told = ", ".join(f"{count} {what}" for what, count in sorted(ended.items()))
        wrong = sum(bool(case.wrong) for case in mine)
        hits, garbage = sum(case.hit for case in mine), sum(case.garbage for case in mine)
        lines.append(
            f"{fault:16} {len(mine):4} cases, {hits} while at work: {told}; {garbage} objects collected; "
            f"{wrong} wrong"
        )
    return "\n".join(lines)


def run(
    root: Path,
    master: str,
    count: int,
    seed: int,
    faults: Sequence[str] = FAULTS,
    jobs: Sequence[str] = tuple(JOBS),
    log: Path | None = None,
    *,
    speculation: bool = False,
) -> list[Case]:
    """Run cases on one master, and log each when it ends."""
    matrix = Matrix(root, master, seed, speculation=speculation)
    done: list[Case] = []
    try:
        for case in matrix.cases(count, faults, jobs):
            try:
                matrix.run(case)
            except Exception:  # noqa: BLE001 - whatever it is, it must not be, and the other cases go on
                case.wrong = traceback.format_exc(limit=-4)
                matrix.end_unless_idle()
            done.append(case)
            if log is not None:
                with log.open("a") as file:
                    file.write(json.dumps(asdict(case)) + "\n")
    finally:
        matrix.end()
    return done


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--count", type=int, default=len(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", choices=FAULTS)
    parser.add_argument("--job", action="append", choices=JOBS)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--speculation", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = run(
        given.folder,
        given.master,
        given.count,
        given.seed,
        given.fault or FAULTS,
        given.job or tuple(JOBS),
        given.log,
        speculation=given.speculation,
    )
    print(figures(cases))  # noqa: T201 - a command
    sys.exit(any(case.wrong for case in cases))


if __name__ == "__main__":
    main()
