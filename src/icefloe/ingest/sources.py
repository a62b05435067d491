"""What is to be ingested: files and Zarr stores, found by path, pattern, folder, URL or list."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError, StorageError
from icefloe.storage import storage_from_url
from icefloe.storage.base import StorageObjectInfo
from icefloe.times import to_microseconds

SUFFIXES = (
    *(".nc", ".nc3", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".he5", ".hdf"),
    *(".grib", ".grib1", ".grib2", ".grb", ".grb1", ".grb2", ".tif", ".tiff", ".zarr"),
)
"""What is taken from a folder, and nothing else."""
_LISTS = (".txt", ".list", ".urls")
_ZARR = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")
_URL = re.compile(r"^[a-z][a-z0-9+]+://", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")
_KEPT_COPIES = 4
_RANGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """A file or a Zarr store, and what tells its versions apart."""

    url: str
    """An absolute path, or a URL."""
    size_bytes: int
    """0 for a Zarr store, which is many files."""
    modified_us: int

    @property
    def is_remote(self) -> bool:
        """Whether it is read over the network."""
        return bool(_URL.match(self.url))


def find_sources(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], options: Mapping[str, Any] | None = None
) -> list[Source]:
    """All sources that some names stand for, each once, sorted within a pattern, folder or list.

    A name is a path, a pattern with `*`, `?` or `**`, a folder (its files with a known ending, and those
    below it), a Zarr store, a URL (with a pattern, or ending in `/` for a folder), or a text file with a name
    per line. `options` are those of `storage_from_url` for URLs. A name that stands for nothing is an error.
    """
    names = [given] if isinstance(given, str | os.PathLike) else list(given)
    found: dict[str, Source] = {}
    for name in names:
        for source in _found(os.fspath(name), dict(options or {})):
            found.setdefault(source.url, source)
    if not found:
        raise InvalidInputError("there is nothing to ingest: no source was given", ErrorKind.INVALID_PATH)
    return list(found.values())


def _found(name: str, options: Mapping[str, Any]) -> Iterator[Source]:
    if name.startswith("file://"):
        name = urlsplit(name).path
    sources = list(_remote(name, options) if _URL.match(name) else _local(name, options))
    if not sources:
        raise InvalidInputError(f"nothing matches {name!r}: no file to ingest there", ErrorKind.INVALID_PATH)
    yield from sources


def _local(name: str, options: Mapping[str, Any]) -> Iterator[Source]:
    path = Path(name).expanduser()
    if not path.exists() and _MAGIC.search(name):
        for each in sorted(glob.glob(str(path), recursive=True)):
            if os.path.isfile(each) or _is_zarr(Path(each)):
                yield _of_path(Path(each))
    elif path.is_dir():
        yield from [_of_path(path)] if _is_zarr(path) else _folder(path)
    elif path.suffix.lower() in _LISTS and path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        for line in (line.strip() for line in lines):
            if line and not line.startswith("#"):
                yield from _found(line if _URL.match(line) else str(path.parent / line), options)
    elif path.exists():
        yield _of_path(path)
    else:
        raise InvalidInputError(f"there is no file {name!r}", ErrorKind.INVALID_PATH)


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
    status = whole.stat()
    return Source(str(whole), status.st_size, status.st_mtime_ns // 1000)


def refuse_changed(source: Source) -> None:
    """ValueError if a file is not what it was when it was found. Remote ones and Zarr stores pass."""
    if source.is_remote or not source.size_bytes:
        return
    if _of_path(Path(source.url)) != source:
        raise ValueError("it changed while it was ingested: run again when nobody writes to it")


def _remote(name: str, options: Mapping[str, Any]) -> Iterator[Source]:
    whole, _, query = name.partition("?") if not _MAGIC.search(name.split("://")[1]) else (name, "", "")
    folder, _, last = whole.rpartition("/")
    if last and not _MAGIC.search(whole):
        storage = storage_from_url(folder + ("?" + query if query else ""), **options)
        try:
            info, _ = storage.head(last)
        except NotFoundError:
            raise InvalidInputError(f"there is no object {name!r}", ErrorKind.INVALID_PATH) from None
        yield _of_object(name, info)
        return
    fixed = _MAGIC.split(whole)[0].rpartition("/")[0]
    pattern = whole[len(fixed) + 1 :]
    for info in sorted(storage_from_url(fixed, **options).list_prefix(), key=lambda info: info.key):
        suits = _matches(info.key, pattern) if pattern else Path(info.key).suffix.lower() in SUFFIXES
        if suits:
            yield _of_object(f"{fixed}/{info.key}", info)


def _matches(key: str, pattern: str) -> bool:
    """As on a disk, `*` ends at a slash and `**` does not."""
    parts = (
        ".*" if part == "**" else fnmatch.translate(part).removesuffix(r"\Z").removesuffix(r"\z")
        for part in pattern.split("/")
    )
    expression = "/".join(parts).replace("(?s:.*", "(?s:[^/]*").replace(".*/", "(.*/)?")
    return re.fullmatch(expression, key) is not None


def _of_object(url: str, info: StorageObjectInfo) -> Source:
    return Source(url, info.size_bytes, to_microseconds(info.created_at))


# Reading: an executor's part

_copies: OrderedDict[str, str] = OrderedDict()


def local_path(source: Source, options: Mapping[str, Any] | None = None) -> str:
    """Where a source can be opened: its path, or that of a copy in this process's temporary folder.

    The copies of a few remote files are kept for the next region that is read from them.
    """
    if not source.is_remote:
        return source.url
    known = _copies.get(source.url)
    if known is None or not os.path.exists(known):
        known = _copies[source.url] = _fetched(source, dict(options or {}))
    _copies.move_to_end(source.url)
    while len(_copies) > _KEPT_COPIES:
        _, oldest = _copies.popitem(last=False)
        Path(oldest).unlink(missing_ok=True)
    return known


def _fetched(source: Source, options: Mapping[str, Any]) -> str:
    whole, _, query = source.url.partition("?")
    folder, _, last = whole.rpartition("/")
    storage = storage_from_url(folder + ("?" + query if query else ""), **options)
    target = Path(tempfile.mkdtemp(prefix="icefloe-source-")) / last
    try:
        with open(target, "wb") as file:
            for start in range(0, source.size_bytes, _RANGE_BYTES):
                stop = min(start + _RANGE_BYTES, source.size_bytes)
                file.write(storage.get_range(last, start, stop))
    except (StorageError, OSError):
        shutil.rmtree(target.parent, ignore_errors=True)
        raise
    return str(target)
