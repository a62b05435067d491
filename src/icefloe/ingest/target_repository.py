"""Open or create the target repository of an ingest, and authorize it to read referenced source files.

A repository that was created for the ingest is deleted if it is still empty at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Any

from icefloe.credentials import AnyCredential, make_credential_from_env
from icefloe.errors import ConflictError, IcechunkError
from icefloe.format.files import REPO_PATH, is_own_path
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.discover.urls import make_reference_url
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import FileSchema
from icefloe.repository import Repository
from icefloe.storage import storage_from_url
from icefloe.storage.base import Storage
from icefloe.storage.external.access import Access, refuse_secrets
from icefloe.storage.external.trusted_endpoints import is_same_server
from icefloe.storage.memory import MemoryStorage
from icefloe.virtual import VirtualChunkContainer
from icefloe.virtual.sources import get_container_prefix, make_container, to_location

_MAX_FOLDERS = 8
"""The number of local directories up to which each gets its own virtual chunk container. Beyond this number,
they share a container for their common parent.
"""


def open_target(
    repo: Repository | str | os.PathLike[str], options: Mapping[str, Any] | None, *, dry_run: bool
) -> AbstractContextManager[Repository]:
    """Open the target repository of an ingest, as a context manager. A repository at a path or URL is created
    if it does not exist.
    """
    if isinstance(repo, Repository):
        return nullcontext(repo)
    return open_or_create(storage_from_url(repo, **(options or {})), dry_run=dry_run)


@contextmanager
def open_or_create(storage: Storage, *, dry_run: bool) -> Iterator[Repository]:
    """Open the target repository at a location, or create it if it does not exist.

    A newly created repository is deleted at the end if it is still empty.

    In a dry run, a new repository is created in memory.
    """
    if Repository.exists(storage):
        yield Repository.open(storage)
        return
    if dry_run:
        yield Repository.create(MemoryStorage())
        return
    try:
        repo = Repository.create(storage)
    except ConflictError:  # another process created the repository first
        yield Repository.open(storage)
        return
    try:
        yield repo
    finally:
        with suppress(IcechunkError):  # an error here must not hide the result of the job
            _remove_if_empty(storage)


def _remove_if_empty(storage: Storage) -> None:
    """Delete a repository that contains no data: it has only the initial snapshot, one branch and no tags."""
    repo = Repository.open(storage)
    commits = list(islice(repo.ancestry(branch="main"), 2))
    if len(commits) > 1 or repo.list_branches() != {"main"} or repo.list_tags():
        return
    keys = [key for key, _ in storage.list_objects() if is_own_path(key)]
    folders = {key.partition("/")[0] for key in keys if "/" in key}
    if folders & {"chunks", "manifests"}:
        return  # an interrupted job left objects behind, or another writer is active
    storage.delete([REPO_PATH])  # delete this file first, so that readers can no longer open the repository
    storage.delete(keys)
    for folder in (*folders, ""):
        storage.remove_empty_folder(folder)


def authorize_sources(repo: Repository, sources: Iterable[IngestSource], reading: ReadOptions) -> Repository:
    """Set up virtual chunk containers for all sources in the target repository, and authorize reading them.

    The configuration is stored without credentials, which are kept only by this process and its tasks.
    """

    def places() -> Iterator[_LocationAccess]:
        for source in sources:
            url = make_reference_url(source.address) if source.is_remote else source.url
            yield to_location(url), partial(reading.find_access, source)

    return _authorize(repo, list(places()))


def authorize_locations(repo: Repository, files: Iterable[FileSchema], reading: ReadOptions) -> Repository:
    """Authorize the target repository to read the files that sources reference."""
    locations = dict.fromkeys(location for file in files for location in file.places)
    if not locations:
        return repo
    return _authorize(repo, [(each, partial(reading.find_access_at, each)) for each in locations])


_LocationAccess = tuple[str, Callable[[], Access | None]]
"""A location, with a function that returns its store and credentials. The function is called once per
container.
"""


def _authorize(repo: Repository, places: Sequence[_LocationAccess]) -> Repository:
    config = repo.config
    stored = Repository.fetch_config(
        repo.storage
    )  # containers may have been added since the repository was opened
    for container in ((stored and stored.virtual_chunk_containers) or {}).values():
        config.set_virtual_chunk_container(container)
    stores = {prefix: each.store for prefix, each in (config.virtual_chunk_containers or {}).items()}
    authorized: dict[str, AnyCredential | None] = dict(repo._handle.authorized)
    trusted = set(repo._handle.trusted)
    new: dict[str, VirtualChunkContainer] = {}
    common = _find_common_folder([location for location, _ in places if location.startswith("file:")])
    for location, way in places:
        prefix = next((each for each in (*stores, *new) if location.startswith(each)), None)
        if prefix is not None and prefix in authorized:
            continue
        access = way()
        if prefix is None:
            store = None if access is None else refuse_secrets(access.store, location)
            is_here = location.startswith("file:")
            container = make_container(common if common and is_here else location, store)
            prefix = container.url_prefix
            new[prefix] = container
            trusted.add(prefix)
        elif access is not None and is_same_server(access.store, stores[prefix]):
            trusted.add(prefix)  # the caller specified the same endpoint
        authorized[prefix] = make_credential_from_env(prefix) if access is None else access.credential
    for container in new.values():
        config.set_virtual_chunk_container(container)
    if not new and set(authorized) == repo.authorized_virtual_container_prefixes:
        return repo
    for prefix in set(config.virtual_chunk_containers or {}) - set(authorized):
        authorized[prefix] = make_credential_from_env(prefix)
    opened = repo._reopen(config, authorized, frozenset(trusted))
    if new:
        opened.save_config()
    return opened


def _find_common_folder(locations: Sequence[str]) -> str | None:
    """Return the common parent of local files if they are in too many directories for separate containers.
    Otherwise return None.
    """
    folders = {get_container_prefix(location) for location in locations}
    if len(folders) <= _MAX_FOLDERS:
        return None
    common = os.path.commonpath([folder.removeprefix("file://") for folder in folders])
    return f"file://{common}/" if common.count("/") > 1 else None  # never authorize the root directory
