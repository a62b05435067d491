"""Merges of random branches, beside a merge of their trees that knows no logs, chunks or manifests."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from icefloe.config import RepositoryConfig
from icefloe.errors import ConflictError
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from icefloe.testing.audit import Audit
from icefloe.testing.model import Cell, Node, Tree
from icefloe.testing.twins import ACCOUNTS, TOTAL, Twin

FIRST_NODES = {"/": None, ACCOUNTS: 4, "/a": 4, "/b": 3, "/g": None, "/g/c": 2}
SEEDS = 40


def merged(base: Tree, ours: Tree, theirs: Tree) -> Tree | None:
    """Each node and each chunk of the side that changed it; None where both did, in different ways."""

    def choose(before: Any, mine: Any, other: Any) -> Any:
        if mine != before and other != before and mine != other:
            raise LookupError
        return mine if other == before else other

    def places(tree: Tree) -> dict[int, tuple[str, Node]]:
        return {node.key: (path, node) for path, node in tree.nodes.items()}

    try:
        old, mine, other = map(places, (base, ours, theirs))
        keys = {key: choose(old.get(key), mine.get(key), other.get(key)) for key in {**old, **mine, **other}}
        nodes = dict(place for place in keys.values() if place is not None)
        cells: dict[Cell, int] = {}
        for cell in {**base.cells, **ours.cells, **theirs.cells}:
            value = choose(base.cells.get(cell), ours.cells.get(cell), theirs.cells.get(cell))
            if value is not None:
                cells[cell] = value
    except LookupError:
        return None
    rows = {node.key: node.rows or 0 for node in nodes.values()}
    groups = {path for path, node in nodes.items() if node.rows is None}
    fits = (
        len(nodes) == sum(place is not None for place in keys.values())
        and all(index < rows.get(key, 0) for key, index in cells)
        and all((path.rpartition("/")[0] or "/") in groups for path in nodes if path != "/")
    )
    return Tree(nodes, cells) if fits else None


def commit_changes(repo: Repository, branch: str, tree: Tree, source: Random) -> Tree:
    """Some commits of random changes; the tree they lead to."""
    for _ in range(source.randrange(1, 3)):
        twin = Twin(repo.writable_session(branch), tree)
        for _ in range(source.randrange(1, 3)):
            twin.change(source)
        if twin.model.changes:
            tree = twin.model.tree
            twin.real.commit(f"on {branch}")
    return tree


def merge_seed(seed: int, spec_version: int) -> str:
    """What became of a random merge, after it was compared with the model."""
    source = Random(seed)
    storage = in_memory_storage()
    config = RepositoryConfig(inline_chunk_threshold_bytes=source.choice((0, 512)))
    repo = Repository.create(storage, config, spec_version=spec_version)
    twin = Twin(repo.writable_session("main"), Tree())
    for path, rows in FIRST_NODES.items():
        twin.put(path, rows, 0)
    for index in range(4):
        twin.write(ACCOUNTS, index, TOTAL // 4)
    base = twin.model.tree
    repo.create_branch("side", twin.real.commit("start"))
    ours = commit_changes(repo, "main", base, source)
    theirs = commit_changes(repo, "side", base, source)
    tip = repo.lookup_branch("main")
    expected = merged(base, ours, theirs)
    audit = Audit(storage)

    try:
        outcome: str = repo.merge("side", "main", message="merged").outcome
    except ConflictError:
        assert repo.lookup_branch("main") == tip
        return "conflicts"

    stored = audit.everything()
    assert expected is not None, "merged what both sides changed in different ways"
    assert audit.tree(repo.lookup_branch("main")) == expected.plain()
    assert tip in audit.history(repo.lookup_branch("main"), stored)
    return outcome


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_merge_is_that_of_the_trees(spec_version: int) -> None:
    outcomes = Counter(merge_seed(seed, spec_version) for seed in range(SEEDS))

    assert outcomes["merged"] > 10
    assert outcomes["conflicts"] > 10
