"""What is to be ingested: files and Zarr stores, found by path, pattern, folder, URL or list."""

from __future__ import annotations

import glob
import io
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from icefloe.concurrency import pool
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.remote import Seen, Server, copied, drop_copy, origin_of, quoted, server_of, shown
from icefloe.storage.access import without_query
from icefloe.storage.base import ObjectNotFoundError

SUFFIXES = (
    *(".nc", ".nc3", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".he5", ".hdf"),
    *(".grib", ".grib1", ".grib2", ".grb", ".grb1", ".grb2", ".tif", ".tiff", ".zarr"),
)
"""What is taken from a folder, and nothing else."""
_OTHERS = "; of a folder files with known endings are taken (.nc, .grib, .tif, .zarr, ...), by a pattern any"
_LISTS = (".txt", ".list", ".urls")
_ZARR = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")
_URL = re.compile(r"^[a-z][a-z0-9+]+://", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")
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
    signed_url: str | None = field(default=None, repr=False)
    """The URL with the signature that its server wants, which is shown and kept nowhere."""

    @property
    def is_remote(self) -> bool:
        """Whether it is read over the network."""
        return bool(_URL.match(self.url))

    @property
    def is_store(self) -> bool:
        """Whether it is a Zarr store rather than a file."""
        return self.size_bytes == 0 and (self.is_remote or os.path.isdir(self.url))

    @property
    def address(self) -> str:
        """Where it is read from."""
        return self.signed_url or self.url


def find_sources(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], options: Mapping[str, Any] | None = None
) -> list[Source]:
    """All sources that some names stand for, each once, sorted within a pattern, folder or list.

    A name is a path, a pattern with `*`, `?` or `**`, a folder (its files with a known ending, and those
    below it), a Zarr store, a URL (with a pattern, or ending in `/` for a folder), or a text file with a name
    per line. `options` are those of `storage_from_url` for URLs. A name that stands for nothing is an error.
    """
    names = [given] if isinstance(given, str | os.PathLike) else list(given)
    finder = _Finder(dict(options or {}))
    found: dict[str, Source] = {}
    for source in finder.all([os.fspath(name) for name in names]):
        found.setdefault(source.url, source)
    if not found:
        raise InvalidInputError("there is nothing to ingest: no source was given", ErrorKind.INVALID_PATH)
    return list(found.values())


