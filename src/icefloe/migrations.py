"""The upgrade of repositories of version 1, with the official name."""

from __future__ import annotations

from typing import Any

from icefloe._internal.executor import ThreadExecutor
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.errors import ErrorKind, Hint, SessionStateError
from icefloe.maintenance.upgrade import delete_files_of_version_1, has_files_of_version_1, upgrade
from icefloe.repository import Repository

__all__ = ["upgrade_icechunk_repository"]

_READ_AHEAD = 64


def upgrade_icechunk_repository(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> Repository:
    """Turn a repository of version 1 of the format into one of version 2, and open that.

    Snapshots, manifests, logs and chunks stay as they are; branches, tags, history and configuration go into
    one new file. Stop all writers first: what they commit meanwhile is found out and the upgrade taken back,
    but a session opened before it cannot commit any more. Afterwards the given `repo` is of no use.

    A `dry_run` reads all and writes nothing. An upgrade that was broken off while it deleted
    the files of version 1 goes on with that when it is called again.
    """
    storage, refs = repo.storage, repo._refs
    if refs.spec.refs_in_repo_info and delete_unused_v1_files and has_files_of_version_1(storage):
        if not dry_run:
            delete_files_of_version_1(storage)
        return repo
    if not isinstance(refs, RefStoreV1):
        raise SessionStateError(
            f"invalid repository version ({refs.spec.number}.0), this function can only migrate repositories "
            "that use version 1.0 of the specification, to repositories with spec version 2.0",
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        ).with_hint(Hint("{function} upgrades what is older", function="icefloe.migrate"))
    storage.check_writable()
    threads = prefetch_concurrency or (1 if storage.answers_at_once else _READ_AHEAD)
    upgrade(repo._assets, refs, repo.executor or ThreadExecutor(threads), dry_run=dry_run)
    if dry_run:
        return repo
    upgraded = Repository.open(
        storage,
        config=repo._opened.config,
        authorize_virtual_chunk_access=repo._handle.authorized,
        attribution=repo.attribution,
    )._reopen(None, None, repo._handle.trusted)
    if delete_unused_v1_files:
        delete_files_of_version_1(storage)
    repo.__class__ = _InvalidatedRepository
    return upgraded


class _InvalidatedRepository(Repository):
    """What is left of a repository object after its upgrade."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(
            "This repository has been invalidated by upgrade_icechunk_repository(). "
            "Use the new Repository object returned by that function instead."
        )

    def __repr__(self) -> str:
        return "<a repository that was upgraded; use what upgrade_icechunk_repository returned>"
