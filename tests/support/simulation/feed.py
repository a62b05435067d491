"""Simulate a feed: several processes append rows, keep a window and collect garbage, with storage faults.

    python -m tests.support.simulation.feed --seed 17

runs one history again and prints its schedule. The model works by label: a row is right if its values are
those that belong to its label, wherever it ends up. Each snapshot is compared with the one before it at the
moment at which the branch moves:

- a label occurs once, each array has the values of the label or none, and no value is ever lost;
- new labels are those of the appends that the commit message names, and each append lands once;
- the order is the one that was asked for;
- a window drops the first rows and nothing else;
- an append that returned has landed, and one that was refused has not.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu

from icefloe.config import ManifestConfig, ManifestPreloadConfig, RepositoryConfig
from icefloe.core.commit.idempotency import CommitKey
from icefloe.core.merge import group_commit
from icefloe.core.merge.rebase import arrange_appends
from icefloe.errors import IcechunkError, StorageError
from icefloe.feeds.append_solver import AppendSolver
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage.memory import MemoryStorage
from icefloe.testing.flaky import Crashed, Fault, FlakyStorage
from icefloe.testing.storages import Call
from tests.support.simulation.scheduler import Baton, determined

CHUNKS: Final = {"time": 4, "a": 1, "b": 3}
"""The chunk sizes of the arrays."""
_FILL: Final = -1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WINDOW: Final = "window"
_CREATED: Final = "created"
_PROCESSES: Final = (0, 0, 1, 2)
"""The process of each writer. Commits of the first process are grouped."""

_TURNS_ASLEEP: Final = 40

Table = dict[str, list[int]]
"""The values of each array, by row."""


@dataclass(slots=True)
class FeedHistory:
    """The result of a simulated feed."""

    seed: int
    steps: int = 0
    appends: int = 0
    windows: int = 0
    grouped: int = 0
    """Appends that share a snapshot with others."""
    maintenance: int = 0
    crashes: int = 0
    faults: int = 0
    schedule: list[str] = field(default_factory=list)
    violation: str | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """An append of a writer: the rows, and the arrays that it writes."""

    key: str
    labels: tuple[int, ...]
    names: tuple[str, ...]


def value(label: int, name: str) -> int:
    """Return the value of an array at a label."""
    return label * 10 + len(name) + ord(name[0])


def simulate_feed(seed: int, *, spec_version: int = 2, steps: int = 30) -> FeedHistory:
    """Run one simulation of a feed. The same arguments give the same history."""
    run = _Simulation(seed, spec_version, steps)
    with (
        pytest.MonkeyPatch.context() as patch,
        zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1}),
    ):
        patch.setattr(threading.Event, "wait", run.make_wait(threading.Event.wait))
        try:
            run.run()
        except AssertionError as violation:
            run.history.violation = run.history.violation or str(violation)
    return run.history


class _Simulation:
    """A simulated feed: the writers, the faults and the model."""

    def __init__(self, seed: int, spec_version: int, steps: int) -> None:
        self.random = Random(seed)
        self.history = FeedHistory(seed)
        self.steps_left = steps
        self.spec_version = spec_version
        self.storage = MemoryStorage()
        self.order: Any = self.random.choice(("commit", "sorted", "sorted"))
        self.faulty = self.random.choice((0.0, 0.02, 0.05))
        self.config = RepositoryConfig(
            inline_chunk_threshold_bytes=self.random.choice((0, 512)),
            max_concurrent_requests=1,
            # Manifests of coordinates would be read early, by threads that take no turns.
            manifest=ManifestConfig(preload=ManifestPreloadConfig(max_total_refs=0)),
        )
        self.baton = Baton(self.random)
        self.model = _Model(self.storage, self.order)
        self.generations = dict.fromkeys(_PROCESSES, 0)
        self.groups: dict[int, group_commit.GroupCommits] = {}
        self.writers = [_Writer(self, number) for number in range(len(_PROCESSES))]
        self.latest = 0
        self.number = 0

    def run(self) -> None:
        with determined(self.random, self._sleep):
            repo = Repository.create(self.storage, self.config, spec_version=self.spec_version)
            session = repo.writable_session("main")
            put_metadata(session, 0)
            session.commit(_CREATED)
            self.model.check()
            self.baton.run([writer.live for writer in self.writers])
        self.history.grouped = self.model.num_grouped
        if self.model.violation:
            raise AssertionError(self.model.violation)

    def _sleep(self) -> None:
        """Let others run while a writer sleeps, such as the leader of a group commit."""
        for _ in range(_TURNS_ASLEEP):
            self.baton.pause()

    def make_wait(self, real: Callable[..., bool]) -> Callable[..., bool]:
        """Return a replacement for `Event.wait` that lets other writers run during a group commit."""

        def wait(event: threading.Event, timeout: float | None = None) -> bool:
            if sys._getframe(1).f_globals["__name__"] != group_commit.__name__:
                return real(event, timeout)
            me = self.baton.holder
            while not event.is_set():
                if self.writers[me].is_stale:
                    raise Crashed
                self.baton.pause()
            return True

        return wait

    # The weather

    def sending(self, call: Call) -> Fault:
        """Let other writers run before a request takes effect."""
        if not _is_writer():
            return Fault.NONE
        writer = self.writers[self.baton.holder]
        if writer.is_stale:
            raise Crashed
        self.baton.pause()
        fault = Fault.NONE
        chance = self.faulty * (4 if call.writes and _is_ref(call.path) else 1)
        if self.random.random() < chance:
            faults = [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER]
            fault = self.random.choice([*faults, Fault.TWICE] if call.writes else faults)
            self.history.faults += 1
        self.note(f"{call}" + ("" if fault is Fault.NONE else f": {fault.value}"))
        return fault

    def answered(self, call: Call, fault: Fault) -> None:
        """Check the branch after a request that may have moved it."""
        if call.writes and _is_ref(call.path):
            self.model.check()
        if _is_writer():
            self.baton.pause()

    def repeat_later(self, call: Call, request: Callable[[], object]) -> None:
        """Receive a request that arrives twice; there are none in a feed."""

    def note(self, text: str) -> None:
        """Add a line to the schedule."""
        self.history.schedule.append(f"w{self.baton.holder} {text}")


class _Writer:
    """A simulated thread of a process that runs one operation after another."""

    def __init__(self, simulation: _Simulation, number: int) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.process = _PROCESSES[number]
        self.generation = 0
        self.repo: Repository | None = None
        self.pending: Append | None = None
        """An append that got no answer, and is repeated with the same key."""

    @property
    def is_stale(self) -> bool:
        """Return whether the process of this thread has crashed."""
        return self.generation != self.simulation.generations[self.process]

    def live(self) -> None:
        """Run operations until the history is long enough."""
        simulation = self.simulation
        while simulation.steps_left > 0:
            simulation.steps_left -= 1
            simulation.history.steps += 1
            try:
                self._step(self._open())
            except Crashed:
                simulation.history.crashes += 1
                self._restart()
            except StorageError as error:
                simulation.note(f"got {type(error).__name__}: {error}")
            simulation.baton.pause()

    def _restart(self) -> None:
        simulation = self.simulation
        if not self.is_stale:
            simulation.generations[self.process] += 1
            simulation.groups.pop(self.process, None)
        self.generation = simulation.generations[self.process]
        self.repo = None

    def _open(self) -> Repository:
        if self.repo is None:
            storage = FlakyStorage(self.simulation.storage, self.simulation)
            self.repo = Repository.open(storage, self.simulation.config)
            if self.process == 0:
                # A repository for each thread: one that reads for two makes the other wait for its turn.
                groups = group_commit.GroupCommits(20)
                self.repo._groups = self.simulation.groups.setdefault(self.process, groups)
        return self.repo

    def _step(self, repo: Repository) -> None:
        chance = self.random.random()
        if chance < 0.75 or self.pending is not None:
            self._append(repo, self.pending or self._choose_rows())
        elif chance < 0.9:
            self._keep_window(repo)
        elif self.simulation.spec_version > 1:
            self._maintain(repo)

    def _choose_rows(self) -> Append:
        simulation = self.simulation
        simulation.number += 1
        first = simulation.latest
        if not first or self.random.random() < 0.7:
            simulation.latest += self.random.randint(1, 4)
        else:  # labels of another writer, or some of them
            first = max(0, first - self.random.randint(1, 3))
        names = self.random.choice((("a",), ("b",), ("a", "b")))
        return Append(f"k{simulation.number}", tuple(range(first, simulation.latest)), names)

    def _append(self, repo: Repository, rows: Append) -> None:
        simulation, model = self.simulation, self.simulation.model
        simulation.note(f"append {rows}")
        model.appends[rows.key] = rows
        self.pending = rows
        with self._refusing():
            session = repo.writable_session("main")
            solver = AppendSolver("time", order=simulation.order)
            put_rows(session, rows)
            arrange_appends(session.workspace, solver)
            made = session.commit_once(
                rows.key, key=CommitKey("feed", rows.key), rebase_with=solver, allow_empty=True
            )
            model.expect_landed(rows.key, made)
            simulation.history.appends += 1
            self.pending = None
        self._give_up_sometimes()

    def _give_up_sometimes(self) -> None:
        if self.random.random() < 0.3:
            self.pending = None

    def _keep_window(self, repo: Repository) -> None:
        keep = self.random.randint(0, 8)
        self.simulation.note(f"window of {keep}")
        with self._refusing():
            repo.keep_window(float(keep), "time", message=_WINDOW)
            self.simulation.history.windows += 1

    def _maintain(self, repo: Repository) -> None:
        cutoff = _EPOCH + timedelta(microseconds=self.random.choice(self.simulation.model.times_us) + 1)
        with self._refusing():
            if self.random.random() < 0.5:
                self.simulation.note("expire")
                repo.expire_snapshots(cutoff)
            else:
                self.simulation.note("collect")
                repo.garbage_collect(cutoff, max_concurrent_manifest_fetches=1)
            self.simulation.history.maintenance += 1

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Run an operation that may be refused."""
        try:
            yield
        except StorageError:
            raise
        except IcechunkError as error:
            self.simulation.note(f"refused: {type(error).__name__}: {error}".splitlines()[0])


