"""Small public values: versions, modes, kinds of chunks, status and feature flags."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class SpecVersion(IntEnum):
    """A version of the Icechunk format."""

    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> SpecVersion:
        """The version that new repositories get."""
        return SpecVersion.v2


class SessionMode(IntEnum):
    """What a session may do."""

    readonly = 0
    writable = 1
    rearrange = 2


class ChunkType(IntEnum):
    """Where a chunk is kept."""

    uninitialized = 0
    native = 1
    virtual = 2
    inline = 3


@dataclass(frozen=True, slots=True)
class FeatureFlag:
    """Something a repository allows or forbids."""

    id: int
    name: str
    default_enabled: bool
    setting: bool | None

    @property
    def enabled(self) -> bool:
        """Whether it is on, by setting or by default."""
        return self.default_enabled if self.setting is None else self.setting
