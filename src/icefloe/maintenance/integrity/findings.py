"""What a verification reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from icefloe._internal.table import Table


class Level(StrEnum):
    """How deep a verification looks; each level includes those before it."""

    GRAPH = "graph"
    """Every reference from refs to manifests resolves, and every file holds by the specification."""
    OBJECTS = "objects"
    """Every chunk object is there and long enough for the references into it."""
    SOURCES = "sources"
    """Every file that virtual references point into is there, long enough, and what it was."""
    CHUNKS = "chunks"
    """Every chunk is read and decoded as Zarr does it."""

    def includes(self, other: Level) -> bool:
        """Whether this level looks at what another does."""
        levels = list(Level)
        return levels.index(self) >= levels.index(other)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: str
    """`missing`, `unreadable`, `disagrees`, `size`, `count`, `extents`, `grid`, `short`; for sources also
    `changed`, `unreachable` and `unauthorised`; for chunks `undecodable`; `checksum` for other bytes than
    recorded
    """
    object: str
    """The file it is about."""
    where: str
    """Who refers to it."""
    message: str


@dataclass(slots=True)
class Report:
    """What a verification looked at, and what it found."""

    level: Level
    findings: list[Finding] = field(default_factory=list)
    snapshots: int = 0
    transaction_logs: int = 0
    manifests: int = 0
    references: int = 0
    chunk_objects: int = 0
    sources: int = 0
    chunks: int = 0
    checksums: int = 0
    """Objects whose bytes were compared with a recorded checksum."""
    skipped: int = 0
    """Snapshots that were verified before, by an incremental verification."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def table(self) -> Table:
        """What is wrong, one row each: kind, object, where, message."""
        names = ("kind", "object", "where", "message")
        return Table({name: [getattr(found, name) for found in self.findings] for name in names})
