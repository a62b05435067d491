"""Merges in which one side replaced a node: deleted it, and created another at its path."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from icefloe import Repository
from icefloe._internal.paths import list_ancestors
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from tests.support.branches import commit, new_repository
from tests.support.edits import CreateArray, CreateGroup, Delete, Edit, SetAttribute, Write, resize

SIDES: dict[str, list[Edit]] = {
    "write": [Write("/g/c", (1,), b"w")],
    "attribute": [SetAttribute("/g/c", 1)],
    "shape": [resize("/g/c", 9)],
    "delete": [Delete("/g/c")],
    "other array": [Delete("/g/c"), CreateArray("/g/c", (2,)), Write("/g/c", (0,), b"o")],
    "group": [Delete("/g/c"), CreateGroup("/g/c"), CreateArray("/g/c/x"), Write("/g/c/x", (0,), b"x")],
    "new node": [CreateArray("/g/n"), Write("/g/n", (0,), b"n")],
    "group attribute": [SetAttribute("/g", 1)],
    "no group": [Delete("/g")],
    "other group": [Delete("/g"), CreateGroup("/g"), CreateArray("/g/o"), Write("/g/o", (0,), b"o")],
    "same names": [Delete("/g"), CreateGroup("/g"), CreateArray("/g/c"), Write("/g/c", (0,), b"s")],
    "array": [Delete("/g"), CreateArray("/g"), Write("/g", (0,), b"a")],
}


@pytest.fixture(scope="module")
def repo() -> Repository:
    """A repository with a branch for each side."""
    made = new_repository(2)
    for name, edits in SIDES.items():
        made.create_branch(name, made.lookup_branch("dev"))
        commit(made, name, edits)
    return made


CASES = [(*pair, ("ours", "theirs")[number % 2]) for number, pair in enumerate(permutations(SIDES, 2))]


@pytest.mark.parametrize(("ours", "theirs", "strategy"), CASES)
def test_merge_of_replaced_nodes_keeps_the_hierarchy_complete(
    repo: Repository, ours: str, theirs: str, strategy: Any
) -> None:
    branch = f"{ours} {theirs} {strategy}"
    repo.create_branch(branch, repo.lookup_branch(ours))

    result = repo.merge(theirs, branch, message="m", strategy=strategy)

    before, after = nodes(repo, ours), nodes(repo, branch)
    assert repo.verify("chunks", branch=branch, history=False).ok
    for path in after:
        assert not any(is_array(after.get(above)) for above in list_ancestors(path)), path
        assert all(above in after for above in list_ancestors(path)), path
    check_log(repo.inspect_transaction_log(repo.lookup_branch(branch)), before, after)
    kept = before if strategy == "ours" else nodes(repo, theirs)
    for path in {conflict.path for conflict in result.conflicts if conflict.chunk is None}:
        wanted, found = kept.get(path), after.get(path)
        assert (wanted is None) == (found is None), path
        if wanted is not None and found is not None and is_array(wanted):
            assert (found.id, found.user_data) == (wanted.id, wanted.user_data), path


def nodes(repo: Repository, branch: str) -> dict[str, NodeSnapshot]:
    workspace = repo.readonly_session(branch)._workspace
    found = ((path, workspace.node(path)) for path in workspace.paths())
    return {path: node for path, node in found if node is not None}


def is_array(node: NodeSnapshot | None) -> bool:
    return node is not None and isinstance(node.node_data, ArrayNodeData)


def check_log(log: dict[str, Any], before: dict[str, NodeSnapshot], after: dict[str, NodeSnapshot]) -> None:
    """Compare a transaction log with the snapshots on both sides."""
    old, new = ({str(node.id): node for node in each.values()} for each in (before, after))
    assert sorted(log["new_groups"] + log["new_arrays"]) == sorted(new.keys() - old.keys())
    assert sorted(log["deleted_groups"] + log["deleted_arrays"]) == sorted(old.keys() - new.keys())
    changed = {id for id in new.keys() & old.keys() if new[id].user_data != old[id].user_data}
    assert changed <= set(log["updated_groups"] + log["updated_arrays"])
