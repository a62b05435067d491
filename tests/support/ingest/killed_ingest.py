"""An ingest that is killed before each access to its repository.

    python -m tests.support.ingest.killed_ingest FOLDER JOB EVERY FIRST [keep]

Called with a folder, the name of a job, how many touches lie between two kills, the first one, and, to have
copies of what each kill left, the word keep. Each child is forked, does the job without Spark, and kills
itself (SIGKILL) before its n-th touch of the repository; n goes on until a child ends by itself. The checks
are made here, after each of them.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.support.ingest.fault_jobs import (
    JOBS,
    Job,
    assert_before_or_after,
    assert_collected,
    assert_complete,
    make_files,
    opened,
    tip,
)
from tests.support.ingest.files import Travelling
from tests.support.killed_writer import TOUCHES


class Runnable(Protocol):
    """A job that a child process can run."""

    @property
    def name(self) -> str: ...

    def run(self, folder: Path, files: Sequence[str], executor: Any) -> Any: ...


def killed_before(touch: int, job: Runnable, folder: Path, files: Sequence[str]) -> bool:
    """Run a job in a child that kills itself before a touch of the folder; whether it came so far."""
    child = os.fork()
    if not child:
        left = iter(range(touch, -1, -1))

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            ours = event in TOUCHES and (event == "fcntl.flock" or str(folder) in str(arguments[0]))
            if ours and next(left, 0) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        job.run(folder, files, Travelling())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"{job.name} failed, not killed"
    return os.WIFSIGNALED(status)


def each_kill(root: Path, job: Job, every: int, first: int, *, keep: bool) -> tuple[int, int]:
    """Kill and look, until a child comes to its end; how many kills, and after how many main had moved."""
    files = make_files(root / "data", job)
    base = root / "base"
    job.prepared(base, files)
    before = tip(base)
    shutil.copytree(base, root / "imports")
    job.run(root / "imports", files, Travelling())  # loads all that children will need
    gc.freeze()
    kills = moved = 0
    touch = first
    while True:
        folder = root / f"killed-{touch}"
        shutil.copytree(base, folder)
        if not killed_before(touch, job, folder, files):
            assert_complete(folder, before, job, files)
            return kills, moved
        kills += 1
        moved += assert_before_or_after(folder, before, job, files)
        if keep:
            shutil.copytree(folder, root / f"left-{touch}", copy_function=shutil.copy2)
        job.run(folder, files, Travelling())
        assert_complete(folder, before, job, files)
        assert opened(folder).list_branches() == {"main"}
        assert_collected(folder)
        shutil.rmtree(folder)
        touch += every


def main(root: str, name: str, every: str, first: str, *keep: str) -> None:
    """Print how many kills there were."""
    warnings.simplefilter("ignore")
    print(name, *each_kill(Path(root), JOBS[name], int(every), int(first), keep=bool(keep)))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(*sys.argv[1:])
