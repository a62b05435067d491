"""Stop or kill commands on Spark while they run, and repeat them (`make test-cluster`).

ICEFLOE_FAULTS is the number of cases (a few by default); ICEFLOE_SEED selects them and their timing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

import pytest
import yaml

from tests.support.ingest import fault_jobs
from tests.support.ingest.fault_jobs import (
    Job,
    assert_before_or_after,
    assert_collected,
    assert_complete,
    opened,
)
from tests.support.source_tree import ROOT
from tests.support.spark import fault_processes as processes
from tests.support.spark.clusters import environment

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),
]

CASES = int(os.environ.get("ICEFLOE_FAULTS", "6"))
SEED = int(os.environ.get("ICEFLOE_SEED", random.randrange(10**6)))
FILES = 12
SIGNALS = {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}
LASTS_S = 8.0
"""Approximate duration from the first work of a command to its end."""
ENDS_S = 120


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and its expected result."""

    job: Job
    words: Sequence[str] = ()
    recipe: bool = False

    def typed(self, folder: Path, data: Path, master: str) -> list[str]:
        """Return the command line."""
        end = ["--executor", f"spark:{master}", "--json"]
        if self.job.is_rechunk:
            return ["rechunk", str(folder), "t2m", *self.words, *end]
        if not self.recipe:
            return ["ingest", f"{data}/*.nc", str(folder), *self.words, *end]
        recipe = data / "recipe.yaml"
        said = {"sources": "*.nc", "repository": str(folder), "options": dict(self.job.options)}
        recipe.write_text(yaml.safe_dump(said))
        return ["ingest", "--recipe", str(recipe), *end]


def _ingest(name: str, *words: str, commits: int = 1) -> Command:
    every = ("--commit-every", str(FILES // commits)) if commits > 1 else ()
    return Command(Job(name, commits=commits), (*words, *every))


_CUT = ("--chunks", "time=3,lat=20")
_SERIES = ("--chunks", "time=-1,lat=5,lon=5")
COMMANDS = (
    _ingest("native", *_CUT),
    _ingest("native-batches", *_CUT, commits=4),
    _ingest("virtual", "--virtual"),
    _ingest("virtual-batches", "--virtual", commits=4),
    _ingest("hybrid", "--hybrid"),
    _ingest("hybrid-batches", "--hybrid", commits=3),
    Command(Job("recipe", {"chunks": {"time": 5}, "commit_every": 3}, commits=4), recipe=True),
    Command(Job("rechunk", {"chunks": {"time": -1}}, first=FILES, is_rechunk=True), _SERIES),
)


@dataclass(slots=True)
class Running:
    """A running command in its own process group, as a shell starts it."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    news: Queue[str] = field(default_factory=Queue)

    def listen(self) -> None:
        """Record the progress that the command prints."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.strip())
            self.news.put(line)
        self.news.put("")

    def wait_for_work(self, sentence: str) -> None:
        """Wait until the command has printed progress."""
        while (line := self.news.get(timeout=ENDS_S)) and sentence not in line:
            pass
        assert line, self.said


def started(words: Sequence[str]) -> Running:
    # Background jobs ignore SIGINT, and their child processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "icefloe", *words],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    running = Running(process)
    threading.Thread(target=running.listen, daemon=True).start()
    return running


def assert_all_gone(pids: dict[int, str]) -> None:
    """Check that a command has left no process: no JVM and no worker."""
    deadline = time.monotonic() + ENDS_S
    while left := [text for pid, text in pids.items() if text and processes.command(pid) == text]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def stop(command: Command, name: str, folder: Path, data: Path, moment: float) -> bool:
    """Start a command and stop it; whether it was still at work."""
    running = started(command.typed(folder, data, "local[2]"))
    running.wait_for_work("1 array:" if command.job.is_rechunk else "inspected")
    time.sleep(moment * LASTS_S)
    pid = running.process.pid
    family = {each: processes.command(each) for each in processes.below(pid)}
    if name == "SIGINT":  # a terminal sends it to all processes
        os.killpg(pid, signal.SIGINT)
    else:
        os.kill(pid, signal.Signals[name])
    code = running.process.wait(ENDS_S)
    assert_all_gone(family)
    assert running.process.stdout is not None
    answer = running.process.stdout.read()
    if code == 0:  # the command had already ended
        assert json.loads(answer)["published" if not command.job.is_rechunk else "commit"]
        return False
    assert code == SIGNALS[name], running.said
    if name != "SIGKILL":
        assert running.said[-1] == "stopped", running.said
        assert json.loads(answer)["exit_code"] == code
    assert not any("Traceback" in line or "Exception" in line for line in running.said), running.said
    return True


def given_again(command: Command, folder: Path, data: Path, master: str) -> None:
    words = [sys.executable, "-W", "ignore", "-m", "icefloe", *command.typed(folder, data, master)]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if not command.job.is_rechunk:
        told = json.loads(done.stdout)
        assert len(told["ingested"]) + len(told["known"]) == FILES


@pytest.mark.parametrize("number", range(CASES))
def test_stopped_command_succeeds_when_repeated(tmp_path: Path, number: int) -> None:
    chance = random.Random(SEED + number)
    command = COMMANDS[(SEED + number) % len(COMMANDS)]
    name = chance.choice(list(SIGNALS))
    moment = chance.uniform(0, 1)
    case = f"seed {SEED} number {number}: {command.job.name} {name} at {moment:.2f}"
    files = fault_jobs.make_files(tmp_path / "data", command.job, FILES)
    folder = tmp_path / "repo"
    command.job.prepared(folder, files)
    before = fault_jobs.tip(folder)

    at_work = stop(command, name, folder, tmp_path / "data", moment)
    moved = assert_before_or_after(folder, before, command.job, files)
    left = opened(folder).list_branches() - {"main"}
    given_again(command, folder, tmp_path / "data", chance.choice(["none", "local[2]"]))

    assert at_work or moved, case
    assert name == "SIGKILL" or left <= {"main.ingest"}, case
    assert_complete(folder, before, command.job, files)
    assert opened(folder).list_branches() == {"main"}, case
    assert_collected(folder)
