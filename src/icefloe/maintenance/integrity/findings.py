"""What a verification finds and reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from icefloe._internal.report import Report
from icefloe._internal.table import Table

VerifyLevel: TypeAlias = Literal["graph", "objects", "sources", "chunks"]


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


@dataclass(frozen=True, slots=True)
class VerifyReport(Report):
    """What a verification looked at, and what it found."""

    level: Level
    findings: tuple[Finding, ...] = ()
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
        """Return one row per finding: kind, object, where, message."""
        names = ("kind", "object", "where", "message")
        return Table({name: [getattr(found, name) for found in self.findings] for name in names})


class Findings:
    """The findings of a verification under way, and the numbers of objects that it looked at."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        """By the names of fields of `VerifyReport`."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong so far."""
        return not self.findings

    def report(self) -> VerifyReport:
        """Return what was found."""
        return VerifyReport(self.level, tuple(self.findings), **self.counts)
