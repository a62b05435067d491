"""Public values that describe snapshots: their metadata, manifests and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from icefloe._internal import html
from icefloe._internal.printable import escape_control
from icefloe.ancestry_graph import AncestryGraph
from icefloe.config import display
from icefloe.config.display import Shown, Tree, qualify_name

__all__ = ["AncestryGraph", "Diff", "ManifestFileInfo", "SnapshotInfo"]

_CHUNKS, _MOVES = "Chunks updated", "Nodes moved/renamed"
_SHOWN_CHUNKS = 10


FOLDED: Final = "icefloe_commits"
"""The key in a snapshot's metadata that lists the commits combined into it."""


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotInfo(Shown):
    """A snapshot in the history of a repository."""

    id: str
    """The id of the snapshot."""
    parent_id: str | None
    """The id of the parent; None for the first snapshot."""
    written_at: datetime
    """The time of the commit."""
    message: str
    """The commit message."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The metadata of the commit."""

    def tree(self) -> Tree:
        # docstring inherited
        rows = (("id", self.id), ("parent_id", str(self.parent_id)), ("written_at", repr(self.written_at)))
        said = (("message", self.message), ("metadata", repr(self.metadata)))
        return Tree(qualify_name("snapshots", "SnapshotInfo"), rows + said)


@dataclass(frozen=True, slots=True, repr=False)
class ManifestFileInfo(Shown):
    """A manifest file that a snapshot uses."""

    id: str
    """The id of the manifest."""
    size_bytes: int
    """The size of the file."""
    num_chunk_refs: int
    """The number of chunk references in the manifest."""

    def tree(self) -> Tree:
        # docstring inherited
        rows = tuple((name, str(getattr(self, name))) for name in ("id", "size_bytes", "num_chunk_refs"))
        return Tree(qualify_name("snapshots", "ManifestFileInfo"), rows)


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """The changes between two snapshots, or in a session. Nodes are identified by their paths."""

    new_groups: set[str] = field(default_factory=set)
    """The groups that were created."""
    new_arrays: set[str] = field(default_factory=set)
    """The arrays that were created."""
    deleted_groups: set[str] = field(default_factory=set)
    """The groups that were deleted."""
    deleted_arrays: set[str] = field(default_factory=set)
    """The arrays that were deleted."""
    updated_groups: set[str] = field(default_factory=set)
    """The groups whose Zarr metadata changed."""
    updated_arrays: set[str] = field(default_factory=set)
    """The arrays whose Zarr metadata changed. For changed chunks, see `updated_chunks`."""
    updated_chunks: dict[str, Sequence[list[int]]] = field(default_factory=dict)
    """The coordinates of chunks that were written or deleted, by array path. The value is a list or, for more
    than a million chunks, a sequence that creates its items on demand.
    """
    moved_nodes: list[tuple[str, str]] = field(default_factory=list)
    """The old and new path of each moved node."""

    def is_empty(self) -> bool:
        """Return True if there are no changes.

        Returns
        -------
        bool
            True if there are no changes.
        """
        return self == Diff()

    def __repr__(self) -> str:
        return "".join(
            f"{title}:\n" + "".join(f"    {line}\n" for line in lines) + "\n" * (title != _CHUNKS)
            for title, lines in self._sections()
            if lines
        )

    def _sections(self) -> list[tuple[str, list[str]]]:
        chunks = [line for path in sorted(self.updated_chunks) for line in self._chunk_lines(path)]
        sections = [
            ("Groups created", sorted(self.new_groups)),
            ("Arrays created", sorted(self.new_arrays)),
            ("Group definitions updated", sorted(self.updated_groups)),
            ("Array definitions updated", sorted(self.updated_arrays)),
            ("Groups deleted", sorted(self.deleted_groups)),
            ("Arrays deleted", sorted(self.deleted_arrays)),
            (_CHUNKS, chunks),
            (_MOVES, [f"{source} -> {target}" for source, target in self.moved_nodes]),
        ]
        return [(title, [escape_control(line) for line in lines]) for title, lines in sections]

    def _chunk_lines(self, path: str) -> list[str]:
        chunks = self.updated_chunks[path]
        lines = [f"{path}:", *(f"    {chunk}" for chunk in chunks[:_SHOWN_CHUNKS])]
        return lines + [f"    ... {len(chunks) - _SHOWN_CHUNKS} more"] * (len(chunks) > _SHOWN_CHUNKS)

    def _html_sections(self) -> str:
        """Return the changes as collapsible HTML sections, in which chunks have one row per array.

        Returns
        -------
        str
        """
        parts = [
            html.render_section(
                title, len(lines), html.render_table(("path",), zip(lines, strict=True), len(lines))
            )
            for title, lines in self._sections()
            if title not in (_CHUNKS, _MOVES)
        ]
        moves = html.render_table(("from", "to"), self.moved_nodes, len(self.moved_nodes))
        rows = [
            (path, len(chunks), " ".join(map(str, chunks[:_SHOWN_CHUNKS])))
            for path, chunks in sorted(self.updated_chunks.items())
        ]
        chunks = html.render_table(("array", "chunks", "first chunks"), rows, len(rows))
        parts += [
            html.render_section(_CHUNKS, len(rows), chunks),
            html.render_section(_MOVES, len(self.moved_nodes), moves),
        ]
        return "".join(parts)

    def _repr_html_(self) -> str:
        note = "no changes" if self.is_empty() else ""
        return html.render_card(
            display.PACKAGE, qualify_name("snapshots", "Diff"), note, self._html_sections()
        )


def list_folded_commits(info: SnapshotInfo) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the message and metadata of each commit that was combined into a snapshot. There is at least
    one.
    """
    folded = info.metadata.get(FOLDED)
    if not isinstance(folded, list):
        return [(info.message, info.metadata)]
    known = [each for each in folded if isinstance(each, dict)]
    return [(str(each.get("message")), {**info.metadata, **(each.get("metadata") or {})}) for each in known]
