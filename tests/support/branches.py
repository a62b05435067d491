"""Repositories with two branches that diverged, and what they contain."""

from __future__ import annotations

from collections.abc import Sequence

from icefloe import (
    Repository,
    in_memory_storage,
)
from tests.support.edits import (
    CreateArray,
    CreateGroup,
    Edit,
    Move,
    Write,
    make,
)

START: list[Edit] = [
    CreateGroup("/"),
    CreateArray("/a", (6,)),
    CreateArray("/b", (6,)),
    CreateGroup("/g"),
    CreateArray("/g/c", (6,)),
    *(Write(path, (n,), b"0") for path in ("/a", "/b", "/g/c") for n in range(6)),
]


def new_repository(spec: int = 2) -> Repository:
    made = Repository.create(in_memory_storage(), spec_version=spec)
    commit(made, "main", START)
    made.create_branch("dev", made.lookup_branch("main"))
    return made


def commit(repo: Repository, branch: str, edits: Sequence[Edit], message: str = "x") -> str:
    moves = any(isinstance(edit, Move) for edit in edits)
    session = repo.rearrange_session(branch) if moves else repo.writable_session(branch)
    make(session, edits)
    return session.commit(message, allow_empty=True)


def part(repo: Repository, ours: Sequence[Edit], theirs: Sequence[Edit]) -> tuple[str, str]:
    """Commit our changes to main and their changes to dev."""
    return commit(repo, "main", ours), commit(repo, "dev", theirs)


def contents(repo: Repository, path: str, branch: str = "main", size: int = 6) -> str:
    workspace = repo.readonly_session(branch)._workspace
    node = workspace.array(path)
    refs = [workspace.ref(node, (n,)) for n in range(size)]
    return "".join("." if ref is None else workspace.read(ref, 0, 1).decode() for ref in refs)


def paths(repo: Repository, branch: str = "main") -> list[str]:
    return list(repo.readonly_session(branch)._workspace.paths())
