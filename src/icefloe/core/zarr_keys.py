"""Parse Zarr store keys, which name the metadata document of a node or a chunk of an array."""

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
    """The store key of a node's zarr.json."""

    path: str


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """The store key of one chunk of an array."""

    path: str
    coords: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LegacyKey:
    """The store key of a Zarr version 2 metadata document, which never exists in repositories."""

    key: str


Key: TypeAlias = MetadataKey | ChunkKey | LegacyKey


@lru_cache(maxsize=4096)
def parse_key(key: str) -> Key:
    """Parse a key of a Zarr store; raise InvalidInputError if a repository cannot contain it.

    A chunk key ends with a segment that is exactly `c`, followed by numbers. Unlike in the official package,
    `abc/0/0` is not a key of the array `ab`.
    """
    folder, _, name = key.rpartition("/")
    if name == METADATA_NAME:
        return MetadataKey(_make_path(folder, key))
    chunk = _CHUNK.fullmatch(key)
    if chunk is not None:
        coords = tuple(map(int, chunk["coords"].split("/")[1:]))
        if coords and max(coords) > U32_MAX:
            raise InvalidInputError(
                f"invalid key {key!r}: a chunk index exceeds 2**32 - 1", kind=ErrorKind.INVALID_KEY
            )
        return ChunkKey(_make_path(chunk["folder"] or "", key), coords)
    if name in LEGACY_NAMES:
        return LegacyKey(key)
    raise InvalidInputError(
        f"invalid key {key!r}: expected NODE/zarr.json or ARRAY/c/0/1; arrays need the default chunk key"
        " encoding with the separator '/'",
        kind=ErrorKind.INVALID_KEY,
    )


def list_metadata_keys(paths: Iterable[str]) -> list[str]:
    """Return the store keys of the zarr.json documents of some nodes."""
    return [METADATA_NAME if path == ROOT else f"{path[1:]}/{METADATA_NAME}" for path in paths]


def make_chunk_prefix(path: str) -> str:
    """Return the common prefix of an array's chunk keys, without the slash before the coordinates."""
    return CHUNK_NAME if path == ROOT else f"{path[1:]}/{CHUNK_NAME}"


def parse_node_path(prefix: str) -> str:
    """Convert a store key prefix such as `a/b/` to a node path; raise InvalidInputError if it is invalid."""
    try:
        return _normalize(prefix.strip("/"))
    except InvalidInputError as error:
        raise InvalidInputError(
            f"bad key prefix {prefix!r}: {error.message}", kind=ErrorKind.BAD_KEY_PREFIX
        ) from None


def parse_leading_coords(path: str, array: str) -> tuple[int, ...] | None:
    """Parse the leading chunk coordinates from a key prefix inside an array; None if it is not a prefix of
    chunk keys.

    In the array `/a`, the prefix `/a/c/1` selects the chunks `(1, ...)`, and `/a/c` selects all chunks.
    """
    names = path[1:].split("/")[0 if array == ROOT else array.count("/") :]
    numbers = names[1:]
    if names[:1] != [CHUNK_NAME] or not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    coords = tuple(map(int, numbers))
    # Listings have no leading zeros, so a folder with leading zeros is empty.
    canonical = [str(number) for number in coords] == numbers
    return coords if canonical and all(number <= U32_MAX for number in coords) else None


def _make_path(folder: str, key: str) -> str:
    try:
        return _normalize(folder)
    except InvalidInputError as error:
        raise InvalidInputError(f"invalid key {key!r}: {error.message}", kind=ErrorKind.INVALID_KEY) from None


@lru_cache(maxsize=4096)
def _normalize(folder: str) -> str:
    return normalize("/" + folder)
