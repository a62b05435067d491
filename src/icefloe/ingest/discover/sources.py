"""Find the files and Zarr stores to ingest: by path, pattern, directory, URL or list."""

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
from icefloe.ingest.discover.remote import Server, drop_copy, make_copy, open_server
from icefloe.ingest.discover.urls import get_origin, quote_key, redact
from icefloe.ingest.discover.web_server import FileVersion
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
"""The suffixes of files to ingest from a directory."""
_SUFFIX_ADVICE = (
    "; only files with known suffixes are taken from a folder (.nc, .grib, .tif, .zarr, ...): use a pattern"
)
_LISTS = (".txt", ".list", ".urls")
REPOSITORY_FILES = ("repo", "refs/branch.main/ref.json")
"""Files that every Icechunk repository contains, for versions 2 and 1 of the format."""
_ZARR = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")
_URL = re.compile(r"^[a-z][a-z0-9+]+://", re.IGNORECASE)
_FILE_URL = re.compile(r"^file://(localhost)?(?=/)", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_KEPT_COPIES = 4
_CONCURRENT_LOOKUPS = 16
"""The number of names to look up concurrently."""


@dataclass(frozen=True, slots=True)
class IngestSource:
    """A source to ingest: one version of a file, a Zarr store or a repository."""

    url: str
    """An absolute path, or a URL without secrets. It may be printed and stored."""
    size_bytes: int
    """The file size. It is 0 for a Zarr store, which consists of many files, and -1 if a web server does not
    report it.
    """
    modified_us: int
    etag: str = ""
    """The etag that the server reports."""
    signed_url: str | None = field(default=None, repr=False)
    """The URL including its signature or password, which must never be printed or stored; None without
    secrets.
    """
    is_store: bool = False
    """True for a Zarr store, False for a file."""
    group: str = ""
    """The group to read; if empty, the group in `ReadOptions` or else the root."""

    @property
    def version(self) -> FileVersion:
        """The version of a source: its etag, size and modification time."""
        return FileVersion(self.size_bytes, self.modified_us, self.etag)

    @property
    def is_remote(self) -> bool:
        """True if the source is read over the network."""
        return bool(_URL.match(self.url))

    @property
    def is_repository(self) -> bool:
        """True if the source is a version of an Icechunk repository. `etag` is then the snapshot id."""
        return self.is_store and bool(self.etag)

    @property
    def repository_address(self) -> str:
        """The location of the repository without the version, if the source is a repository."""
        if not self.is_remote and os.path.isdir(self.url):
            return self.url
        folder, _, name = self.address.rpartition("/")
        return f"{folder}/{name.partition('@')[0]}"

    @property
    def address(self) -> str:
        """The path or URL to read the source from, including any signature or password."""
        return self.signed_url or self.url


@dataclass(frozen=True, slots=True)
class UnmatchedName:
    """A name in the source list that matches no file, with the reason."""

    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class Discovered:
    """The sources that an ingest found, and the names that match no source."""

    sources: tuple[IngestSource, ...]
    unfound: tuple[UnmatchedName, ...]


def discover(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    options: Mapping[str, Any] | None = None,
    *,
    skip: bool = False,
) -> Discovered:
    """Find the sources to ingest, given paths, patterns, directories, URLs or lists.

    With `skip`, names without a source are returned instead of raising an error, unless no name has a source.
    """
    names = [given] if isinstance(given, str | os.PathLike) else list(given)
    found: dict[str, IngestSource] = {}
    unfound: dict[str, UnmatchedName] = {}
    for each in _Finder(dict(options or {}), skip).find_all([os.fspath(name) for name in names]):
        if isinstance(each, IngestSource):
            found.setdefault(each.url, each)
        else:
            unfound.setdefault(each.url, each)
    if not found:
        reasons = "; ".join(each.reason for each in unfound.values()) or "no source was given"
        raise InvalidInputError(f"nothing to ingest: {reasons}", ErrorKind.INVALID_PATH)
    return Discovered(tuple(found.values()), tuple(unfound.values()))


def find_sources(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], options: Mapping[str, Any] | None = None
) -> list[IngestSource]:
    """Find the sources that names refer to, without duplicates. The files of a pattern, directory or list are
    sorted.

    A name is a path, a pattern with `*`, `?`, `**` or `{a,b}`, a directory (which selects its files with a
    known suffix, at any depth), a Zarr store, a URL (which may be a pattern, or end with `/` for a
    directory), or a text file with one name per line. `options` are the keyword arguments of
    `storage_from_url` for URLs. A name without a source raises an error.
    """
    return list(discover(given, options).sources)


