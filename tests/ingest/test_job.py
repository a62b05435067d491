"""The stages of an ingest run once each and in order, and read the ledger once per snapshot."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import icefloe.ingest
from icefloe._internal.executor import Task
from icefloe.ingest.job import ingest
from icefloe.ingest.options import make_options
from tests.support.ingest.files import (
    Travelling,
    archive,
    assert_same,
    days,
    expected,
    new_repo,
    read,
    run,
    write,
)

HERE = str(Path(icefloe.ingest.__file__).parent)
STAGES = {
    "discover": "discover/sources.py",
    "inspect_sources": "inspect/inspect_files.py",
    "combine_files": "combine/grid.py",
    "design_arrays": "plan/design.py",
    "commit_batch": "write/batch.py",
    "check_and_publish": "publish/staging.py",
}
READS = {"read_ledger": "ledger.py", "inspect_group": "combine/existing.py"}
READS |= {"sort_sources": "ledger.py", "digest_values": "inspect/inspect_files.py"}


class Traced(Travelling):
    """Runs tasks unseen: they run on executors, not on the driver."""

    def map(self, task: Task[Any, Any], items: Iterable[Any], /) -> Iterator[Any]:
        profile = sys.getprofile()
        sys.setprofile(None)
        try:
            results = list(super().map(task, items))
        finally:
            sys.setprofile(profile)
        return iter(results)


def trace(work: Callable[[], object]) -> list[tuple[str, str]]:
    """List the calls of stages and of functions that read the target: the name, and the file that called."""
    found: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        path = {**STAGES, **READS}.get(code.co_name)
        if event == "call" and path is not None and code.co_filename == f"{HERE}/{path}":
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            found.append((code.co_name, caller.removeprefix(f"{HERE}/")))

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_ingest_job_module_fits_on_one_page() -> None:
    lines = Path(HERE, "job.py").read_text(encoding="utf-8").splitlines()

    assert len(lines) <= 150


def test_undisturbed_ingest_reads_the_target_once(tmp_path: Path) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    run(repo, files[0])

    calls = trace(lambda: ingest(repo, files, make_options(), Traced()))

    assert_same(read(repo), expected(files))
    assert [name for name, _ in calls if name in STAGES] == list(STAGES)
    counts = Counter(name for name, _ in calls if name in READS)
    assert counts == {"read_ledger": 1, "inspect_group": 1, "sort_sources": 1}


def test_only_the_ingest_job_calls_its_stages(tmp_path: Path) -> None:
    """Also if values are compared before files are combined."""
    shared = days(0, 1).assign(mask=(("lat", "lon"), days(0, 1)["t2m"].values[0]))
    files = [write(tmp_path / f"{day}.nc", days(day, 1).assign(mask=shared["mask"])) for day in range(3)]
    repo = new_repo(tmp_path)
    options = make_options(concat_dim="time", data_vars="minimal", compat="equals")

    calls = trace(lambda: ingest(repo, files, options, Traced()))

    callers = {caller for name, caller in calls if name in {*STAGES, "digest_values"}}
    assert ("digest_values", "combine_batch.py") in calls
    assert callers == {"job.py", "combine_batch.py"}


def test_each_commit_inspects_the_target_once(tmp_path: Path) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)

    calls = trace(lambda: ingest(repo, files, make_options(commit_every=1), Traced()))

    counts = Counter(name for name, _ in calls if name in READS)
    assert counts == {"read_ledger": 1, "inspect_group": 3, "sort_sources": 1}
