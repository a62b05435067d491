"""Verification levels, findings and reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from icefloe._internal.amounts import counted
from icefloe._internal.report import Report
from icefloe._internal.table import Table

VerifyLevel: TypeAlias = Literal["graph", "objects", "sources", "chunks"]


class Level(StrEnum):
    """The verification level, which decides what is checked.

    Each level includes the checks of all previous levels.
    """

    GRAPH = "graph"
    """Check that metadata files exist and conform to the specification."""
    OBJECTS = "objects"
    """Also check that chunk objects exist and are as long as references require."""
    SOURCES = "sources"
    """Also check that files of virtual references exist, are long enough, and have not changed."""
    CHUNKS = "chunks"
    """Also check that zarr can decode all chunks."""

    def includes(self, other: Level) -> bool:
        """Return True if this verification level is at least as thorough as another."""
        levels = list(Level)
        return levels.index(self) >= levels.index(other)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with one object, found by a verification."""

    kind: str
    """`missing`, `unreadable`, `disagrees`, `size`, `count`, `extents`, `grid` or `short`; for sources also
    `changed`, `unreachable` or `unauthorised`; for chunks `undecodable`; `checksum` if the bytes differ from
    the recorded checksum.
    """
    object: str
    """The path of the damaged object."""
    where: str
    """The object that refers to the damaged object."""
    message: str


@dataclass(frozen=True, slots=True)
class VerifyReport(Report):
    """The report of a verification: all findings, and how many objects were checked."""

    level: Level
    """The level of the verification."""
    findings: tuple[Finding, ...] = ()
    """The findings: problems with single objects."""
    snapshots: int = 0
    """Number of checked snapshots."""
    transaction_logs: int = 0
    """Number of checked transaction logs."""
    manifests: int = 0
    """Number of checked manifests."""
    references: int = 0
    """Number of checked chunk references."""
    chunk_objects: int = 0
    """Number of checked chunk objects."""
    sources: int = 0
    """Number of checked files of virtual references."""
    chunks: int = 0
    """Number of decoded chunks."""
    statistics: int = 0
    """Number of checked statistics files."""
    checksums: int = 0
    """Number of objects that were compared with a recorded checksum."""
    skipped: int = 0
    """Number of snapshots skipped because an earlier incremental verification found them intact."""

    @property
    def ok(self) -> bool:
        """True if the verification found no problems."""
        return not self.findings

    def _render_verdict(self) -> str:
        from icefloe._internal import html

        return html.mark(self.ok, "intact" if self.ok else counted(len(self.findings), "finding"))

    def table(self) -> Table:
        """Return the findings of the verification as a table: kind, object, where, message.

        Returns
        -------
        Table
        """
        names = ("kind", "object", "where", "message")
        return Table({name: [getattr(found, name) for found in self.findings] for name in names})


class Findings:
    """The findings of a verification in progress, and how many objects it has checked."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        """The numbers of objects, by field of `VerifyReport`."""

    @property
    def ok(self) -> bool:
        """True if a verification in progress has found no problems so far."""
        return not self.findings

    def report(self) -> VerifyReport:
        """Return the verification report with all findings so far."""
        return VerifyReport(self.level, tuple(self.findings), **self.counts)
