"""Simulate several writers on one repository with storage faults, determined by a seed, and check everything.

    python -m tests.support.simulation --seed 17

runs one history again and prints its schedule. `simulate` does the same for any storage. What is checked:

- each change of a ref is exactly what one operation of one writer asks for, on top of the state before it,
  and no operation makes two; so the order in which refs changed is a serial order of the operations;
- an operation that returned has made its change, one that was refused has not, and one that got no answer, or
  whose writer crashed, has made all of it or none;
- each new snapshot holds what the model says: the writer's changes over the parent, or a merge of two trees,
  with everything that it refers to in place at the moment the ref moved;
- what a session reads is its base and its own changes; what a commit read and then wrote was still true of
  the snapshot it was put on;
- no commit changes what the accounts add up to.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.conflicts import BasicConflictSolver, ConflictDetector, ConflictSolver, VersionSelection
from icefloe.errors import IcechunkError, StorageError
from icefloe.format.spec import get_spec
from icefloe.repository import Repository
from icefloe.storage.base import Storage
from icefloe.storage.memory import MemoryStorage
from icefloe.testing.flaky import Crashed, Fault, FaultSource, FlakyStorage
from icefloe.testing.storages import Call
from tests.support.simulation.branch_model import perform
from tests.support.simulation.checker import BRANCH_WORK, Checker, Operation
from tests.support.simulation.scheduler import Baton, determined
from tests.support.simulation.twins import ACCOUNTS, TOTAL, Twin

SOLVERS: Final[Mapping[str, ConflictSolver]] = {
    "nothing": ConflictDetector(),
    "ours": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs),
    "theirs": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs),
}
"""By the names of `model.rebased`."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ACCOUNTS = 6
_FIRST_NODES = {"/": None, ACCOUNTS: _ACCOUNTS, "/a": 4, "/g": None, "/g/c": 2}


@dataclass(slots=True)
class History:
    """The result of a simulation."""

    seed: int
    steps: int = 0
    commits: int = 0
    merges: int = 0
    """Merges, picks, reverts and squashes that were done."""
    maintenance: int = 0
    """Expirations and collections that were done."""
    crashes: int = 0
    faults: int = 0
    schedule: list[str] = field(default_factory=list)
    violation: str | None = None


def simulate(
    seed: int,
    *,
    spec_version: int = 2,
    steps: int = 50,
    writers: int = 3,
    make_storage: Callable[[], Storage] = MemoryStorage,
    connect: Callable[[Storage, FaultSource], Storage] = FlakyStorage,
    maintenance: bool = False,
) -> History:
    """Run one simulation. The same arguments give the same history if the storage is deterministic.

    `connect` returns the storage of a writer for the storage that is checked. With `maintenance`, writers
    also expire snapshots and collect garbage, but neither rebase nor merge. In version 1 of the format they
    only commit during collections.
    """
    run = _Simulation(seed, spec_version, steps, writers, make_storage(), connect, maintenance=maintenance)
    try:
        run.run()
    except AssertionError as violation:
        run.history.violation = str(violation)
    return run.history


