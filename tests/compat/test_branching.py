"""The official package reads and continues rebased, merged, cherry-picked and squashed histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import BasicConflictSolver, Repository, local_filesystem_storage
from tests.support.compat.official import everything, needs_v2, open_repository
from tests.support.edits import CreateArray, CreateGroup, Delete, Edit, SetAttribute, Write, make

pytestmark = pytest.mark.compat


def commit(repo: Any, branch: str, *edits: Edit) -> str:
    session = repo.writable_session(branch)
    make(session, edits)
    id: str = session.commit("x", rebase_with=BasicConflictSolver())
    return id


@pytest.mark.parametrize("spec", [1, pytest.param(2, marks=needs_v2)])
def test_official_package_reads_and_continues_merged_branches(tmp_path: Path, spec: int) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path)), spec_version=spec)
    commit(repo, "main", CreateGroup("/"), CreateArray("/a"), CreateGroup("/g"), CreateArray("/g/c"))
    since = commit(repo, "main", *(Write("/a", (n,), bytes([n])) for n in range(4)))
    repo.create_branch("dev", since)
    late = repo.writable_session("main")
    make(late, [Write("/a", (3,), b"\x09")])
    commit(repo, "main", Write("/a", (0,), b"\x05"), Delete("/g"))
    late.commit("late", rebase_with=BasicConflictSolver())
    picked = commit(repo, "dev", Write("/a", (1,), b"\x06"), CreateArray("/n"), Write("/n", (0,), b"\x07"))
    commit(repo, "dev", Write("/g/c", (0,), b"\x08"), SetAttribute("/a", 1))
    repo.cherry_pick(picked, branch="main")
    merged = repo.merge("dev", "main", message="m", strategy="theirs")
    repo.squash(since, branch="dev")
    repo.revert(repo.lookup_branch("main"), branch="main", strategy="theirs")
    repo.reset_branch("main", str(merged.snapshot_id))

    theirs = open_repository(tmp_path)
    seen = everything(theirs)

    assert seen["branches"] == {"main": repo.lookup_branch("main"), "dev": repo.lookup_branch("dev")}
    root: Any = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    assert np.asarray(root["a"][:]).tolist() == [5, 6, 2, 9]
    assert np.asarray(root["n"][:]).tolist() == [7, 0, 0, 0]
    assert np.asarray(root["g/c"][:]).tolist() == [8, 0, 0, 0]
    session = theirs.writable_session("main")
    make(session, [Write("/n", (1,), b"\x01")])
    tip = session.commit("theirs")
    assert repo.lookup_branch("main") == tip
    assert repo.merge("dev", "main", message="m").outcome in ("merged", "up-to-date")
