"""Merges of random branches, compared with merges of their model trees."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from icefloe.config import RepositoryConfig
from icefloe.errors import ConflictError
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from tests.support.simulation.audit import Audit
from tests.support.simulation.merged_trees import may_clash, merged
from tests.support.simulation.model import Cell, Tree
from tests.support.simulation.twins import ACCOUNTS, TOTAL, Twin

FIRST_NODES = {"/": None, ACCOUNTS: 4, "/a": 4, "/b": 3, "/g": None, "/g/c": 2}
SEEDS = 40


def commit_changes(repo: Repository, branch: str, tree: Tree, source: Random) -> tuple[Tree, set[Cell]]:
    """Commit random changes; return the resulting tree and the written chunks."""
    written: set[Cell] = set()
    for _ in range(source.randrange(1, 4)):
        moves = repo.spec_version == 2 and source.random() < 0.4
        session = repo.rearrange_session(branch) if moves else repo.writable_session(branch)
        twin = Twin(session, tree)
        for _ in range(source.randrange(1, 3)):
            twin.change(source)
        if twin.model.changes:
            tree = twin.model.tree
            written |= twin.model.changes.cells.keys()
            twin.real.commit(f"on {branch}")
    return tree, written


def merge_seed(seed: int, spec_version: int) -> str:
    """Merge two random branches, compare the result with the model, and return the outcome."""
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
    ours, our_cells = commit_changes(repo, "main", base, source)
    theirs, their_cells = commit_changes(repo, "side", base, source)
    tip = repo.lookup_branch("main")
    expected = merged(base, ours, theirs)
    audit = Audit(storage)

    preview = repo.merge("side", "main", message="merged", dry_run=True)
    try:
        outcome: str = repo.merge("side", "main", message="merged").outcome
    except ConflictError:
        assert repo.lookup_branch("main") == tip
        assert preview.outcome == "conflicts"
        assert expected is None or may_clash(base, ours, theirs, our_cells, their_cells)
        return "conflicts"

    assert expected is not None, "merged what both sides changed in different ways"
    assert preview.outcome == outcome
    stored = audit.everything()
    assert audit.tree(repo.lookup_branch("main")) == expected.plain()
    assert tip in audit.history(repo.lookup_branch("main"), stored)
    if outcome == "merged":
        assert repo.diff(from_snapshot_id=tip, to_branch="main") == preview.changes
    return outcome


@pytest.mark.parametrize("spec_version", [1, 2])
def test_merge_equals_merge_of_model_trees(spec_version: int) -> None:
    outcomes = Counter(merge_seed(seed, spec_version) for seed in range(SEEDS))

    assert outcomes["merged"] > 8
    assert outcomes["conflicts"] > 8
