"""Virtual and hybrid ingest: what of a file can stay where it is, and references to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from icefloe._internal.warnings import ignore_warnings
from icefloe.credentials import AnyCredential, make_credential_from_env
from icefloe.distributed import receipt
from icefloe.ingest.discover.sources import Source, refuse_changed
from icefloe.ingest.discover.urls import reference_location
from icefloe.ingest.inspect.open import virtualized
from icefloe.ingest.inspect.reference_spill import Parsed, read_spilled
from icefloe.ingest.records import FileSchema, Reading, SpillRange, reason
from icefloe.ingest.write.chunks import TaskResult
from icefloe.repository import Repository
from icefloe.session import ForkSession
from icefloe.storage.external.access import Access, refuse_secrets
from icefloe.storage.external.endpoints import is_same_server
from icefloe.virtual import VirtualChunkContainer
from icefloe.virtual.sources import get_container_prefix, make_container, to_location
from icefloe.virtual.write import Placed, write_placed

_FILES_AT_ONCE = 64
"""So many files are referred to in one go."""
_MOST_FOLDERS = 8


@dataclass(frozen=True, slots=True)
class Referred:
    """A file to refer to: the names of its variables, and where it goes."""

    number: int
    source: Source
    names: tuple[str, ...]
    box: Mapping[str, tuple[int, int]]
    lacking: Mapping[str, tuple[int, ...]]
    """The dimensions of arrays, by number, that its variables lack."""
    spilled: SpillRange | None


@dataclass(frozen=True, slots=True)
class ReferenceTask:
    """A task: write references to files."""

    fork: ForkSession
    group: str
    files: tuple[Referred, ...]
    reading: Reading
    dims: Mapping[str, tuple[str, ...]]
    """Of each array."""
    chunks: Mapping[str, tuple[int, ...]]
    """Of each array: their shape."""
    windows: Mapping[str, tuple[range, ...]]
    """Arrays whose manifests are written by the task, and its part of their chunk grids."""

    @property
    def sources(self) -> dict[int, Source]:
        """The source of each file by its number."""
        return {file.number: file.source for file in self.files}


def write_references(task: ReferenceTask) -> TaskResult:
    """Set references through the fork. Runs on executors."""
    bad: dict[int, str] = {}
    for start in range(0, len(task.files), _FILES_AT_ONCE):
        bad |= _refer_to(task.files[start : start + _FILES_AT_ONCE], task)
    for name, window in task.windows.items():
        task.fork.write_manifests(_path(task.group, name), window)
    return TaskResult(receipt(task.fork), bad)


def _refer_to(files: Sequence[Referred], task: ReferenceTask) -> dict[int, str]:
    """Set references to files, array by array; return the unreadable files with the reason."""
    spilled = read_spilled(
        (each.spilled for each in files if each.spilled), task.fork._workspace.assets.storage
    )
    bad: dict[int, str] = {}
    placed: dict[str, list[Placed]] = {}
    for file in files:
        try:
            found = None if file.spilled is None else spilled.get(file.spilled)
            parsed = found or _parsed(file.source, task.reading)
            refuse_changed(file.source, task.reading.storage_options)
            mine = {name: parsed.variables[name] for name in file.names}
        except Exception as error:  # noqa: BLE001 - parsers raise whatever they like about a damaged file
            bad[file.number] = reason(error)
            continue
        for name, variable in mine.items():
            box, chunks = [file.box[dim] for dim in task.dims[name]], task.chunks[name]
            sizes = [stop - start for start, stop in box]
            cut = variable.in_chunks(chunks, file.lacking.get(name, ()), sizes)
            step = tuple(start // size for (start, _), size in zip(box, chunks, strict=True))
            placed.setdefault(name, []).append(Placed(cut.chunks, parsed.sources, step, cut.grid_shape))
    for name, parts in placed.items():
        write_placed(task.fork.store, _path(task.group, name), parts)
    return bad


def _parsed(source: Source, reading: Reading) -> Parsed:
    with ignore_warnings():
        return Parsed.of(virtualized(source, reading))


def _path(group: str, name: str) -> str:
    return f"/{group.strip('/')}/{name}".replace("//", "/")


def with_containers(repo: Repository, sources: Iterable[Source], reading: Reading) -> Repository:
    """The repository, allowed to refer to the places of the sources, as its configuration then says.

    Credentials are for this process and its tasks: the configuration has none.
    """

    def places() -> Iterator[_Place]:
        for source in sources:
            url = reference_location(source.address) if source.is_remote else source.url
            yield to_location(url), partial(reading.access_to, source)

    return _with_places(repo, list(places()))


def with_places(repo: Repository, files: Iterable[FileSchema], reading: Reading) -> Repository:
    """Authorize the locations that files of references lead to."""
    locations = dict.fromkeys(location for file in files for location in file.places)
    if not locations:
        return repo
    return _with_places(repo, [(each, partial(reading.access_at, each)) for each in locations])


_Place = tuple[str, Callable[[], Access | None]]
"""A location, and what finds out how it is reached: asked for one location of each container."""


def _with_places(repo: Repository, places: Sequence[_Place]) -> Repository:
    config = repo.config
    stored = Repository.fetch_config(repo.storage)  # it may have more since the repository was opened
    for container in ((stored and stored.virtual_chunk_containers) or {}).values():
        config.set_virtual_chunk_container(container)
    stores = {prefix: each.store for prefix, each in (config.virtual_chunk_containers or {}).items()}
    authorized: dict[str, AnyCredential | None] = dict(repo._handle.authorized)
    trusted = set(repo._handle.trusted)
    new: dict[str, VirtualChunkContainer] = {}
    common = _common_folder([location for location, _ in places if location.startswith("file:")])
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
            trusted.add(prefix)  # the caller names the endpoint too
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


def _common_folder(locations: Sequence[str]) -> str | None:
    """The folder that has all files of this machine, where they are in too many for a container of each."""
    folders = {get_container_prefix(location) for location in locations}
    if len(folders) <= _MOST_FOLDERS:
        return None
    common = os.path.commonpath([folder.removeprefix("file://") for folder in folders])
    return f"file://{common}/" if common.count("/") > 1 else None  # below the root it would be too much
