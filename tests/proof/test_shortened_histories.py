"""Merges, cherry-picks and reverts in random expired and squashed histories, compared with a simple model.

The model keeps every state that a commit ever had, and the true graph of commits: nothing in it expires. An
operation must have the result of a three-way merge of these states, or fail.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeAlias

import pytest

from icefloe import MergeConflictError, Repository, RetentionPolicy, in_memory_storage
from icefloe.errors import ErrorKind, SessionStateError
from tests.support.edits import CreateArray, CreateGroup, Delete, Edit, Erase, SetAttribute, Write, make

NAMES = ("/a", "/b", "/c")
SIZE = 3
BRANCHES = ("main", "dev", "side")
# Random histories of each version of the format; `make torture` runs more.
HISTORIES = int(os.environ.get("ICEFLOE_HISTORIES", "6"))

Cells: TypeAlias = dict[int, bytes]
State: TypeAlias = dict[bytes, tuple[str, bytes, Cells]]
"""By node id: path, zarr.json and chunks."""


class Clash(Exception):  # noqa: N818 - never leaves this module
    """A conflict: both sides changed the same item differently."""


@dataclass
class Commit:
    """The permanent record of a commit in the model."""

    state: State
    parent: str | None
    contains: set[str] = field(default_factory=set)
    """Tips that were merged into it, and commits that it replaced."""


class World:
    """A repository and a record of all its commits."""

    def __init__(self, seed: int, spec_version: int) -> None:
        self.random = Random(seed)
        self.repo = Repository.create(in_memory_storage(), spec_version=spec_version)
        self.commits: dict[str, Commit] = {}
        self.outcomes: Counter[str] = Counter()
        self.shortened = False
        self.count = 0
        first = self.repo.lookup_branch("main")
        self.commits[first] = Commit(self.observe(first), None)
        self.commit("main", [CreateGroup("/"), CreateArray("/a", (SIZE,)), Write("/a", (0,), b"start")])
        for branch in BRANCHES[1:]:
            self.repo.create_branch(branch, self.repo.lookup_branch("main"))

    def observe(self, snapshot: str) -> State:
        """Read the whole content of a snapshot."""
        workspace = self.repo.readonly_session(snapshot_id=snapshot)._workspace
        found: State = {}
        for path in workspace.paths():
            node = workspace.node(path)
            assert node is not None
            cells: Cells = {}
            if path != "/":
                refs = {n: workspace.ref(workspace.array(path), (n,)) for n in range(SIZE)}
                cells = {n: workspace.read(ref, 0, 99) for n, ref in refs.items() if ref is not None}
            found[bytes(node.id)] = (path, node.user_data, cells)
        return found

    def tip(self, branch: str) -> str:
        return self.repo.lookup_branch(branch)

    def commit(self, branch: str, edits: list[Edit]) -> None:
        parent = self.tip(branch)
        session = self.repo.writable_session(branch)
        make(session, edits)
        made = session.commit("x", allow_empty=True)
        self.commits[made] = Commit(self.observe(made), parent)

    # The model

    def ancestors(self, tip: str) -> set[str]:
        found: set[str] = set()
        waiting = [tip]
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                commit = self.commits[at]
                waiting += [*commit.contains, *([commit.parent] if commit.parent else [])]
        return found

    def bases(self, one: str, other: str) -> list[str]:
        """Return the common ancestors that are not ancestors of another common ancestor."""
        common = self.ancestors(one) & self.ancestors(other)
        return [id for id in common if not any(id in self.ancestors(each) - {each} for each in common)]

    def had(self, tip: str, base: str, node: bytes, cell: int) -> bool:
        """Return True if a chunk existed at any time after the base."""
        states = [self.commits[id].state for id in self.ancestors(tip) - self.ancestors(base)]
        return any(node in state and cell in state[node][2] for state in states)

    def merged(self, base: str, ours: str, theirs: str) -> tuple[State, bool]:
        """Return the merged state, and whether a conflict would be correct, too."""
        before, here, there = (self.commits[id].state for id in (base, ours, theirs))
        result: State = {}
        doubtful = False
        for node in here.keys() | there.keys():
            b, o, t = before.get(node), here.get(node), there.get(node)
            if o is None or t is None:
                left = o or t
                assert left is not None
                if b is not None and left != b:
                    raise Clash
                if b is None:
                    result[node] = left
                continue
            document = chosen(b and b[1], o[1], t[1])
            cells: Cells = {}
            for cell in range(SIZE):
                values = (b and b[2].get(cell), o[2].get(cell), t[2].get(cell))
                if b is None and values[1] != values[2] and None in values[1:]:
                    lacking = ours if values[1] is None else theirs
                    if self.had(lacking, base, node, cell):
                        raise Clash
                    doubtful = True
                value = chosen(*values)
                if value is not None:
                    cells[cell] = value
            result[node] = (o[0], document, cells)
        if len({path for path, _, _ in result.values()}) < len(result):
            raise Clash
        return result, doubtful

    # Operations

    def change(self) -> None:
        branch = self.random.choice(BRANCHES)
        there = {path for path, _, _ in self.commits[self.tip(branch)].state.values()}
        edits: list[Edit] = []
        for path in self.random.sample(NAMES, self.random.choice((1, 1, 2))):
            self.count += 1
            index = (self.random.randrange(SIZE),)
            if path not in there:
                edits += [CreateArray(path, (SIZE,)), SetAttribute(path, self.count)]
                edits += [Write(path, index, b"%d" % self.count)] if self.random.random() < 0.7 else []
            else:
                options: tuple[Edit, ...] = (Delete(path), SetAttribute(path, self.count), Erase(path, index))
                written = Write(path, index, b"%d" % self.count)
                edits.append(self.random.choice((*options, written, written, written)))
        self.commit(branch, edits)

    def merge(self) -> None:
        into, source = self.random.sample(BRANCHES, 2)
        ours, theirs = self.tip(into), self.tip(source)
        bases = self.bases(ours, theirs)
        if len(bases) > 1:
            return  # crosswise merges have no single answer
        run: Any = lambda **options: self.repo.merge(source, into, message="m", **options)  # noqa: E731
        self.check("merge", bases[0], ours, theirs, run, into)

    def pick(self) -> None:
        onto, source = self.random.sample(BRANCHES, 2)
        picked = self.tip(source)
        base = self.commits[picked].parent
        if base is not None and self.commits[base].state:
            run: Any = lambda **options: self.repo.cherry_pick(picked, branch=onto, **options)  # noqa: E731
            self.check("pick", base, self.tip(onto), picked, run, onto)

    def revert(self) -> None:
        branch = self.random.choice(BRANCHES)
        undone = self.random.choice([info.id for info in self.repo.ancestry(branch=branch)])
        parent = self.commits[undone].parent
        if parent is not None and self.commits[parent].state:
            run: Any = lambda **options: self.repo.revert(undone, branch=branch, **options)  # noqa: E731
            self.check("revert", undone, self.tip(branch), parent, run, branch)

    def check(self, kind: str, base: str, ours: str, theirs: str, run: Any, branch: str) -> None:
        """Run an operation, and compare its result with the model."""
        try:
            expected: State | None
            expected, doubtful = self.merged(base, ours, theirs)
        except Clash:
            expected, doubtful = None, True
        try:
            result = run()
        except MergeConflictError:
            assert doubtful, f"{kind}: a conflict where there is none"
            self.outcomes[f"{kind}: conflict"] += 1
        except SessionStateError as error:
            if error.kind != ErrorKind.REBASE_TX_LOG_PRUNED:
                raise
            assert self.shortened, f"{kind}: refused in a complete history"
            self.outcomes[f"{kind}: refused"] += 1
        else:
            tip = self.tip(branch)
            assert expected is not None, f"{kind}: no conflict was noticed"
            assert self.observe(tip) == expected, kind
            self.outcomes[f"{kind}: {result.outcome}"] += 1
            if tip not in self.commits:
                merged = {theirs} if kind == "merge" else set()
                self.commits[tip] = Commit(expected, ours, merged)

    def squash(self) -> None:
        branch = self.random.choice(BRANCHES)
        line = [info.id for info in self.repo.ancestry(branch=branch)]
        if len(line) > 1:
            since = self.random.choice(line[1:])
            tip = line[0]
            made = self.repo.squash(since, branch=branch)
            assert self.observe(made) == self.commits[tip].state
            # all that the branch had and `since` had not is contained, whether it is listed or not
            self.commits[made] = replace(self.commits[tip], parent=since, contains={tip})
            self.outcomes["squash"] += 1

    def expire(self) -> None:
        times = sorted(info.written_at for branch in BRANCHES for info in self.repo.ancestry(branch=branch))
        self.repo.expire_snapshots(self.random.choice(times))
        self.shortened = True

    def retain(self) -> None:
        self.repo.retain(RetentionPolicy(last=self.random.choice((1, 2, 3))))
        self.shortened = True

    def collect(self) -> None:
        self.repo.garbage_collect(datetime.now(UTC) + timedelta(seconds=1))
        self.shortened = True


def chosen(before: Any, here: Any, there: Any) -> Any:
    if here == there or there == before:
        return here
    if here == before:
        return there
    raise Clash


STEPS = {
    "change": 12,
    "merge": 6,
    "pick": 2,
    "revert": 2,
    "squash": 1.5,
    "expire": 0.7,
    "retain": 0.7,
    "collect": 0.7,
}


def run(seed: int, spec_version: int, steps: int = 40) -> Counter[str]:
    world = World(seed, spec_version)
    for _ in range(steps):
        step = world.random.choices(list(STEPS), list(STEPS.values()))[0]
        getattr(world, step)()
    assert world.repo.verify().ok
    return world.outcomes


@pytest.mark.parametrize("spec_version", [1, 2])
def test_shortened_histories_merge_from_the_right_base(spec_version: int) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(HISTORIES):
        outcomes += run(seed, spec_version)

    few = max(HISTORIES // 5 - 1, 0)
    for kind in ("merge", "pick", "revert"):
        assert outcomes[f"{kind}: merged"] > few, outcomes
        assert outcomes[f"{kind}: conflict"] > few, outcomes
    assert outcomes["squash"] > few, outcomes
