"""Open the repository of an ingest, or create it; a new one that stays empty is removed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from typing import Any

from icefloe.errors import ConflictError, IcechunkError
from icefloe.format.files import REPO_PATH, is_own_path
from icefloe.repository import Repository
from icefloe.storage import storage_from_url
from icefloe.storage.base import Storage
from icefloe.storage.memory import MemoryStorage


def open_target(
    repo: Repository | str | os.PathLike[str], options: Mapping[str, Any] | None, *, dry_run: bool
) -> AbstractContextManager[Repository]:
    """Return the repository of an ingest as a context manager; a path or URL is opened or created."""
    if isinstance(repo, Repository):
        return nullcontext(repo)
    return repository_at(storage_from_url(repo, **(options or {})), dry_run=dry_run)


@contextmanager
def repository_at(storage: Storage, *, dry_run: bool) -> Iterator[Repository]:
    """Open the repository at a location, or create it. A new one that stays empty is removed at the end.

    A dry run creates it in memory.
    """
    if Repository.exists(storage):
        yield Repository.open(storage)
        return
    if dry_run:
        yield Repository.create(MemoryStorage())
        return
    try:
        repo = Repository.create(storage)
    except ConflictError:  # another process created it first
        yield Repository.open(storage)
        return
    try:
        yield repo
    finally:
        with suppress(IcechunkError):  # the result of the job matters more
            _remove_if_empty(storage)


def _remove_if_empty(storage: Storage) -> None:
    """Delete a repository with only its first snapshot: no other branch, no tag, no data."""
    repo = Repository.open(storage)
    commits = list(islice(repo.ancestry(branch="main"), 2))
    if len(commits) > 1 or repo.list_branches() != {"main"} or repo.list_tags():
        return
    keys = [key for key, _ in storage.list_objects() if is_own_path(key)]
    folders = {key.partition("/")[0] for key in keys if "/" in key}
    if folders & {"chunks", "manifests"}:
        return  # an interrupted job left them, or another writer is active
    storage.delete([REPO_PATH])  # first, so that no reader opens the rest
    storage.delete(keys)
    for folder in (*folders, ""):
        storage.remove_empty_folder(folder)
