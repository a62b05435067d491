"""What is to be ingested: files and Zarr stores, found by path, pattern, folder, URL or list."""

from __future__ import annotations

import glob
import io
import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from icefloe._internal.concurrency import get_pool
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.history.versions import DEFAULT_VERSION, resolve_version
from icefloe.ingest.discover.remote import Server, copied, drop_copy, server_of
from icefloe.ingest.discover.urls import origin_of, quoted, shown
from icefloe.ingest.discover.web_server import Seen
from icefloe.repository import Repository
from icefloe.storage.base import ObjectNotFoundError
from icefloe.storage.external.access import split_query
from icefloe.storage.urls import storage_from_url
from icefloe.virtual.parsers.icechunk import is_repository

SUFFIXES = (
    *(".nc", ".nc3", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".he5", ".hdf"),
    *(".grib", ".grib1", ".grib2", ".grb", ".grb1", ".grb2", ".tif", ".tiff", ".zarr", ".zarr.zip"),
    *(".fits", ".fit", ".fts", ".hdf4", ".h4", ".dmrpp"),
)
"""What is taken from a folder, and nothing else."""
_OTHERS = "; of a folder files with known endings are taken (.nc, .grib, .tif, .zarr, ...), by a pattern any"
_LISTS = (".txt", ".list", ".urls")
_REPOSITORY = ("repo", "refs/branch.main/ref.json")
"""Files that every Icechunk repository has, of version 2 and 1."""
_ZARR = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")
_URL = re.compile(r"^[a-z][a-z0-9+]+://", re.IGNORECASE)
_FILE_URL = re.compile(r"^file://(localhost)?(?=/)", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_KEPT_COPIES = 4
_LOOKING = 16
"""So many files of lists are looked at side by side."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file or a Zarr store, and what tells its versions apart."""

    url: str
    """An absolute path, or a URL: as it is shown and kept."""
    size_bytes: int
    """0 for a Zarr store, which is many files; -1 where a web server does not tell."""
    modified_us: int
    etag: str = ""
    """What its server calls this version of it."""
    signed_url: str | None = field(default=None, repr=False)
    """The URL with the signature or password that its server wants, which is shown and kept nowhere."""
    is_store: bool = False
    """Whether it is a Zarr store rather than a file."""
    group: str = ""
    """The only group of it that is read; by default the one that `Reading` names, or the root."""

    @property
    def seen(self) -> Seen:
        """What tells this version apart."""
        return Seen(self.size_bytes, self.modified_us, self.etag)

    @property
    def is_remote(self) -> bool:
        """Whether it is read over the network."""
        return bool(_URL.match(self.url))

    @property
    def is_repository(self) -> bool:
        """Whether it is a version of an Icechunk repository; `etag` is its snapshot."""
        return self.is_store and bool(self.etag)

    @property
    def repository_address(self) -> str:
        """Where the repository is read from, without the version."""
        if not self.is_remote and os.path.isdir(self.url):
            return self.url
        folder, _, name = self.address.rpartition("/")
        return f"{folder}/{name.partition('@')[0]}"

    @property
    def address(self) -> str:
        """Where it is read from."""
        return self.signed_url or self.url


@dataclass(frozen=True, slots=True)
class Unfound:
    """A file that was named and cannot be found, and why."""

    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class Discovered:
    """The sources that names stand for, and the names that stand for nothing."""

    sources: tuple[Source, ...]
    unfound: tuple[Unfound, ...]


def discover(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    options: Mapping[str, Any] | None = None,
    *,
    skip: bool = False,
) -> Discovered:
    """Find all sources that some names stand for.

    With `skip`, names that stand for nothing are reported instead of raised, unless all of them do.
    """
    names = [given] if isinstance(given, str | os.PathLike) else list(given)
    found: dict[str, Source] = {}
    unfound: dict[str, Unfound] = {}
    for each in _Finder(dict(options or {}), skip).all([os.fspath(name) for name in names]):
        if isinstance(each, Source):
            found.setdefault(each.url, each)
        else:
            unfound.setdefault(each.url, each)
    if not found:
        told = "; ".join(each.reason for each in unfound.values()) or "no source was given"
        raise InvalidInputError(f"there is nothing to ingest: {told}", ErrorKind.INVALID_PATH)
    return Discovered(tuple(found.values()), tuple(unfound.values()))


def find_sources(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], options: Mapping[str, Any] | None = None
) -> list[Source]:
    """All sources that some names stand for, each once, sorted within a pattern, folder or list.

    A name is a path, a pattern with `*`, `?`, `**` or `{a,b}`, a folder (its files with a known ending, and
    those below it), a Zarr store, a URL (with a pattern, or ending in `/` for a folder), or a text file with
    a name per line. `options` are those of `storage_from_url` for URLs. A name that stands for nothing is an
    error.
    """
    return list(discover(given, options).sources)


