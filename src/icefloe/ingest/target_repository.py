"""The repository that an ingest works on: one that is there, or a new one, unless it stays empty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from icefloe.errors import ConflictError, IcechunkError
from icefloe.format.files import REPO_PATH, is_own_path
from icefloe.repository import Repository
from icefloe.storage.base import Storage
from icefloe.storage.memory import MemoryStorage


@contextmanager
def repository_at(storage: Storage, *, dry_run: bool) -> Iterator[Repository]:
    """The repository at a place. Where there is none it is made; nothing is left of one that stays empty.

    A dry run has a new one in memory.
    """
    if Repository.exists(storage):
        yield Repository.open(storage)
        return
    if dry_run:
        yield Repository.create(MemoryStorage())
        return
    try:
        repo = Repository.create(storage)
    except ConflictError:  # somebody else was faster
        yield Repository.open(storage)
        return
    try:
        yield repo
    finally:
        with suppress(IcechunkError):  # how the job ended is what matters
            _take_away_if_empty(storage)


def _take_away_if_empty(storage: Storage) -> None:
    """Delete a repository that has but its first snapshot: no other branch, no tag, no data."""
    repo = Repository.open(storage)
    commits = list(islice(repo.ancestry(branch="main"), 2))
    if len(commits) > 1 or repo.list_branches() != {"main"} or repo.list_tags():
        return
    keys = [key for key, _ in storage.list_objects() if is_own_path(key)]
    folders = {key.partition("/")[0] for key in keys if "/" in key}
    if folders & {"chunks", "manifests"}:
        return  # of a job that was broken off, or of somebody who is at work
    storage.delete([REPO_PATH])  # first, so that nobody opens half of it
    storage.delete(keys)
    for folder in (*folders, ""):
        storage.remove_empty_folder(folder)