class _Model:
    """The expected content by label, and a reader that compares it with what is stored."""

    def __init__(self, storage: MemoryStorage, order: str) -> None:
        self._storage = storage
        self._order = order
        self._seen: dict[str, Table] = {}
        self._landed: dict[str, str] = {}
        self._dropped: set[int] = set()
        """Labels that a window dropped. A concurrent append that found them has landed before."""
        self.appends: dict[str, Append] = {}
        self.times_us: list[int] = []
        self.num_grouped = 0
        self.violation: str | None = None
        """The first violation. It is kept, because the code under test may handle exceptions."""

    def check(self) -> None:
        """Compare new snapshots of the branch with those before them."""
        try:
            self._check()
        except AssertionError as error:
            self.violation = self.violation or str(error)

    def expect_landed(self, key: str, made: str | None) -> None:
        """Check that an acknowledged append landed, in the snapshot that was returned."""
        if key not in self._landed or made not in (None, self._landed[key]):
            self.violation = self.violation or f"{key} was acknowledged as {made}, but has not landed"

    def _check(self) -> None:
        repo = Repository.open(self._storage)
        fresh = []
        for info in repo.ancestry(branch="main"):
            if info.id in self._seen:
                break
            fresh.append(info)
        for info in reversed(fresh):
            table = read_table(repo.readonly_session(snapshot_id=info.id))
            self.times_us.append(int(info.written_at.timestamp() * 1e6))
            before = self._seen.get(info.parent_id or "")
            self._seen[info.id] = table
            if before is None or info.message == _CREATED:
                continue
            keys = info.message.split("\n")  # several if commits were folded into one
            if _WINDOW in keys:
                first = sum(label not in table["time"] for label in before["time"])
                assert 0 < first < len(before["time"]), f"{info.id}: a window of {table} after {before}"
                self._dropped |= set(before["time"][:first])
                before = {name: rows[first:] for name, rows in before.items()}
                keys.remove(_WINDOW)
            if keys:
                self._check_append(info.id, keys, before, table)
            else:
                assert before == table, f"{info.id}: a window kept {table} of {before}"

    def _check_append(self, id: str, keys: list[str], before: Table, table: Table) -> None:
        labels = table["time"]
        assert len(set(labels)) == len(labels), f"{id}: labels {labels}"
        old = before["time"]
        expected: dict[tuple[str, int], int] = {
            (name, label): before[name][row]
            for name in ("a", "b")
            for row, label in enumerate(old)
            if before[name][row] != _FILL
        }
        added: set[int] = set()
        gone: set[tuple[str, int]] = set()
        for key in keys:
            assert key not in self._landed, f"{key} landed in {self._landed.get(key)} and in {id}"
            self._landed[key] = id
            self.num_grouped += len(keys) > 1
            rows = self.appends[key]
            mine = set(rows.labels) - (self._dropped - set(labels))
            added |= mine
            expected |= {(name, label): value(label, name) for name in rows.names for label in mine}
            # Cells that an append added to a row before a window dropped it are gone, even if another append
            # of the same snapshot brings the label back.
            gone |= {(name, label) for name in rows.names for label in mine & self._dropped}
        assert set(labels) == {*old, *added}, f"{id}: labels {labels} after {old} and {keys}"
        found = {
            (name, label): table[name][row]
            for name in ("a", "b")
            for row, label in enumerate(labels)
            if table[name][row] != _FILL
        }
        missing = expected.keys() - found.keys()
        assert missing <= gone, f"{id}: {table} after {before} and {keys}"
        assert found == {cell: expected[cell] for cell in found.keys() & expected.keys()}, (
            f"{id}: {table} after {before} and {keys}"
        )
        if self._order == "commit":
            assert labels[: len(old)] == old, f"{id}: {labels} after {old}"
        else:
            assert labels == sorted(labels), f"{id}: {labels}"


