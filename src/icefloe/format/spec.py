"""The capabilities of each version of the specification. Code checks capabilities instead of version
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from icefloe.encoding import flexbuffers, msgpack
from icefloe.errors import ErrorKind, FormatError


@dataclass(frozen=True, slots=True)
class Spec:
    """The capabilities of one version of the specification, which code checks instead of version numbers."""

    number: int
    """The version byte in file headers; 0 for the formats before version 1, which do not have one."""
    writable: bool
    """True if repositories can be changed, False if they can only be read."""
    refs_in_repo_info: bool
    """True if branches, tags and configuration are in the repo info file."""
    moves: bool
    """True if transaction logs can record moved nodes."""
    parent_in_snapshot: bool
    """True if a snapshot file contains the id of its parent."""
    counts_chunks: bool
    """True if a snapshot stores the number of chunks along each dimension instead of the chunk length."""
    compressed_locations: bool
    """True if manifests may contain dictionary-compressed virtual locations."""
    extras: bool
    """True if snapshots and transaction logs may contain opaque bytes of later versions."""
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
"""Versions 2 and 2.1. Version 2.1 only adds an optional field, which older readers skip."""

_BY_NUMBER: Final = {spec.number: spec for spec in (V1, V2)}


def get_spec(number: int, place: str) -> Spec:
    """Return the capabilities of a specification version, given its byte in a file header."""
    if number not in _BY_NUMBER:
        raise FormatError(
            f"{place}: version {number} of the Icechunk format is not supported, only "
            f"{min(_BY_NUMBER)} to {max(_BY_NUMBER)}; upgrade icefloe",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    return _BY_NUMBER[number]
