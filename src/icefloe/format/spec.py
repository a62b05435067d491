"""What each version of the specification can do, asked by capability and never by number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from icefloe.encoding import flexbuffers, msgpack
from icefloe.errors import ErrorKind, FormatError


@dataclass(frozen=True, slots=True)
class Spec:
    """A version of the on-disk format: files are read by their header's, written by the repository's."""

    number: int
    """The byte in a file's header; 0 for the formats before version 1, which have none."""
    writable: bool
    """Repositories of it can be changed; others are only read."""
    refs_in_repo_info: bool
    """Branches, tags and config live in the one repo info file."""
    moves: bool
    """Transaction logs can record moved nodes."""
    parent_in_snapshot: bool
    """A snapshot file names its parent."""
    counts_chunks: bool
    """A snapshot stores the number of chunks of each dimension, not the length of a chunk."""
    compressed_locations: bool
    """Manifests may hold virtual locations compressed with a dictionary."""
    extras: bool
    """Snapshots and transaction logs have room for opaque bytes of later versions."""
    dump_metadata: Callable[[Any], bytes]
    load_metadata: Callable[[bytes], Any]


V1: Final = Spec(
    number=1,
    writable=True,
    refs_in_repo_info=False,
    moves=False,
    parent_in_snapshot=True,
    counts_chunks=False,
    compressed_locations=False,
    extras=False,
    dump_metadata=msgpack.dumps,
    load_metadata=msgpack.loads,
)

V2: Final = Spec(
    number=2,
    writable=True,
    refs_in_repo_info=True,
    moves=True,
    parent_in_snapshot=False,
    counts_chunks=True,
    compressed_locations=True,
    extras=True,
    dump_metadata=flexbuffers.dumps,
    load_metadata=flexbuffers.loads,
)
"""Spec 2 and 2.1: the second adds an optional field that older readers skip."""

_BY_NUMBER: Final = {spec.number: spec for spec in (V1, V2)}


def spec_of(number: int, place: str) -> Spec:
    """The version behind a header's byte."""
    if number not in _BY_NUMBER:
        raise FormatError(
            f"{place}: written for version {number} of the Icechunk format, and this icefloe reads versions "
            f"{min(_BY_NUMBER)} to {max(_BY_NUMBER)}; upgrade icefloe",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    return _BY_NUMBER[number]
