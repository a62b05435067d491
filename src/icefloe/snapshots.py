"""Public values about snapshots: their place in history, their manifests, the differences between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def from_microseconds(since_1970: int) -> datetime:
    """A stored time."""
    return _EPOCH + timedelta(microseconds=since_1970)


def to_microseconds(time: datetime) -> int:
    """A time as it is stored; TypeError where it does not say its zone."""
    if time.tzinfo is None:
        raise TypeError("expected a datetime with a time zone")
    return (time - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot in the history of a repository."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ManifestFileInfo:
    """A manifest file of a snapshot."""

    id: str
    size_bytes: int
    num_chunk_refs: int


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed between two snapshots, or in a session."""

    new_groups: set[str] = field(default_factory=set)
    new_arrays: set[str] = field(default_factory=set)
    deleted_groups: set[str] = field(default_factory=set)
    deleted_arrays: set[str] = field(default_factory=set)
    updated_groups: set[str] = field(default_factory=set)
    updated_arrays: set[str] = field(default_factory=set)
    updated_chunks: dict[str, list[list[int]]] = field(default_factory=dict)
    moved_nodes: list[tuple[str, str]] = field(default_factory=list)

    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return self == Diff()

    def __str__(self) -> str:
        sections = [
            ("Groups created", sorted(self.new_groups)),
            ("Arrays created", sorted(self.new_arrays)),
            ("Group definitions updated", sorted(self.updated_groups)),
            ("Array definitions updated", sorted(self.updated_arrays)),
            (
                "Chunks updated",
                [line for item in sorted(self.updated_chunks.items()) for line in _chunk_lines(*item)],
            ),
            ("Groups deleted", sorted(self.deleted_groups)),
            ("Arrays deleted", sorted(self.deleted_arrays)),
            ("Nodes moved/renamed", [f"{source} -> {target}" for source, target in self.moved_nodes]),
        ]
        return "\n".join(
            f"{title}:\n" + "".join(f"    {line}\n" for line in lines) for title, lines in sections if lines
        )


_SHOWN = 10


def _chunk_lines(path: str, chunks: list[list[int]]) -> list[str]:
    lines = [f"{path}:", *(f"    {chunk}" for chunk in chunks[:_SHOWN])]
    if len(chunks) > _SHOWN:
        lines.append(f"    ... {len(chunks) - _SHOWN} more")
    return lines