class _Finder:
    """Finds sources by name. Each server is opened once and reused for all of its files."""

    def __init__(self, options: Mapping[str, Any], skip: bool) -> None:
        self._options = options
        self._skip = skip
        self._servers: dict[str, Server] = {}

    def find_all(self, names: Iterable[str]) -> Iterator[IngestSource | UnmatchedName]:
        """Find the sources of all names, in order. Remote files are looked up concurrently."""
        named = [each for name in names for each in _expand_braces(name)]
        for name in named:
            if _URL.match(name) and not _FILE_URL.match(name):
                self._get_server(name)
        for sources in get_pool("finding", _CONCURRENT_LOOKUPS).map(self._try_to_find, named):
            yield from sources

    def _try_to_find(self, name: str) -> list[IngestSource | UnmatchedName]:
        try:
            return list(self._find(name))
        except (IcechunkError, OSError) as error:
            if not self._skip:
                raise
            return [UnmatchedName(redact(name), getattr(error, "message", None) or str(error))]

    def _find(self, name: str) -> Iterator[IngestSource | UnmatchedName]:
        """Yield the sources that match one name."""
        if not name:  # for example an unset variable in a script
            raise InvalidInputError(
                "a source has an empty name; use . for the current folder", ErrorKind.INVALID_PATH
            )
        if _FILE_URL.match(name):
            name = unquote(_FILE_URL.sub("", name))
        sources = list(self._find_remote(name) if _URL.match(name) else self._find_local(name))
        if not sources:
            is_folder = os.path.isdir(name) or name.endswith("/")
            what = f"no file to ingest there{_SUFFIX_ADVICE if is_folder else ''}"
            raise InvalidInputError(f"nothing matches {redact(name)!r}: {what}", ErrorKind.INVALID_PATH)
        yield from sources

    def _find_local(self, name: str) -> Iterator[IngestSource | UnmatchedName]:
        path = Path(os.path.expanduser(name))  # a local file named `~$x` is not expanded
        if (repository := _find_repository(path)) is not None:
            yield repository
            return
        if not path.exists() and _MAGIC.search(name):
            for each in sorted(glob.glob(str(path), recursive=True)):
                if os.path.isfile(each) or _is_zarr(Path(each)):
                    yield make_local_source(Path(each))
        elif path.is_dir():
            yield from [make_local_source(path)] if _is_zarr(path) else _find_in_folder(path)
        elif path.suffix.lower() in _LISTS and path.is_file():
            lines = _read_lines(path.read_bytes(), name)
            yield from self.find_all(_resolve_line(str(path.parent), line) for line in lines)
        elif path.exists():
            yield make_local_source(path)
        else:
            raise InvalidInputError(f"no such file: {name!r}", ErrorKind.INVALID_PATH)

    def _find_remote(self, name: str) -> Iterator[IngestSource | UnmatchedName]:
        server = self._get_server(name)
        whole, query = split_query(name)
        ending = f"?{query}" if query else ""
        if whole.endswith("/") or _MAGIC.search(whole):
            fixed = _MAGIC.split(whole)[0].rpartition("/")[0]
            for path, seen, is_store in _select_listed(
                server.list_below(f"{fixed}/"), whole[len(fixed) + 1 :]
            ):
                yield _make_remote_source(f"{fixed}/{quote_key(path)}{ending}", seen, is_store=is_store)
        elif PurePosixPath(whole).suffix.lower() in _LISTS:
            folder = whole.rpartition("/")[0]
            text = io.BytesIO()
            server.copy(name, text)
            lines = _read_lines(text.getvalue(), redact(name))
            yield from self.find_all(
                line if _URL.match(line) else f"{folder}/{line}{ending}" for line in lines
            )
        else:
            yield self._find_remote_repository(server, whole, ending) or look_up_source(server, whole, ending)

    def _find_remote_repository(self, server: Server, whole: str, ending: str) -> IngestSource | None:
        """Find a remote Icechunk repository by its files. A suffix `@VERSION` selects a version. Return None
        if there is none.
        """
        folder, _, name = whole.rpartition("/")
        name, _, version = name.partition("@")
        location = f"{folder}/{name}"
        for file in REPOSITORY_FILES:
            with suppress(ObjectNotFoundError):
                server.look_up(f"{location}/{file}{ending}")
                break
        else:
            return None
        repo = Repository.open(storage_from_url(location + ending, **self._options))
        return _make_repository_source(repo, version, whole)

    def _get_server(self, name: str) -> Server:
        origin = get_origin(name)
        if origin not in self._servers:
            self._servers[origin] = open_server(name, self._options)
        return self._servers[origin]


