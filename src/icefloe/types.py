"""Small public types: format versions, session modes, chunk types, repository status and feature flags."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import IntEnum
from typing import Literal, TypeAlias

from icefloe._internal.redaction import redact
from icefloe._internal.times import require_time_zone
from icefloe.config import FeatureFlag
from icefloe.config.display import Shown, Tree, qualify_name

__all__ = [
    "ChunkType",
    "CommitMethod",
    "FeatureFlag",
    "RepoAvailability",
    "RepoStatus",
    "SessionMode",
    "SpecVersion",
    "VirtualChunkSpec",
]

CommitMethod: TypeAlias = Literal["new_commit", "amend"]
"""How `rewrite_manifests` adds its snapshot to the branch."""


class _Named(IntEnum):
    """An integer enum whose members are displayed by name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)


class SpecVersion(_Named):
    """A version of the Icechunk format."""

    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> SpecVersion:
        """Return the format version of new repositories.

        Returns
        -------
        SpecVersion
            The newest version.
        """
        return SpecVersion.v2

    def __repr__(self) -> str:
        mark = " (current)" if self is SpecVersion.current() else ""
        return f"{type(self).__name__}.{self.name}{mark}"

    __str__ = __repr__


class SessionMode(_Named):
    """The operations that a session allows."""

    readonly = 0
    writable = 1
    rearrange = 2


class ChunkType(_Named):
    """The kind of location where a chunk is stored."""

    uninitialized = 0
    """The chunk is not stored, and reads as the fill value."""
    native = 1
    virtual = 2
    inline = 3


class RepoAvailability(_Named):
    """The operations that a repository allows."""

    online = 0
    read_only = 1
    offline = 2
    """Nothing may be written. The official library has no such member and treats it as online."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class RepoStatus(Shown):
    """The status of a repository: its availability, when it was set, and the reason.

    Parameters
    ----------
    availability
        The operations that the repository allows.
    set_at
        When the status was set, with a time zone; by default now.
    limited_availability_reason
        The reason why the repository is not online.

    Raises
    ------
    TypeError
        If the time has no time zone.
    """

    availability: RepoAvailability
    set_at: datetime
    limited_availability_reason: str | None

    def __init__(
        self,
        availability: RepoAvailability,
        set_at: datetime | None = None,
        limited_availability_reason: str | None = None,
    ) -> None:
        if not isinstance(availability, RepoAvailability):
            raise TypeError(f"expected a RepoAvailability, not {type(availability).__name__}")
        object.__setattr__(self, "availability", availability)
        object.__setattr__(self, "set_at", datetime.now(UTC) if set_at is None else require_time_zone(set_at))
        object.__setattr__(self, "limited_availability_reason", limited_availability_reason)

    def tree(self) -> Tree:
        # docstring inherited
        name = self.availability.name.title().replace("_", "")
        rows = (("availability", name), ("set_at", repr(self.set_at)))
        reason = ("limited_availability_reason", str(self.limited_availability_reason))
        return Tree(qualify_name("repository", "RepoStatus"), (*rows, reason))


@dataclass(frozen=True, slots=True, repr=False)
class VirtualChunkSpec:
    """A virtual reference to set: a chunk's byte range in an external file, with a checksum of the file
    version.
    """

    index: list[int]
    """The coordinates of the chunk in the chunk grid."""
    location: str
    """The URL of the file, in which reserved characters are percent-encoded."""
    offset: int
    """The offset of the chunk's first byte in the file."""
    length: int
    """The number of bytes."""
    etag_checksum: str | None = None
    """Read the chunk only while the file has this etag."""
    last_updated_at_checksum: datetime | None = None
    """Read the chunk only while the file has not changed after this time."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in fields(self))
        return redact(f"{type(self).__qualname__}({shown})")

    def __post_init__(self) -> None:
        if type(self.index) is not list:
            object.__setattr__(self, "index", list(self.index))

    def __hash__(self) -> int:
        return hash((tuple(self.index), self.location, self.offset, self.length))