class _Finder:
    """Finds sources. A server is opened once, however many of its files are named."""

    def __init__(self, options: Mapping[str, Any], skip: bool) -> None:
        self._options = options
        self._skip = skip
        self._servers: dict[str, Server] = {}

    def all(self, names: Iterable[str]) -> Iterator[Source | Unfound]:
        """Find the sources of all names, in order. Remote files are looked up concurrently."""
        named = [each for name in names for each in _without_braces(name)]
        for name in named:
            if _URL.match(name) and not _FILE_URL.match(name):
                self._server(name)
        for sources in get_pool("finding", _LOOKING).map(self._tried, named):
            yield from sources

    def _tried(self, name: str) -> list[Source | Unfound]:
        try:
            return list(self._found(name))
        except (IcechunkError, OSError) as error:
            if not self._skip:
                raise
            return [Unfound(shown(name), getattr(error, "message", None) or str(error))]

    def _found(self, name: str) -> Iterator[Source | Unfound]:
        """Find the sources of one name."""
        if not name:  # a variable of a script that is not set
            raise InvalidInputError("a source has an empty name; . is this folder", ErrorKind.INVALID_PATH)
        if _FILE_URL.match(name):
            name = unquote(_FILE_URL.sub("", name))
        sources = list(self._remote(name) if _URL.match(name) else self._local(name))
        if not sources:
            what = f"no file to ingest there{_OTHERS if os.path.isdir(name) or name.endswith('/') else ''}"
            raise InvalidInputError(f"nothing matches {shown(name)!r}: {what}", ErrorKind.INVALID_PATH)
        yield from sources

    def _local(self, name: str) -> Iterator[Source | Unfound]:
        path = Path(os.path.expanduser(name))  # which leaves a file `~$x` alone
        if (repository := _repository(path)) is not None:
            yield repository
            return
        if not path.exists() and _MAGIC.search(name):
            for each in sorted(glob.glob(str(path), recursive=True)):
                if os.path.isfile(each) or _is_zarr(Path(each)):
                    yield _of_path(Path(each))
        elif path.is_dir():
            yield from [_of_path(path)] if _is_zarr(path) else _folder(path)
        elif path.suffix.lower() in _LISTS and path.is_file():
            lines = _lines(path.read_bytes(), name)
            yield from self.all(_below(str(path.parent), line) for line in lines)
        elif path.exists():
            yield _of_path(path)
        else:
            raise InvalidInputError(f"there is no file {name!r}", ErrorKind.INVALID_PATH)

    def _remote(self, name: str) -> Iterator[Source | Unfound]:
        server = self._server(name)
        whole, query = split_query(name)
        ending = f"?{query}" if query else ""
        if whole.endswith("/") or _MAGIC.search(whole):
            fixed = _MAGIC.split(whole)[0].rpartition("/")[0]
            for path, seen, is_store in _chosen(server.below(f"{fixed}/"), whole[len(fixed) + 1 :]):
                yield _of_url(f"{fixed}/{quoted(path)}{ending}", seen, is_store=is_store)
        elif PurePosixPath(whole).suffix.lower() in _LISTS:
            folder = whole.rpartition("/")[0]
            text = io.BytesIO()
            server.copy(name, text)
            lines = _lines(text.getvalue(), shown(name))
            yield from self.all(line if _URL.match(line) else f"{folder}/{line}{ending}" for line in lines)
        else:
            yield self._remote_repository(server, whole, ending) or _looked(server, whole, ending)

    def _remote_repository(self, server: Server, whole: str, ending: str) -> Source | None:
        """Find an Icechunk repository by its files, or with `@` and a version that version of it."""
        folder, _, name = whole.rpartition("/")
        name, _, version = name.partition("@")
        location = f"{folder}/{name}"
        for file in _REPOSITORY:
            with suppress(ObjectNotFoundError):
                server.look(f"{location}/{file}{ending}")
                break
        else:
            return None
        repo = Repository.open(storage_from_url(location + ending, **self._options))
        return _of_version(repo, version, whole)

    def _server(self, name: str) -> Server:
        origin = origin_of(name)
        if origin not in self._servers:
            self._servers[origin] = server_of(name, self._options)
        return self._servers[origin]