class _Finder:
    """Finds sources. A server is opened once, however many of its files are named."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._servers: dict[str, Server] = {}

    def all(self, names: Iterable[str]) -> Iterator[Source]:
        """What names stand for, in their order. Files elsewhere are looked at side by side."""
        named = list(names)
        for name in named:
            if _URL.match(name) and not name.startswith("file://"):
                self._server(name)
        for sources in pool("finding", _LOOKING).map(lambda name: list(self.found(name)), named):
            yield from sources

    def found(self, name: str) -> Iterator[Source]:
        """What a name stands for."""
        if name.startswith("file://"):
            name = unquote(name.removeprefix("file://").removeprefix("localhost"))
        sources = list(self._remote(name) if _URL.match(name) else self._local(name))
        if not sources:
            what = f"no file to ingest there{_OTHERS if os.path.isdir(name) or name.endswith('/') else ''}"
            raise InvalidInputError(f"nothing matches {shown(name)!r}: {what}", ErrorKind.INVALID_PATH)
        yield from sources

    def _local(self, name: str) -> Iterator[Source]:
        path = Path(os.path.expanduser(name))  # which leaves a file `~$x` alone
        if not path.exists() and _MAGIC.search(name):
            for each in sorted(glob.glob(str(path), recursive=True)):
                if os.path.isfile(each) or _is_zarr(Path(each)):
                    yield _of_path(Path(each))
        elif path.is_dir():
            yield from [_of_path(path)] if _is_zarr(path) else _folder(path)
        elif path.suffix.lower() in _LISTS and path.is_file():
            lines = _lines(path.read_text(encoding="utf-8"))
            yield from self.all(
                line if _URL.match(line) or line.startswith("~") else str(path.parent / line)
                for line in lines
            )
        elif path.exists():
            yield _of_path(path)
        else:
            raise InvalidInputError(f"there is no file {name!r}", ErrorKind.INVALID_PATH)

    def _remote(self, name: str) -> Iterator[Source]:
        server = self._server(name)
        whole, query = without_query(name)
        ending = f"?{query}" if query else ""
        if whole.endswith("/") or _MAGIC.search(whole):
            fixed = _MAGIC.split(whole)[0].rpartition("/")[0]
            for path, seen in _chosen(server.below(f"{fixed}/"), whole[len(fixed) + 1 :]):
                yield _of_url(f"{fixed}/{quoted(path)}{ending}", seen)
        elif PurePosixPath(whole).suffix.lower() in _LISTS:
            folder = whole.rpartition("/")[0]
            text = io.BytesIO()
            server.copy(name, text)
            lines = _lines(text.getvalue().decode("utf-8"))
            yield from self.all(line if _URL.match(line) else f"{folder}/{line}{ending}" for line in lines)
        else:
            yield _of_url(name, _looked(server, whole, ending))

    def _server(self, name: str) -> Server:
        origin = origin_of(name)
        if origin not in self._servers:
            self._servers[origin] = server_of(name, self._options)
        return self._servers[origin]


def _lines(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _folder(folder: Path) -> Iterator[Source]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            continue
        if path.is_dir() and not _is_zarr(path):
            yield from _folder(path)
        elif path.suffix.lower() in SUFFIXES or path.is_dir():
            yield _of_path(path)


def _is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in _ZARR)


def _of_path(path: Path) -> Source:
    whole = path.absolute()
    if whole.is_dir():
        newest = max((whole / name).stat().st_mtime_ns for name in _ZARR if (whole / name).exists())
        return Source(str(whole), 0, newest // 1000)
    return Source(str(whole), *_seen(whole))


def _seen(path: Path) -> Seen:
    status = path.stat()
    return status.st_size, status.st_mtime_ns // 1000


def refuse_changed(source: Source, options: Mapping[str, Any]) -> None:
    """ValueError if a file is not what it was when it was found. Zarr stores pass, which are many files.

    `options` are those of `storage_from_url`, for a remote one.
    """
    if not source.size_bytes:
        return
    now = (
        server_of(source.address, options).look(source.address)
        if source.is_remote
        else _seen(Path(source.url))
    )
    if now != (source.size_bytes, source.modified_us):
        raise ValueError("it changed while it was ingested: run again when nobody writes to it")


def _looked(server: Server, whole: str, ending: str) -> Seen:
    """A file, or a Zarr store, which has no object of its own name."""
    try:
        return server.look(whole + ending)
    except ObjectNotFoundError:
        pass
    newest = None
    for name in _ZARR:
        try:
            newest = max(newest or 0, server.look(f"{whole}/{name}{ending}")[1])
        except ObjectNotFoundError:
            continue
    if newest is None:
        raise InvalidInputError(f"there is no object {shown(whole + ending)!r}", ErrorKind.INVALID_PATH)
    return 0, newest


def _chosen(listed: Iterable[tuple[str, Seen]], pattern: str) -> list[tuple[str, Seen]]:
    """Files that a pattern, or a folder, stands for, and Zarr stores in the place of their many files."""
    files: dict[str, Seen] = {}
    stores: dict[str, Seen] = {}
    for path, seen in listed:
        folder, _, last = path.rpartition("/")
        if folder and last in _ZARR:
            stores[folder] = (0, max(seen[1], stores.get(folder, (0, 0))[1]))
        files[path] = seen
    outer = {path: seen for path, seen in stores.items() if not any(each in stores for each in _above(path))}
    files = {path: seen for path, seen in files.items() if not any(each in outer for each in _above(path))}
    found = {**files, **outer}
    return sorted(
        (path, seen)
        for path, seen in found.items()
        if (_matches(path, pattern) if pattern else path in outer or _is_wanted(path))
    )


def _above(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _is_wanted(path: str) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.split("/"))
    return not hidden and PurePosixPath(path).suffix.lower() in SUFFIXES


def _matches(path: str, pattern: str) -> bool:
    """As on a disk, `*` ends at a slash and `**` does not."""
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


def _of_url(url: str, seen: Seen) -> Source:
    plain = shown(url)
    return Source(plain, *seen, None if plain == url else url)


# Reading: an executor's part

_copies: OrderedDict[Source, str] = OrderedDict()


def local_path(source: Source, options: Mapping[str, Any] | None = None) -> str:
    """Where a source can be opened: its path, or that of a copy in this process's temporary folder.

    The copies of a few remote files are kept for the next region that is read from them.
    """
    if not source.is_remote:
        return source.url
    known = _copies.get(source)
    if known is None or not os.path.exists(known):
        seen = (source.size_bytes, source.modified_us)
        known = copied(source.address, seen, lambda: server_of(source.address, options or {}))
        _copies[source] = known
    _copies.move_to_end(source)
    while len(_copies) > _KEPT_COPIES:
        drop_copy(_copies.popitem(last=False)[1])
    return known