def _read_lines(data: bytes, name: str) -> list[str]:
    """Return the names in a text file, one per line."""
    try:
        lines = [line.strip() for line in data.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{name} is not a list of files: byte {error.start} is not UTF-8 text", ErrorKind.INVALID_PATH
        ) from None
    return [line for line in lines if line and not line.startswith("#")]


def _resolve_line(folder: str, line: str) -> str:
    """Resolve a relative name in a list file against the directory of that file."""
    return line if _URL.match(line) or line.startswith("~") else os.path.join(folder, line)


def _expand_braces(name: str) -> list[str]:
    """Expand `{a,b}` like a shell, unless a file with this literal name exists."""
    match = _BRACES.search(name)
    if match is None or os.path.exists(name):
        return [name]
    before, after = name[: match.start()], name[match.end() :]
    return [each for choice in match[1].split(",") for each in _expand_braces(f"{before}{choice}{after}")]


def _find_in_folder(folder: Path) -> Iterator[IngestSource]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            continue
        if path.is_dir() and not _is_zarr(path):
            yield from _find_in_folder(path)
        elif path.name.lower().endswith(SUFFIXES) or path.is_dir():
            yield make_local_source(path)


def _is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in _ZARR)


def _find_repository(path: Path) -> IngestSource | None:
    """Find an Icechunk repository at a local path. A suffix `@VERSION` selects a version. Return None if
    there is none.
    """
    folder, version = path, ""
    if not path.exists():
        name, _, version = str(path).rpartition("@")
        folder = Path(name or path)
    if not is_repository(str(folder)):
        return None
    whole = folder.absolute()
    url = f"{whole}@{version}" if version else str(whole)
    return _make_repository_source(Repository.open(storage_from_url(str(whole))), version, url)


def _make_repository_source(repo: Repository, version: str, url: str) -> IngestSource:
    snapshot = repo.lookup_snapshot(resolve_version(repo, version or DEFAULT_VERSION))
    written_us = int(snapshot.written_at.timestamp() * 1_000_000)
    plain = redact(url)
    return IngestSource(plain, 0, written_us, snapshot.id, None if plain == url else url, is_store=True)