def _lines(data: bytes, name: str) -> list[str]:
    """Read the names in a text file."""
    try:
        lines = [line.strip() for line in data.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{name} is no list of files: byte {error.start} is no UTF-8 text", ErrorKind.INVALID_PATH
        ) from None
    return [line for line in lines if line and not line.startswith("#")]


def _below(folder: str, line: str) -> str:
    """Resolve a name in a local list, relative to the folder of the list."""
    return line if _URL.match(line) or line.startswith("~") else os.path.join(folder, line)


def _without_braces(name: str) -> list[str]:
    """Expand `{a,b}` as a shell does, unless a file has that name."""
    match = _BRACES.search(name)
    if match is None or os.path.exists(name):
        return [name]
    before, after = name[: match.start()], name[match.end() :]
    return [each for choice in match[1].split(",") for each in _without_braces(f"{before}{choice}{after}")]


def _folder(folder: Path) -> Iterator[Source]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            continue
        if path.is_dir() and not _is_zarr(path):
            yield from _folder(path)
        elif path.name.lower().endswith(SUFFIXES) or path.is_dir():
            yield _of_path(path)


def _is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in _ZARR)


def _repository(path: Path) -> Source | None:
    """Find an Icechunk repository, or with `@` and a version behind its path that version of it."""
    folder, version = path, ""
    if not path.exists():
        name, _, version = str(path).rpartition("@")
        folder = Path(name or path)
    if not is_repository(str(folder)):
        return None
    whole = folder.absolute()
    url = f"{whole}@{version}" if version else str(whole)
    return _of_version(Repository.open(storage_from_url(str(whole))), version, url)


def _of_version(repo: Repository, version: str, url: str) -> Source:
    snapshot = repo.lookup_snapshot(resolve_version(repo, version or DEFAULT_VERSION))
    written_us = int(snapshot.written_at.timestamp() * 1_000_000)
    plain = shown(url)
    return Source(plain, 0, written_us, snapshot.id, None if plain == url else url, is_store=True)


