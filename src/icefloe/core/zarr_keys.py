"""Zarr store keys: the metadata document of a node, or one chunk of an array."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from icefloe._internal.paths import ROOT, normalize
from icefloe.errors import ErrorKind, InvalidInputError

METADATA_NAME: Final = "zarr.json"
LEGACY_NAMES: Final = frozenset({".zgroup", ".zarray", ".zattrs", ".zmetadata"})
CHUNK_NAME: Final = "c"
U32_MAX: Final = 0xFFFFFFFF

_CHUNK: Final = re.compile(r"(?:(?P<folder>.*)/)?c(?P<coords>(?:/[0-9]+)*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MetadataKey:
    """The zarr.json of the node at a path."""

    path: str


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """One chunk of the array at a path."""

    path: str
    coords: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LegacyKey:
    """A metadata document of Zarr version 2, which no repository holds."""

    key: str


Key: TypeAlias = MetadataKey | ChunkKey | LegacyKey


@lru_cache(maxsize=4096)
def parse_key(key: str) -> Key:
    """Parse a store key; raise InvalidInputError for a key that no repository can hold.

    A chunk key ends in a segment that is exactly `c` and the numbers after it: `abc/0/0` is no key of the
    array `ab`, as the official package reads it.
    """
    folder, _, name = key.rpartition("/")
    if name == METADATA_NAME:
        return MetadataKey(_path(folder, key))
    chunk = _CHUNK.fullmatch(key)
    if chunk is not None:
        coords = tuple(map(int, chunk["coords"].split("/")[1:]))
        if coords and max(coords) > U32_MAX:
            raise InvalidInputError(
                f"invalid key {key!r}: a chunk index over 2**32 - 1", kind=ErrorKind.INVALID_KEY
            )
        return ChunkKey(_path(chunk["folder"] or "", key), coords)
    if name in LEGACY_NAMES:
        return LegacyKey(key)
    raise InvalidInputError(
        f"invalid key {key!r}: a repository holds NODE/zarr.json and ARRAY/c/0/1, nothing else; arrays need"
        " the default chunk key encoding with the separator '/'",
        kind=ErrorKind.INVALID_KEY,
    )


def metadata_keys(paths: Iterable[str]) -> list[str]:
    """The keys of the zarr.json of some nodes."""
    return [METADATA_NAME if path == ROOT else f"{path[1:]}/{METADATA_NAME}" for path in paths]


def chunk_prefix(path: str) -> str:
    """What the keys of all chunks of an array begin with, up to the first slash before a number."""
    return CHUNK_NAME if path == ROOT else f"{path[1:]}/{CHUNK_NAME}"


def node_path(prefix: str) -> str:
    """The node path behind a key prefix such as `a/b/`; InvalidInputError where it is none."""
    try:
        return _normal(prefix.strip("/"))
    except InvalidInputError as error:
        raise InvalidInputError(
            f"bad key prefix {prefix!r}: {error.message}", kind=ErrorKind.BAD_KEY_PREFIX
        ) from None


def coords_within(path: str, array: str) -> tuple[int, ...] | None:
    """The first coordinates of the chunks that a path inside an array leads to; None where it leads to none.

    `/a/c/1` inside the array `/a` leads to the chunks `(1, ...)`, `/a/c` to all of them.
    """
    names = path[1:].split("/")[0 if array == ROOT else array.count("/") :]
    numbers = names[1:]
    if names[:1] != [CHUNK_NAME] or not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    coords = tuple(map(int, numbers))
    # Listings know no leading zeros, so a folder with some in its name holds nothing.
    canonical = [str(number) for number in coords] == numbers
    return coords if canonical and all(number <= U32_MAX for number in coords) else None


def _path(folder: str, key: str) -> str:
    try:
        return _normal(folder)
    except InvalidInputError as error:
        raise InvalidInputError(f"invalid key {key!r}: {error.message}", kind=ErrorKind.INVALID_KEY) from None


@lru_cache(maxsize=4096)
def _normal(folder: str) -> str:
    return normalize("/" + folder)