class _Simulation:
    """A simulation: the writers, the faults and the checker."""

    def __init__(
        self,
        seed: int,
        spec_version: int,
        steps: int,
        writers: int,
        storage: Storage,
        connect: Callable[[Storage, FaultSource], Storage],
        *,
        maintenance: bool,
    ) -> None:
        self.maintenance = maintenance
        self.random = Random(seed)
        self.history = History(seed)
        self.steps_left = steps
        self.storage = storage
        self.connect = connect
        self.spec_version = spec_version
        self.spec = get_spec(spec_version, "simulation")
        self.config = _config(self.random)
        self.checker = Checker(storage)
        self.baton = Baton(self.random)
        self.late: list[tuple[Call, Callable[[], object]]] = []
        self.faulty = self.random.choice((0.0, 0.02, 0.05, 0.15))
        self.writers = [_Writer(self, number) for number in range(writers)]

    def run(self) -> None:
        with determined(self.random, self.baton.pause):
            self._begin()
            self.baton.run([writer.live for writer in self.writers])
        self.checker.finish()

    def _begin(self) -> None:
        repo = Repository.create(self.storage, self.config, spec_version=self.spec_version)
        self.checker.begin()
        with self.checker.operation(Operation("commit", branch="main")) as operation:
            tree = self.checker.tree(repo.lookup_branch("main"))
            twin = operation.twin = Twin(repo.writable_session("main"), tree)
            for path, rows in _FIRST_NODES.items():
                twin.put(path, rows, 0)
            for index in range(_ACCOUNTS):
                twin.write(ACCOUNTS, index, TOTAL // _ACCOUNTS + (index < TOTAL % _ACCOUNTS))
            twin.real.commit("accounts")
            self.checker.ref_written(operation)

    # The weather

    def sending(self, call: Call) -> Fault:
        """Let other writers run before a request takes effect."""
        writer = self._current()
        if writer.crashed:
            raise Crashed
        self.baton.pause()
        fault = self._fault(call)
        self.note(f"{call}" + ("" if fault is Fault.NONE else f": {fault.value}"))
        if call.verb == "delete":
            self.checker.deleting(call.path.split(), writer.operation)
        self.history.faults += fault is not Fault.NONE
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            writer.crashed = True
        return fault

    def answered(self, call: Call, fault: Fault) -> None:
        """Check the effect of a request on the refs, and let other writers run before its response."""
        if call.writes and _is_ref(call.path):
            self.checker.ref_written(self._current().operation)
        if self.late and self.random.random() < 0.3:
            self._deliver(self.random.randrange(len(self.late)))
        self.baton.pause()

    def repeat_later(self, call: Call, request: Callable[[], object]) -> None:
        """Keep a request that will arrive a second time."""
        self.late.append((call, request))

    def _deliver(self, number: int) -> None:
        call, request = self.late.pop(number)
        self.note(f"{call}: arrives again")
        with suppress(IcechunkError):
            request()
        self.checker.nothing_written(str(call))

    def _fault(self, call: Call) -> Fault:
        # Writes of refs are few, and the ones that matter.
        if self.random.random() >= self.faulty * (4 if call.writes and _is_ref(call.path) else 1):
            return Fault.NONE
        faults = [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER]
        if call.writes:
            faults.append(Fault.TWICE)
        if call.repeatable:
            faults.append(Fault.AGAIN_LATER)
        return self.random.choice(faults)

    def _current(self) -> _Writer:
        return self.writers[self.baton.holder]

    def note(self, what: str) -> None:
        """Add a line to the schedule."""
        self.history.schedule.append(f"w{self.baton.holder} {what}")


class _Writer:
    """A simulated process with a repository and at most one session."""

    def __init__(self, simulation: _Simulation, number: int) -> None:
        self.simulation = simulation
        self.number = number
        self.random = simulation.random
        self.checker = simulation.checker
        self.operation: Operation | None = None
        self.crashed = False
        self.repo: Repository | None = None
        self.twin: Twin | None = None
        self.counter = 0

    def live(self) -> None:
        """Run steps until the history is long enough."""
        simulation = self.simulation
        while simulation.steps_left > 0:
            simulation.steps_left -= 1
            simulation.history.steps += 1
            try:
                self._step()
            except Crashed:
                simulation.history.crashes += 1
                self.repo = self.twin = None
                self.crashed = False
            except StorageError as error:
                simulation.note(f"got {type(error).__name__}: {error}")
            simulation.baton.pause()

    def _step(self) -> None:
        repo = self.repo
        if repo is None:
            storage = self.simulation.connect(self.simulation.storage, self.simulation)
            self.repo = repo = Repository.open(storage, self.simulation.config)
        if self.twin is None:
            self._without_session(repo)
        else:
            self._with_session(repo, self.twin)

    def _without_session(self, repo: Repository) -> None:
        chance = self.random.random()
        if self.simulation.maintenance:
            self._without_session_among_maintenance(repo, chance)
        elif chance < 0.6:
            self._open_session(repo)
        elif chance < 0.8:
            self._move_refs(repo)
        else:
            self._work_on_a_branch(repo)

    def _without_session_among_maintenance(self, repo: Repository, chance: float) -> None:
        modern = self.simulation.spec.refs_in_repo_info
        if chance < 0.5:
            self._open_session(repo)
        elif chance < 0.7 and modern:
            self._move_refs(repo)
        else:
            self._care(repo, "expire" if modern and self.random.random() < 0.4 else "collect")

    def _care(self, repo: Repository, kind: str) -> None:
        """Expire snapshots or collect garbage before the current time or that of a snapshot."""
        checker = self.checker
        times = sorted(checker.written_at_us().values())
        cutoff_us = self.random.choice((times[-1] + 1, times[-1] + 10**12, self.random.choice(times)))
        operation = Operation(kind, cutoff_us=cutoff_us)
        moment = _EPOCH + timedelta(microseconds=cutoff_us)
        # One request at a time: threads of a pool take no turns.
        work: dict[str, Callable[[], object]] = {
            "expire": lambda: repo.expire_snapshots(moment),
            "collect": lambda: repo.garbage_collect(moment, max_concurrent_manifest_fetches=1),
        }
        self._call(operation, work[kind])
        self.simulation.history.maintenance += operation.outcome == "done"

    def _open_session(self, repo: Repository) -> None:
        branch = self.random.choice(sorted(self.checker.refs.branches))
        moves = self.simulation.spec.moves and self.random.random() < 0.1
        self.simulation.note(f"{'rearrange' if moves else 'writable'} session on {branch}")
        with self._trying("session"):
            session = repo.rearrange_session(branch) if moves else repo.writable_session(branch)
            self.twin = Twin(session, self.checker.tree(session.snapshot_id))
            self._change(self.twin)

    def _change(self, twin: Twin) -> None:
        try:
            for _ in range(self.random.randrange(1, 4)):
                self.simulation.note(twin.change(self.random))
        except StorageError:
            self.twin = None  # half of a transfer must not be committed
            raise

    def _with_session(self, repo: Repository, twin: Twin) -> None:
        choices = ("change", "read", "rebase", "fork", *["commit"] * 6, "amend", "discard")
        if self.simulation.maintenance:
            choices = tuple(each for each in choices if each != "rebase")
        match self.random.choice(choices):
            case "change":
                self._change(twin)
            case "read":
                twin.check_listing()
                for path, (_, _, values) in twin.model.tree.plain().items():
                    for index in values:
                        twin.read(path, index)
            case "fork":
                self.simulation.note(twin.fork_and_merge(self.random))
            case "rebase":
                solver = self._solver(twin)
                operation = Operation("rebase", branch=twin.model.branch, twin=twin, solver=solver)
                try:
                    self._call(operation, lambda: twin.real.rebase(SOLVERS[solver]))
                finally:
                    self.checker.follow(twin, solver)
            case "commit":
                rebased = self.random.choice((None, self._solver(twin)))
                self._commit(twin, "commit", None if self.simulation.maintenance else rebased)
            case "amend" if self.simulation.spec.refs_in_repo_info:
                self._commit(twin, "amend", None)
            case _:
                twin.discard()
                self.twin = None

    def _solver(self, twin: Twin) -> str:
        return "nothing" if twin.moves_money else self.random.choice(sorted(SOLVERS))

    def _commit(self, twin: Twin, kind: str, solver: str | None) -> None:
        operation = Operation(kind, branch=twin.model.branch, twin=twin, solver=solver)
        self.counter += 1
        message = f"w{self.number}-{self.counter}"

        def commit() -> None:
            rebase_with = None if solver is None else SOLVERS[solver]
            operation.result = (
                twin.real.amend(message)
                if kind == "amend"
                else twin.real.commit(message, rebase_with=rebase_with)
            )

        try:
            self._call(operation, commit)
        finally:
            if operation.outcome == "done":
                self.simulation.history.commits += 1
                self.twin = None
            elif self.random.random() < 0.5:
                self.twin = None
            else:
                self.checker.follow(twin, solver or "nothing")

    def _move_refs(self, repo: Repository) -> None:
        refs, checker = self.checker.refs, self.checker
        names = [f"b{number}" for number in range(3)]
        branch = self.random.choice([*refs.branches, *names])
        tag = f"t{self.random.randrange(6)}"
        snapshot = self.random.choice(sorted(checker.commits.keys() - {checker.first}))
        match self.random.choice(
            ("create_branch", "create_branch", "reset", "delete_branch", "tag", "tag", "untag", "note")
        ):
            case "create_branch":
                operation = Operation("create_branch", branch=branch, snapshot=snapshot)
                self._call(operation, lambda: repo.create_branch(branch, snapshot))
            case "delete_branch":
                operation = Operation("delete_branch", branch=branch)
                self._call(operation, lambda: repo.delete_branch(branch))
            case "reset":
                expected = refs.branches.get(branch) if self.random.random() < 0.7 else None
                operation = Operation("reset_branch", branch=branch, snapshot=snapshot, expected=expected)
                self._call(operation, lambda: repo.reset_branch(branch, snapshot, from_snapshot_id=expected))
            case "tag":
                operation = Operation("create_tag", tag=tag, snapshot=snapshot)
                self._call(operation, lambda: repo.create_tag(tag, snapshot))
            case "untag":
                operation = Operation("delete_tag", tag=tag)
                self._call(operation, lambda: repo.delete_tag(tag))
            case "note" if self.simulation.spec.refs_in_repo_info:
                entry = {f"w{self.number}": self.simulation.history.steps}
                operation = Operation("update_metadata", metadata=entry)
                self._call(operation, lambda: repo.update_metadata(dict(entry)))

    def _work_on_a_branch(self, repo: Repository) -> None:
        kind = self.random.choice(BRANCH_WORK)
        branch = self.random.choice(sorted(self.checker.refs.branches))
        choices = self.checker.choices(kind, branch)
        if not choices:
            return
        snapshot = self.random.choice(choices)
        operation = Operation(kind, branch=branch, snapshot=snapshot)

        def work() -> None:
            operation.result = perform(repo, kind, branch, snapshot)

        self._call(operation, work)
        self.simulation.history.merges += operation.outcome == "done"

    def _call(self, operation: Operation, function: Callable[[], Any]) -> None:
        with self._trying(operation.kind, operation):
            function()

    @contextmanager
    def _trying(self, what: str, operation: Operation | None = None) -> Iterator[None]:
        """Run an operation that may be rejected, and report its outcome to the checker."""
        simulation = self.simulation
        simulation.note(f"begin {operation or what}")
        try:
            with self.checker.operation(operation or Operation(what)) as self.operation:
                yield
        except StorageError:
            raise
        except IcechunkError as error:
            simulation.note(f"refused: {type(error).__name__}: {error}".splitlines()[0])
        finally:
            self.operation = None


def _is_ref(path: str) -> bool:
    return path == "repo" or path.startswith("refs/")


def _config(source: Random) -> RepositoryConfig:
    """Return a random configuration, with or without inline chunks and split manifests."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=source.choice((0, 512)), max_concurrent_requests=1)
    if source.random() < 0.5:
        rules: Any = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 2}}
        config.manifest = ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules))
    return config


def main(arguments: list[str] | None = None) -> int:
    """Run one simulation and print its schedule."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--spec-version", type=int, default=2, choices=(1, 2))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--maintenance", action="store_true", help="with expirations and collections")
    given = parser.parse_args(arguments)
    history = simulate(
        given.seed,
        spec_version=given.spec_version,
        steps=given.steps,
        writers=given.writers,
        maintenance=given.maintenance,
    )
    lines = [*history.schedule, history.violation or "no violation"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if history.violation else 0
