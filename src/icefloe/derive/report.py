"""The report of a run, or dry run, of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe._internal.report import Report


@dataclass(frozen=True, slots=True)
class DerivedArray(Report):
    """The part of a derive report about one output: how many chunks were computed, moved and kept."""

    name: str
    """The name in the recipe."""
    path: str
    """The path of the array."""
    recomputed: int
    """The number of chunks that were computed."""
    moved: int
    """The number of chunks whose content existed at other coordinates and was moved by reference."""
    kept: int
    """The number of chunks that were kept."""
    partials: int = 0
    """The number of partial aggregates that were computed."""
    other_versions: int = 0
    """The number of kept chunks that were computed with other versions of icefloe, numpy or xarray."""
    reason: str | None = None
    """The reason why all chunks were computed again; empty if some were kept."""


@dataclass(frozen=True, slots=True)
class DeriveReport(Report):
    """The report of `derive_arrays`, or of its dry run: one entry per output."""

    outputs: tuple[DerivedArray, ...]
    """The reports of the individual outputs."""
    is_current: bool
    """True if all outputs were already up to date."""
    recomputed: int
    """The number of computed chunks of all outputs."""
    moved: int
    """The number of chunks of all outputs that were moved by reference."""
    kept: int
    """The number of kept chunks of all outputs."""
    bytes_read: int = 0
    """The decoded size of all chunks that tasks read, in bytes."""
    input_snapshots: tuple[str, ...] = ()
    """The snapshots from which the inputs were read."""
    commit: str | None = None
    """The new snapshot, the last one if outputs are on several branches; None if nothing changed."""
    dry_run: bool = False
    """True if nothing was written."""