def make_local_source(path: Path) -> IngestSource:
    """Create the source for a local file or Zarr store."""
    whole = path.absolute()
    if ".." in whole.parts:
        whole = whole.resolve()
    if whole.is_dir():
        return IngestSource(str(whole), 0, max(_list_metadata_times(whole)) // 1000, is_store=True)
    return IngestSource(str(whole), *_look_up_path(whole))


def _list_metadata_times(folder: Path) -> Iterator[int]:
    """Yield the modification times of all metadata documents in a Zarr store."""
    for name in (*_ZARR, ".zattrs"):
        with suppress(FileNotFoundError):
            yield (folder / name).stat().st_mtime_ns
    if not _is_array(folder):
        for entry in os.scandir(folder):
            if entry.is_dir():
                yield from _list_metadata_times(Path(entry.path))


def _is_array(folder: Path) -> bool:
    """Return True if a directory in a Zarr store contains an array, or no metadata at all."""
    try:
        return bool(json.loads((folder / "zarr.json").read_bytes()).get("node_type") != "group")
    except FileNotFoundError:
        return not ((folder / ".zgroup").exists() or (folder / ".zmetadata").exists())
    except (ValueError, AttributeError):
        return True  # a damaged array is reported when it is opened


def _look_up_path(path: Path) -> FileVersion:
    status = path.stat()
    return FileVersion(status.st_size, status.st_mtime_ns // 1000)


def check_unchanged(source: IngestSource, options: Mapping[str, Any]) -> None:
    """Raise ValueError if a source file has changed since it was discovered.

    Zarr stores are not checked, because they consist of many files. `options` are the keyword arguments of
    `storage_from_url`.
    """
    if source.is_store:
        return
    now = (
        open_server(source.address, options).look_up(source.address)
        if source.is_remote
        else _look_up_path(Path(source.url))
    )
    if not now.is_same(source.version):
        raise ValueError(
            "the file changed while it was ingested; run the ingest again when it is no longer being written"
        )


def look_up_source(server: Server, whole: str, ending: str) -> IngestSource:
    """Look up a remote file. If there is no object with exactly this name, look for a Zarr store."""
    with suppress(ObjectNotFoundError):
        return _make_remote_source(whole + ending, server.look_up(whole + ending))
    found = []
    for name in _ZARR:
        with suppress(ObjectNotFoundError):
            found.append(server.look_up(f"{whole}/{name}{ending}"))
    if not found:
        raise InvalidInputError(f"no such object: {redact(whole + ending)!r}", ErrorKind.INVALID_PATH)
    return _make_remote_source(whole + ending, _combine_versions(found), is_store=True)


def _combine_versions(documents: Iterable[FileVersion]) -> FileVersion:
    """Return the version of a Zarr store: that of its most recently modified metadata document."""
    return FileVersion(0, max(each.modified_us for each in documents))


def _select_listed(
    listed: Iterable[tuple[str, FileVersion]], pattern: str
) -> list[tuple[str, FileVersion, bool]]:
    """Select the listed files that match a pattern, or all data files without a pattern.

    A Zarr store replaces the files that it contains. The third item of each result is True for a store.
    """
    files: dict[str, FileVersion] = {}
    stores: dict[str, FileVersion] = {}
    for path, seen in listed:
        folder, _, last = path.rpartition("/")
        if folder and last in _ZARR:
            stores[folder] = _combine_versions([seen, *([stores[folder]] if folder in stores else [])])
        files[path] = seen
    outer = {
        path: seen for path, seen in stores.items() if not any(each in stores for each in _list_parents(path))
    }
    files = {
        path: seen for path, seen in files.items() if not any(each in outer for each in _list_parents(path))
    }
    found = {**files, **outer}
    return sorted(
        (path, seen, path in outer)
        for path, seen in found.items()
        if (_is_match(path, pattern) if pattern else path in outer or _is_wanted(path))
    )


def _list_parents(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _is_wanted(path: str) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.split("/"))
    return not hidden and path.lower().endswith(SUFFIXES)


def _is_match(path: str, pattern: str) -> bool:
    """Return True if a path matches a pattern. `*` does not match slashes, but `**` does."""
    return re.fullmatch(_translate_pattern(pattern), path, re.DOTALL) is not None


@cache
def _translate_pattern(pattern: str) -> str:
    *folders, last = pattern.split("/")
    inside = "".join("(?:[^/]+/)*" if part == "**" else f"{_translate_segment(part)}/" for part in folders)
    return inside + (".*" if last == "**" else _translate_segment(last))


def _translate_segment(part: str) -> str:
    kinds = re.split(r"(\*|\?|\[!?\]?[^]]*\])", part)
    signs = {"*": "[^/]*", "?": "[^/]"}
    return "".join(
        signs.get(kind) or (kind.replace("[!", "[^", 1) if number % 2 else re.escape(kind))
        for number, kind in enumerate(kinds)
    )


def _make_remote_source(url: str, seen: FileVersion, *, is_store: bool = False) -> IngestSource:
    plain = redact(url)
    return IngestSource(plain, *seen, None if plain == url else url, is_store)


# Reading on executors

_copies: OrderedDict[IngestSource, str] = OrderedDict()


def get_local_path(source: IngestSource, options: Mapping[str, Any] | None = None) -> str:
    """Return a local path for a source. A remote file is first downloaded to a temporary directory.

    The downloads of the last few files are kept, because other regions of them may be read next.
    """
    if not source.is_remote:
        return source.url
    whole = replace(source, group="")
    known = _copies.get(whole)
    if known is None or not os.path.exists(known):
        known = make_copy(source.address, source.version, lambda: open_server(source.address, options or {}))
        _copies[whole] = known
    _copies.move_to_end(whole)
    while len(_copies) > _KEPT_COPIES:
        drop_copy(_copies.popitem(last=False)[1])
    return known
