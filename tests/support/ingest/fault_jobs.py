"""Jobs that are disturbed: what each begins with, how it is run, and what must be true whatever happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

import icefloe
from icefloe import Repository
from icefloe._internal.executor import Executor
from icefloe.credentials import make_credential_from_env
from icefloe.ingest import make_options, rechunk
from icefloe.ingest.job import ingest
from icefloe.ingest.ledger import read_ledger
from icefloe.ingest.write.batch import METADATA
from tests.support.ingest.files import START, Travelling, assert_same, expected, read, write
from tests.support.simulation.audit import Audit

DAYS = 4
"""In each file."""
_LAT, _LON = 30, 40
NATIVE = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be done to a repository."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    first: int = 0
    """So many of the files are in the repository when it begins."""
    commits: int = 1
    is_rechunk: bool = False

    def prepared(self, folder: Path, files: Sequence[str]) -> None:
        """The repository as it is before."""
        repo = Repository.create(icefloe.local_filesystem_storage(str(folder)), NATIVE)
        if self.first:
            options = {**self.options, "chunks": {"time": 1}} if self.is_rechunk else self.options
            options = {name: value for name, value in options.items() if name != "memory_bytes"}
            ingest(repo, list(files[: self.first]), make_options(**options), Travelling())

    def run(self, folder: Path, files: Sequence[str], executor: Executor, on_change: str = "report") -> None:
        """Do it, or what is left of it."""
        repo = Repository.open(icefloe.local_filesystem_storage(str(folder)))
        if self.is_rechunk:
            rechunk(repo, "t2m", executor, **self.options)
        else:
            report = ingest(repo, list(files), make_options(**self.options, on_change=on_change), executor)
            if not report.ok:
                raise CheckFailedError("; ".join(check.text for check in report.checks if not check.passed))


class CheckFailedError(icefloe.IcechunkError):
    """Files were gone or changed when they were compared with what was staged."""


SERIES = {"chunks": {"time": -1, "lat": 5, "lon": 5}, "memory_bytes": 40_000}
"""Every old chunk is needed by every new one: data is spilled."""
JOBS = {
    job.name: job
    for job in (
        Job("native", {"chunks": {"time": 3, "lat": 20}}),
        Job("virtual", {"mode": "virtual"}),
        Job("hybrid", {"mode": "hybrid"}),
        Job("batches", {"chunks": {"time": 3, "lat": 20}, "commit_every": 1}, commits=4),
        Job("append", {"chunks": {"time": 3, "lat": 20}}, first=2),
        Job("virtual-append", {"mode": "virtual"}, first=2),
        Job("across", SERIES),
        Job("rechunk", SERIES, first=4, is_rechunk=True),
    )
}


def field_of(first: int) -> xr.Dataset:
    """Days of a field that compresses badly, the same for the same days."""
    random = np.random.default_rng(first)
    time = START + np.arange(first, first + DAYS) * np.timedelta64(1, "D")
    return xr.Dataset(
        {"t2m": (("time", "lat", "lon"), random.random((DAYS, _LAT, _LON), "f4"), {"units": "K"})},
        {"time": time, "lat": np.linspace(-60, 60, _LAT), "lon": np.linspace(0, 270, _LON)},
        {"title": "invented"},
    )


def make_files(folder: Path, job: Job, count: int = 4) -> list[str]:
    """Consecutive files; those of a hybrid job are not all cut in the same way."""
    return [
        write(folder / f"{number:02}.nc", field_of(number * DAYS), encoding(job, number))
        for number in range(count)
    ]


def encoding(job: Job, number: int) -> dict[str, Any]:
    """How a file stores its field."""
    odd = job.name == "hybrid" and number == 1
    return {"t2m": {"chunksizes": (2 if odd else 1, _LAT, _LON), "zlib": True}}


def opened(folder: Path) -> Repository:
    """Return the repository, allowed to follow references to files."""
    storage = icefloe.local_filesystem_storage(str(folder))
    config = Repository.fetch_config(storage)
    containers = (config.virtual_chunk_containers if config else None) or {}
    return Repository.open(
        storage,
        authorize_virtual_chunk_access={prefix: make_credential_from_env(prefix) for prefix in containers},
    )


def tip(folder: Path) -> str:
    """Where main is."""
    return opened(folder).lookup_branch("main")


def assert_before_or_after(folder: Path, before: str, job: Job, files: Sequence[str]) -> bool:
    """Main is where it was, or has everything; whether it has."""
    if tip(folder) == before:
        return False
    assert_complete(folder, before, job, files)
    return True


def assert_complete(
    folder: Path, before: str, job: Job, files: Sequence[str], *, others: bool = False
) -> None:
    """Main has all files, each once, in the commits that it should have; `others` may have made some more."""
    repo = opened(folder)
    session = repo.readonly_session("main")
    found = read(repo)
    assert_same(found.drop_vars("other", errors="ignore"), expected(files))
    assert sorted(row.source for row in read_ledger(session, "")) == sorted(files)
    history = [info.id for info in repo.ancestry(branch="main")]
    assert before in history
    new = [info for info in repo.ancestry(branch="main") if info.id in history[: history.index(before)]]
    said: list[Any] = [info.metadata[METADATA] for info in new if METADATA in info.metadata]
    batches = [about["batch"] for about in said]
    if not others:
        assert len(new) == job.commits
        assert len(set(batches)) == len(batches)
    if job.is_rechunk:
        chunks = zarr.open_array(session.store, path="t2m", mode="r").chunks
        assert chunks == (DAYS * len(files), 5, 5)


def assert_collected(folder: Path) -> int:
    """Collect garbage: what branches and tags need is left and nothing else; how much was deleted."""
    repo = opened(folder)
    needed = reachable(repo)
    before = stored(repo)
    assert needed <= before
    repo.garbage_collect(datetime.now(UTC))
    assert stored(repo) == needed
    assert not list(folder.rglob("*#*")), "what was put aside is still there"
    assert repo.verify().ok
    return len(before - needed)


def reachable(repo: Repository) -> set[str]:
    """Return the files that branches and tags need, read through the format without the engine."""
    audit = Audit(repo.storage)
    found = audit.stored()
    tips = {*found.refs.branches.values(), *found.refs.tags.values()}
    ids = {id for tip in tips for id in audit.history(tip, found)}
    return audit.needed(replace(found, parents={id: found.parents[id] for id in ids}))


def stored(repo: Repository) -> set[str]:
    """Return the files that are written once."""
    kinds = ("chunks", "manifests", "snapshots", "transactions")
    return {info.key for kind in kinds for info in repo.storage.list_prefix(kind)}
