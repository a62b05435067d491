"""Test repositories built from trees; same names as in `icechunk.testing.utils`."""

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
    """Write a tree to a model store and to an uncommitted session of a new in-memory repository.

    Parameters
    ----------
    tree
        The tree.
    add_hypothesis_note
        Add the tree to the output of hypothesis. Pass False outside of hypothesis tests.

    Returns
    -------
    tuple of ModelStore, Session and Repository
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
    """Yield the store of a session before and after its commit, and then the store of a new read-only
    session.

    Parameters
    ----------
    session
        A writable session, which is committed between the first and the second store.
    repo
        Its repository.
    allow_empty
        Allow a commit without changes.

    Yields
    ------
    tuple of label and store
    """
    yield "pre-commit", session.store
    session.commit("commit", allow_empty=allow_empty)
    yield "post-commit", session.store
    yield "readonly", repo.readonly_session("main").store


def update_paths_after_move(source: str, dest: str, arrays: set[str], groups: set[str]) -> list[set[str]]:
    """Return the paths of arrays and groups as they should be after a move.

    Parameters
    ----------
    source, dest
        The old and new path of the moved node. Like all paths here, they have no leading slash.
    arrays, groups
        The paths before the move.

    Returns
    -------
    list of two sets of str
    """

    def moved(path: str) -> str:
        return dest + path.removeprefix(source) if f"{path}/".startswith(f"{source}/") else path

    return [{moved(path) for path in paths} for paths in (arrays, groups)]
