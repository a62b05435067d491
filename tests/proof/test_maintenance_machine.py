"""Writers, readers, expiration, retention and garbage collection in random order, compared with a model.

The model knows the contents of each snapshot, its ancestors, and the objects it was seen to refer to. After
each step every branch and tag holds what the model says; a collection leaves every object that something live
refers to, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from icefloe import Repository, RetentionPolicy, Session
from icefloe.errors import ConflictError, StorageError
from icefloe.format.manifest import NativeRef
from icefloe.format.snapshot import ArrayNodeData
from tests.support.histories import now, objects, repository

SIZE = 8
BRANCHES = ("main", "b0", "b1")
TAGS = ("t0", "t1")
CHUNKS = st.integers(0, SIZE - 1)


@dataclass
class Known:
    """A snapshot in the model."""

    values: tuple[int, ...]
    parent: str | None
    made: datetime
    objects: frozenset[str]


@dataclass
class Open:
    """An open session and the content that it would commit."""

    session: Session
    branch: str
    base: str
    values: list[int]
    dirty: bool = False


class MaintenanceMachine(RuleBasedStateMachine):
    """A state machine with two writers, a reader and maintenance."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self.version = version
        self.repo = repository(version)
        self.known: dict[str, Known] = {}
        self.branches = {"main": self.repo.lookup_branch("main")}
        self.tags: dict[str, str] = {}
        self.used_tags: set[str] = set()
        self.open: dict[int, Open] = {}
        self.reader: tuple[Session, str] | None = None
        self.collected_since: set[int] = set()
        self.counter = 0
        *rest, root = list(self.repo.ancestry(branch="main"))
        self.root = root.id
        self._learn(root.id, None, (0,) * SIZE)
        for info in reversed(rest):
            self._learn(info.id, info.parent_id, (0,) * SIZE)

    def _learn(self, id: str, parent: str | None, values: tuple[int, ...]) -> None:
        self.known[id] = Known(values, parent, now(), frozenset(self._objects_of(id)))

    def _objects_of(self, id: str) -> Iterator[str]:
        """Return the objects that a snapshot refers to, read one by one."""
        yield f"snapshots/{id}"
        workspace = self.repo.readonly_session(snapshot_id=id)._workspace
        for node in workspace.arrays_with_chunks(workspace.paths()):
            assert isinstance(node.node_data, ArrayNodeData)
            for part in node.node_data.manifests:
                yield f"manifests/{part.id}"
                refs = workspace.manifest_refs(node, part)
                for row in range(len(refs)):
                    ref = refs.ref(row)
                    if isinstance(ref, NativeRef):
                        yield f"chunks/{ref.chunk_id}"

    def _line(self, tip: str) -> list[str]:
        line, at = [], tip
        while True:
            line.append(at)
            parent = self.known[at].parent
            if parent is None:
                return line
            at = parent

    def _live(self) -> set[str]:
        return {id for tip in (*self.branches.values(), *self.tags.values()) for id in self._line(tip)}

    def _some(self, seed: int) -> str:
        """Return an existing snapshot that contains the array."""
        found = sorted(self._live() - {self.root})
        return found[seed % len(found)]

    # Writers

    @rule(number=st.integers(0, 1), branch=st.sampled_from(BRANCHES))
    def open_session(self, number: int, branch: str) -> None:
        if branch in self.branches:
            tip = self.branches[branch]
            self.open[number] = Open(
                self.repo.writable_session(branch), branch, tip, list(self.known[tip].values)
            )
            self.collected_since.discard(number)

    @rule(number=st.integers(0, 1), at=CHUNKS)
    def write(self, number: int, at: int) -> None:
        if number in self.open:
            each = self.open[number]
            self.counter += 1
            zarr.open_array(each.session.store, path="a")[at] = self.counter
            each.values[at], each.dirty = self.counter, True

    @rule(number=st.integers(0, 1))
    def commit(self, number: int) -> None:
        each = self.open.get(number)
        if each is None or not each.dirty:
            return
        moved = self.branches.get(each.branch) != each.base
        try:
            id = each.session.commit("commit")
        except ConflictError:
            as_told = moved
        except StorageError:  # what it wrote was collected
            as_told = number in self.collected_since
        else:
            as_told = not moved
            self._learn(id, each.base, tuple(each.values))
            self.branches[each.branch] = id
        assert as_told
        del self.open[number]

    @rule(number=st.integers(0, 1))
    def flush(self, number: int) -> None:
        each = self.open.pop(number, None)
        if each is not None and each.dirty and number not in self.collected_since:
            each.session.flush("on no branch")

    # Refs and readers

    @rule(branch=st.sampled_from(BRANCHES[1:]), seed=st.integers(0, 99))
    def create_branch(self, branch: str, seed: int) -> None:
        target = self._some(seed)
        if branch not in self.branches:
            self.repo.create_branch(branch, target)
            self.branches[branch] = target

    @rule(branch=st.sampled_from(BRANCHES[1:]))
    def delete_branch(self, branch: str) -> None:
        if self.branches.pop(branch, None):
            self.repo.delete_branch(branch)

    @rule(tag=st.sampled_from(TAGS), seed=st.integers(0, 99))
    def create_tag(self, tag: str, seed: int) -> None:
        target = self._some(seed)
        if tag not in self.used_tags:
            self.repo.create_tag(tag, target)
            self.used_tags.add(tag)
            self.tags[tag] = target

    @rule(seed=st.integers(0, 99))
    def hold(self, seed: int) -> None:
        id = self._some(seed)
        self.reader = (self.repo.readonly_session(snapshot_id=id), id)

    # Upkeep

    @rule(step=st.integers(0, 8))
    def expire(self, step: int) -> None:
        times = sorted(self.known[id].made for id in self._live())
        cutoff = times[min(step, len(times) - 1)]
        tips = {*self.branches.values(), *self.tags.values()}
        before = {tip: self._line(tip) for tip in tips}

        self.repo.expire_snapshots(cutoff)

        after = {tip: [info.id for info in self.repo.ancestry(snapshot_id=tip)] for tip in tips}
        for tip, line in after.items():
            assert (line[0], line[-1]) == (tip, self.root)
            assert line == [id for id in before[tip] if id in line]
            assert all(self.known[id].made < cutoff for id in before[tip] if id not in line)
        for line in after.values():
            for id, parent in pairwise(line):
                self.known[id].parent = parent

    @rule(last=st.integers(1, 3), tagged=st.booleans())
    def retain(self, last: int, tagged: bool) -> None:
        kept = {id for tip in self.branches.values() for id in self._line(tip)[:last]} | {self.root}
        if tagged:
            kept |= set(self.tags.values())
        self.repo.retain(RetentionPolicy(last=last, tagged=tagged))
        self.tags = {tag: id for tag, id in self.tags.items() if id in kept}
        lines = {tip: self._line(tip) for tip in {*self.branches.values(), *self.tags.values()}}
        for tip, line in lines.items():
            stay = [id for id in line if id in kept]
            assert [info.id for info in self.repo.ancestry(snapshot_id=tip)] == stay
            for id, parent in pairwise(stay):
                self.known[id].parent = parent

    @rule()
    def collect(self) -> None:
        moment = now()
        needed = {each for id in self._live() for each in self.known[id].objects}
        table = self.repo.find_garbage(moment)
        assert not needed & set(table["object"])

        self.repo.garbage_collect(moment)

        there = {key for key in objects(self.repo.storage) if not key.startswith("transactions/")}
        assert there == needed
        self.collected_since |= set(self.open)

    # After every step

    @invariant()
    def live_snapshots_hold_what_the_model_says(self) -> None:
        for tip in {*self.branches.values(), *self.tags.values()}:
            assert self._values(self.repo.readonly_session(snapshot_id=tip)) == self.known[tip].values
        assert self.repo.list_branches() == set(self.branches)
        assert self.repo.list_tags() == set(self.tags)

    @invariant()
    @precondition(lambda self: self.reader is not None)
    def a_reader_sees_its_snapshot_while_it_is_live(self) -> None:
        assert self.reader is not None
        session, id = self.reader
        if id in self._live():
            assert self._values(session) == self.known[id].values

    def _values(self, session: Session) -> tuple[int, ...]:
        array = zarr.open_array(session.store, path="a", mode="r")
        return tuple(np.asarray(array[:]).tolist())

    def teardown(self) -> None:
        assert Repository.open(self.repo.storage).verify("chunks").findings == ()


@pytest.mark.parametrize("version", [1, 2])
def test_maintenance_is_safe_among_writers_and_readers(version: int) -> None:
    machine: Any = partial(MaintenanceMachine, version)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=8, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