def _of_path(path: Path) -> Source:
    whole = path.absolute()
    if ".." in whole.parts:
        whole = whole.resolve()
    if whole.is_dir():
        return Source(str(whole), 0, max(_metadata_times(whole)) // 1000, is_store=True)
    return Source(str(whole), *_seen(whole))


def _metadata_times(folder: Path) -> Iterator[int]:
    """Yield the modification times of all metadata documents of a Zarr store."""
    for name in (*_ZARR, ".zattrs"):
        with suppress(FileNotFoundError):
            yield (folder / name).stat().st_mtime_ns
    if not _is_array(folder):
        for entry in os.scandir(folder):
            if entry.is_dir():
                yield from _metadata_times(Path(entry.path))


def _is_array(folder: Path) -> bool:
    """Return whether a folder of a Zarr store is an array, or has no metadata."""
    try:
        return bool(json.loads((folder / "zarr.json").read_bytes()).get("node_type") != "group")
    except FileNotFoundError:
        return not ((folder / ".zgroup").exists() or (folder / ".zmetadata").exists())
    except (ValueError, AttributeError):
        return True  # damaged: whoever opens it will say so


def _seen(path: Path) -> Seen:
    status = path.stat()
    return Seen(status.st_size, status.st_mtime_ns // 1000)


def refuse_changed(source: Source, options: Mapping[str, Any]) -> None:
    """ValueError if a file is not what it was when it was found. Zarr stores pass, which are many files.

    `options` are those of `storage_from_url`, for a remote one.
    """
    if source.is_store:
        return
    now = (
        server_of(source.address, options).look(source.address)
        if source.is_remote
        else _seen(Path(source.url))
    )
    if not now.is_same(source.seen):
        raise ValueError("it changed while it was ingested: run again when nobody writes to it")


def _looked(server: Server, whole: str, ending: str) -> Source:
    """Look up a remote file, or a Zarr store, which has no object with its own name."""
    with suppress(ObjectNotFoundError):
        return _of_url(whole + ending, server.look(whole + ending))
    found = []
    for name in _ZARR:
        with suppress(ObjectNotFoundError):
            found.append(server.look(f"{whole}/{name}{ending}"))
    if not found:
        raise InvalidInputError(f"there is no object {shown(whole + ending)!r}", ErrorKind.INVALID_PATH)
    return _of_url(whole + ending, _store_seen(found), is_store=True)


def _store_seen(documents: Iterable[Seen]) -> Seen:
    """Return the version of a Zarr store by its newest metadata document."""
    return Seen(0, max(each.modified_us for each in documents))


def _chosen(listed: Iterable[tuple[str, Seen]], pattern: str) -> list[tuple[str, Seen, bool]]:
    """Files that a pattern, or a folder, stands for, and Zarr stores in the place of their many files.

    Whether it is a store comes last.
    """
    files: dict[str, Seen] = {}
    stores: dict[str, Seen] = {}
    for path, seen in listed:
        folder, _, last = path.rpartition("/")
        if folder and last in _ZARR:
            stores[folder] = _store_seen([seen, *([stores[folder]] if folder in stores else [])])
        files[path] = seen
    outer = {path: seen for path, seen in stores.items() if not any(each in stores for each in _above(path))}
    files = {path: seen for path, seen in files.items() if not any(each in outer for each in _above(path))}
    found = {**files, **outer}
    return sorted(
        (path, seen, path in outer)
        for path, seen in found.items()
        if (_matches(path, pattern) if pattern else path in outer or _is_wanted(path))
    )


def _above(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _is_wanted(path: str) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.split("/"))
    return not hidden and path.lower().endswith(SUFFIXES)


def _matches(path: str, pattern: str) -> bool:
    """Match a path with a pattern, in which `*` does not match a slash and `**` does."""
    return re.fullmatch(_expression(pattern), path, re.DOTALL) is not None


@cache
def _expression(pattern: str) -> str:
    *folders, last = pattern.split("/")
    inside = "".join("(?:[^/]+/)*" if part == "**" else f"{_segment(part)}/" for part in folders)
    return inside + (".*" if last == "**" else _segment(last))


def _segment(part: str) -> str:
    kinds = re.split(r"(\*|\?|\[!?\]?[^]]*\])", part)
    signs = {"*": "[^/]*", "?": "[^/]"}
    return "".join(
        signs.get(kind) or (kind.replace("[!", "[^", 1) if number % 2 else re.escape(kind))
        for number, kind in enumerate(kinds)
    )


def _of_url(url: str, seen: Seen, *, is_store: bool = False) -> Source:
    plain = shown(url)
    return Source(plain, *seen, None if plain == url else url, is_store)


# Reading: an executor's part

_copies: OrderedDict[Source, str] = OrderedDict()


def local_path(source: Source, options: Mapping[str, Any] | None = None) -> str:
    """Where a source can be opened: its path, or that of a copy in this process's temporary folder.

    The copies of a few remote files are kept for the next region that is read from them.
    """
    if not source.is_remote:
        return source.url
    whole = replace(source, group="")
    known = _copies.get(whole)
    if known is None or not os.path.exists(known):
        known = copied(source.address, source.seen, lambda: server_of(source.address, options or {}))
        _copies[whole] = known
    _copies.move_to_end(whole)
    while len(_copies) > _KEPT_COPIES:
        drop_copy(_copies.popitem(last=False)[1])
    return known
