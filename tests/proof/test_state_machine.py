"""Random interleavings of several sessions, compared with the model after every step.

There are no faults here, so the model predicts whether each operation succeeds, not only what must be true
afterwards.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from icefloe.config import RepositoryConfig
from icefloe.errors import IcechunkError
from icefloe.repository import Repository
from icefloe.storage import Storage, in_memory_storage
from icefloe.types import SpecVersion
from tests.support.servers.moto import make_bucket
from tests.support.simulation import bank
from tests.support.simulation.branch_model import perform
from tests.support.simulation.checker import BRANCH_WORK, Checker, Operation
from tests.support.simulation.simulate import SOLVERS
from tests.support.simulation.twins import ACCOUNTS, TOTAL, Twin

FIRST_NODES = {"/": None, ACCOUNTS: 4, "/a": 4, "/g": None, "/g/c": 2}
BRANCHES = ("main", "b0", "b1")
SEEDS = st.integers(0, 2**32)
SESSIONS = st.integers(0, 2)


class RepositoryMachine(RuleBasedStateMachine):
    """A state machine with at most three sessions on at most three branches."""

    def __init__(self, make_storage: Callable[[], Storage], spec_version: int) -> None:
        super().__init__()
        storage = make_storage()
        config = RepositoryConfig(inline_chunk_threshold_bytes=0)
        self.repo = Repository.create(storage, config, spec_version=spec_version)
        self.checker = Checker(storage)
        self.checker.begin()
        self.twins: dict[int, Twin] = {}
        self._found_bank()

    def _found_bank(self) -> None:
        twin = self._open(0, "main")
        for path, rows in FIRST_NODES.items():
            twin.put(path, rows, 0)
        for index in range(4):
            twin.write(ACCOUNTS, index, TOTAL // 4)
        self._commit(0, None)

    def _open(self, number: int, branch: str) -> Twin:
        session = self.repo.writable_session(branch)
        twin = self.twins[number] = Twin(session, self.checker.tree(session.snapshot_id))
        return twin

    def _do(self, operation: Operation, function: Callable[[], Any]) -> bool:
        """Run an operation in both the repository and the model; return True if it succeeded."""
        try:
            with self.checker.operation(operation):
                try:
                    result = function()
                finally:
                    self.checker.ref_written(operation)
                operation.result = result if operation.kind in ("commit", "amend", *BRANCH_WORK) else None
        except IcechunkError:
            return False
        return True

    def _expected(self, allowed: Callable[[], object]) -> bool:
        """Return True if the model allows an operation."""
        try:
            allowed()
        except KeyError:
            return False
        return True

    # Sessions

    @rule(number=SESSIONS, branch=st.sampled_from(BRANCHES))
    def open_session(self, number: int, branch: str) -> None:
        if branch in self.checker.refs.branches:
            self._open(number, branch)

    @rule(number=SESSIONS, seed=SEEDS)
    def change(self, number: int, seed: int) -> None:
        if number in self.twins:
            source = Random(seed)
            for _ in range(source.randrange(1, 4)):
                self.twins[number].change(source)

    @rule(number=SESSIONS, seed=SEEDS)
    def fork_and_merge(self, number: int, seed: int) -> None:
        if number in self.twins:
            self.twins[number].fork_and_merge(Random(seed))

    @rule(seed=SEEDS, branch=st.sampled_from(BRANCHES))
    def move(self, seed: int, branch: str) -> None:
        if branch in self.checker.refs.branches and self.repo.spec_version is SpecVersion.v2:
            session = self.repo.rearrange_session(branch)
            twin = Twin(session, self.checker.tree(session.snapshot_id))
            twin.change(Random(seed))
            if twin.model.changes:
                self.twins[3] = twin
                self._commit(3, None)

    @rule(number=SESSIONS, solver=st.sampled_from([None, *SOLVERS]))
    def commit(self, number: int, solver: str | None) -> None:
        if number in self.twins and self.twins[number].model.changes:
            self._commit(number, "nothing" if solver and self.twins[number].moves_money else solver)

    def _commit(self, number: int, solver: str | None) -> None:
        twin = self.twins[number]
        branch, tip = twin.model.branch, self.checker.refs.branches.get(twin.model.branch)
        at_tip = tip == twin.model.base
        goes = at_tip or bool(solver and tip and not isinstance(self.checker.rebased(twin, tip, solver), set))
        operation = Operation("commit", branch=branch, twin=twin, solver=solver)
        rebase_with = SOLVERS[solver] if solver else None
        try:
            done = self._do(operation, lambda: twin.real.commit("commit", rebase_with=rebase_with))
        except KeyError:
            done = False
        assert done == goes
        if done:
            del self.twins[number]
        elif solver and tip:
            self.checker.follow(twin, solver)

    @rule(number=SESSIONS, solver=st.sampled_from(sorted(SOLVERS)))
    def rebase(self, number: int, solver: str) -> None:
        twin = self.twins.get(number)
        if twin is None or twin.model.branch not in self.checker.refs.branches:
            return
        tip = self.checker.refs.branches[twin.model.branch]
        solver = "nothing" if twin.moves_money else solver
        goes = not isinstance(self.checker.rebased(twin, tip, solver), set)
        operation = Operation("rebase", branch=twin.model.branch, twin=twin, solver=solver)
        assert self._do(operation, lambda: twin.real.rebase(SOLVERS[solver])) == goes
        self.checker.follow(twin, solver)
        assert goes == (twin.model.base == tip)

    @precondition(lambda self: self.repo.spec_version is SpecVersion.v2)
    @rule(number=SESSIONS)
    def amend(self, number: int) -> None:
        twin = self.twins.get(number)
        if twin is None or not twin.model.changes:
            return
        tip = self.checker.refs.branches.get(twin.model.branch)
        if self.checker.commits[twin.model.base].changes.moved:
            return  # amended in a rearrange session alone
        operation = Operation("amend", branch=twin.model.branch, twin=twin)
        done = tip is not None and self._do(operation, lambda: twin.real.amend("amended"))
        assert done == (tip == twin.model.base)
        if done:
            del self.twins[number]

    @rule(number=SESSIONS)
    def discard(self, number: int) -> None:
        if number in self.twins:
            self.twins[number].discard()

    # Branches and tags

    @rule(branch=st.sampled_from(BRANCHES), seed=SEEDS)
    def create_branch(self, branch: str, seed: int) -> None:
        snapshot = self._some_snapshot(seed)
        goes = self._expected(lambda: self.checker.refs.create_branch(branch, snapshot))
        operation = Operation("create_branch", branch=branch, snapshot=snapshot)
        assert self._do(operation, lambda: self.repo.create_branch(branch, snapshot)) == goes

    @rule(branch=st.sampled_from(BRANCHES))
    def delete_branch(self, branch: str) -> None:
        goes = self._expected(lambda: self.checker.refs.delete_branch(branch))
        operation = Operation("delete_branch", branch=branch)
        assert self._do(operation, lambda: self.repo.delete_branch(branch)) == goes

    @rule(branch=st.sampled_from(BRANCHES), seed=SEEDS)
    def reset_branch(self, branch: str, seed: int) -> None:
        snapshot = self._some_snapshot(seed)
        goes = self._expected(lambda: self.checker.refs.reset_branch(branch, snapshot))
        operation = Operation("reset_branch", branch=branch, snapshot=snapshot)
        assert self._do(operation, lambda: self.repo.reset_branch(branch, snapshot)) == goes

    @rule(tag=st.sampled_from(["t0", "t1"]), seed=SEEDS)
    def create_tag(self, tag: str, seed: int) -> None:
        snapshot = self._some_snapshot(seed)
        goes = self._expected(lambda: self.checker.refs.create_tag(tag, snapshot))
        operation = Operation("create_tag", tag=tag, snapshot=snapshot)
        assert self._do(operation, lambda: self.repo.create_tag(tag, snapshot)) == goes

    @rule(tag=st.sampled_from(["t0", "t1"]))
    def delete_tag(self, tag: str) -> None:
        goes = self._expected(lambda: self.checker.refs.delete_tag(tag))
        assert self._do(Operation("delete_tag", tag=tag), lambda: self.repo.delete_tag(tag)) == goes

    @rule(kind=st.sampled_from(BRANCH_WORK), branch=st.sampled_from(BRANCHES), seed=SEEDS)
    def work_on_a_branch(self, kind: str, branch: str, seed: int) -> None:
        checker = self.checker
        choices = checker.choices(kind, branch) if branch in checker.refs.branches else []
        if not choices:
            return
        snapshot, tip = choices[seed % len(choices)], checker.refs.branches[branch]
        operation = Operation(kind, branch=branch, snapshot=snapshot)
        done = self._do(operation, lambda: perform(self.repo, kind, branch, snapshot))
        if kind == "squash":
            assert done == (snapshot != tip)
        elif not checker.branches.may_fail(kind, tip, snapshot):
            assert done
        else:
            assert not done or checker.branches.expected(kind, tip, snapshot) is not None

    def _some_snapshot(self, seed: int) -> str:
        known = [id for id in self.checker.commits if id != self.checker.first]
        return known[seed % len(known)]

    # After every step

    @invariant()
    def what_is_stored_is_the_model(self) -> None:
        self.checker.finish()
        refs = self.checker.refs
        assert self.repo.list_branches() == set(refs.branches)
        assert self.repo.list_tags() == set(refs.tags)
        for branch, tip in refs.branches.items():
            assert self.repo.lookup_branch(branch) == tip

    @invariant()
    def sessions_see_their_changes_over_their_base(self) -> None:
        for twin in self.twins.values():
            twin.check_listing()
            for path, (_, _, values) in twin.model.tree.plain().items():
                for index in values:
                    twin.read(path, index)


@pytest.fixture(scope="module")
def s3_url(s3_server: str) -> str:
    make_bucket(s3_server, "machine")
    return s3_server


def run(make_storage: Callable[[], Storage], spec_version: int, examples: int, steps: int) -> None:
    machine: Any = partial(RepositoryMachine, make_storage, spec_version)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("spec_version", [1, 2])
def test_random_operations_match_the_model_in_memory(spec_version: int) -> None:
    run(in_memory_storage, spec_version, 10, 25)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_random_operations_match_the_model_in_a_folder(spec_version: int, tmp_path: Path) -> None:
    def make_storage() -> Storage:
        return bank.storage_at({"folder": str(tmp_path / uuid.uuid4().hex)})

    run(make_storage, spec_version, 4, 20)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_random_operations_match_the_model_on_s3(spec_version: int, s3_url: str) -> None:
    def make_storage() -> Storage:
        place = {"bucket": "machine", "prefix": uuid.uuid4().hex, "endpoint_url": s3_url}
        return bank.storage_at(place)

    run(make_storage, spec_version, 1, 8)