def put_metadata(session: Session, length: int) -> None:
    """Create the arrays, or change their length."""
    if not length:
        group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        session.store.set_sync("zarr.json", cpu.Buffer.from_bytes(json.dumps(group).encode()))
    for name, size in CHUNKS.items():
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [length],
            "data_type": "int64",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [size]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": _FILL,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {},
            "dimension_names": ["time"],
        }
        session.store.set_sync(f"{name}/zarr.json", cpu.Buffer.from_bytes(json.dumps(document).encode()))


def put_rows(session: Session, rows: Append) -> None:
    """Append rows behind the last ones of a session."""
    old = _get_length(session)
    put_metadata(session, old + len(rows.labels))
    for name in ("time", *rows.names):
        size = CHUNKS[name]
        new = {old + row: label for row, label in enumerate(rows.labels)}
        for number in sorted({row // size for row in new}):
            chunk = _get_chunk(session, name, number)
            for row, label in new.items():
                if row // size == number:
                    chunk[row % size] = label if name == "time" else value(label, name)
            session.store.set_sync(f"{name}/c/{number}", cpu.Buffer.from_bytes(chunk.tobytes()))


def read_table(session: Session) -> Table:
    """Read all rows of a session."""
    if session.store.get_sync("time/zarr.json") is None:
        return {name: [] for name in CHUNKS}
    length = _get_length(session)
    found = {}
    for name, size in CHUNKS.items():
        chunks = [_get_chunk(session, name, number) for number in range(-(-length // size))]
        rows = np.concatenate(chunks) if chunks else np.zeros(0, np.int64)
        found[name] = rows[:length].tolist()
    return found


def _get_length(session: Session) -> int:
    document = session.store.get_sync("time/zarr.json")
    assert document is not None
    return int(json.loads(document.to_bytes())["shape"][0])


def _get_chunk(session: Session, name: str, number: int) -> Any:
    data = session.store.get_sync(f"{name}/c/{number}")
    if data is None:
        return np.full(CHUNKS[name], _FILL, np.int64)
    return np.frombuffer(data.to_bytes(), np.int64).copy()


def _is_writer() -> bool:
    """Return whether this is the thread of a writer, rather than a thread of zarr that reads for it.

    After an error zarr leaves such threads running, so they neither get faults nor take turns.
    """
    return threading.current_thread().name.startswith("writer-")


def _is_ref(path: str) -> bool:
    return path == "repo" or path.startswith("refs/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--spec-version", type=int, default=2, choices=(1, 2))
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    history = simulate_feed(given.seed, spec_version=given.spec_version, steps=given.steps)
    with suppress(BrokenPipeError):
        sys.stdout.write("\n".join([*history.schedule, history.violation or "no violation"]) + "\n")
    return 1 if history.violation else 0


if __name__ == "__main__":
    sys.exit(main())
