"""Repositories made of trees, seen through the steps of a commit.

The names are those of `icechunk.testing.utils`.
"""

from __future__ import annotations

from collections.abc import Generator

from hypothesis import note

from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage import in_memory_storage
from icefloe.store import IcechunkStore
from icefloe.testing.models import GroupNode, ModelStore

__all__ = ["precommit_postcommit_readonly", "tree_to_model_and_icechunk", "update_paths_after_move"]


def tree_to_model_and_icechunk(
    tree: GroupNode, add_hypothesis_note: bool = True
) -> tuple[ModelStore, Session, Repository]:
    """A model and a new repository in memory that both hold the tree; the session is not committed.

    Outside a hypothesis test pass `add_hypothesis_note=False`.
    """
    if add_hypothesis_note:
        note(f"tree of {len(tree.nodes())} nodes: {tree!r}")
    model = ModelStore()
    tree.materialize(model)
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    tree.materialize(session.store)
    return model, session, repo


def precommit_postcommit_readonly(
    session: Session, repo: Repository, *, allow_empty: bool = False
) -> Generator[tuple[str, IcechunkStore], None, None]:
    """The store before the commit, after it, and of a new session, each with a word for it.

    The session is committed between the first and the second.
    """
    yield "pre-commit", session.store
    session.commit("commit", allow_empty=allow_empty)
    yield "post-commit", session.store
    yield "readonly", repo.readonly_session("main").store


def update_paths_after_move(source: str, dest: str, arrays: set[str], groups: set[str]) -> list[set[str]]:
    """Where the arrays and the groups are once `source` is at `dest`; all paths without a slash in front."""

    def moved(path: str) -> str:
        return dest + path.removeprefix(source) if f"{path}/".startswith(f"{source}/") else path

    return [{moved(path) for path in paths} for paths in (arrays, groups)]
