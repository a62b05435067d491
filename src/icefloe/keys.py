"""Zarr store keys: the metadata document of a node, or one chunk of an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.paths import ROOT, normalize

METADATA_NAME: Final = "zarr.json"
LEGACY_NAMES: Final = frozenset({".zgroup", ".zarray", ".zattrs", ".zmetadata"})
CHUNK_NAME: Final = "c"
_U32_MAX: Final = 0xFFFFFFFF


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


def parse_key(key: str) -> Key:
    """What a store key names; InvalidInputError where it names nothing a repository can hold."""
    folder, _, name = key.rpartition("/")
    if name == METADATA_NAME:
        return MetadataKey(_path(folder, key))
    if name in LEGACY_NAMES:
        return LegacyKey(key)
    parts = key.split("/")
    at = len(parts) - 1
    while at >= 0 and _is_number(parts[at]):
        at -= 1
    if at < 0 or parts[at] != CHUNK_NAME:
        raise InvalidInputError(
            f"invalid key {key!r}: expected NODE/zarr.json or ARRAY/c/0/1", kind=ErrorKind.INVALID_KEY
        )
    coords = tuple(map(int, parts[at + 1 :]))
    if any(number > _U32_MAX for number in coords):
        raise InvalidInputError(
            f"invalid key {key!r}: a chunk index over 2**32 - 1", kind=ErrorKind.INVALID_KEY
        )
    return ChunkKey(_path("/".join(parts[:at]), key), coords)


def metadata_key(path: str) -> str:
    """The key of a node's zarr.json."""
    return METADATA_NAME if path == ROOT else f"{path[1:]}/{METADATA_NAME}"


def chunk_prefix(path: str) -> str:
    """What the keys of all chunks of an array begin with, up to the first slash before a number."""
    return CHUNK_NAME if path == ROOT else f"{path[1:]}/{CHUNK_NAME}"


def node_path(prefix: str) -> str:
    """The node path behind a key prefix such as `a/b/`; InvalidInputError where it is none."""
    try:
        return normalize("/" + prefix.strip("/"))
    except InvalidInputError as error:
        raise InvalidInputError(
            f"bad key prefix {prefix!r}: {error.message}", kind=ErrorKind.BAD_KEY_PREFIX
        ) from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _path(folder: str, key: str) -> str:
    try:
        return normalize("/" + folder)
    except InvalidInputError as error:
        raise InvalidInputError(f"invalid key {key!r}: {error.message}", kind=ErrorKind.INVALID_KEY) from None
