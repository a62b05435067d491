"""The report of a run, or dry run, of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe._internal.report import Report


@dataclass(frozen=True, slots=True)
class DerivedArray(Report):
    """The number of chunks of one output that were computed, moved and kept."""

    name: str
    """Name in the recipe."""
    path: str
    """Path of the array."""
    recomputed: int
    """Chunks that were computed."""
    moved: int
    """Chunks whose content existed at other coordinates and was moved by reference."""
    kept: int
    """Chunks that were kept."""
    partials: int = 0
    """Partial aggregates that were computed."""
    other_versions: int = 0
    """Kept chunks that other versions of icefloe, numpy or xarray computed."""
    reason: str | None = None
    """The reason why all chunks were computed again; empty if some were kept."""


@dataclass(frozen=True, slots=True)
class DeriveReport(Report):
    """The result of `derive_arrays`, or of its dry run."""

    outputs: tuple[DerivedArray, ...]
    """The outputs of the recipe, one by one."""
    is_current: bool
    """True if nothing had to be computed, moved or described again."""
    recomputed: int
    """Chunks of all outputs that were computed."""
    moved: int
    """Chunks of all outputs that were moved by reference."""
    kept: int
    """Chunks of all outputs that were kept."""
    bytes_read: int = 0
    """Decoded bytes that tasks read."""
    input_snapshots: tuple[str, ...] = ()
    """Snapshots that the inputs were read from."""
    commit: str | None = None
    """The new snapshot; None if nothing changed."""
    dry_run: bool = False
    """True if nothing was written."""
