"""The report of running a recipe, or of a dry run."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe._internal.report import Report


@dataclass(frozen=True, slots=True)
class DerivedArray(Report):
    """The entry for one output in a derive report: how many chunks were computed, moved and kept."""

    name: str
    """The name of the output in the recipe."""
    path: str
    """The path of the array."""
    recomputed: int
    """The number of chunks that were computed."""
    moved: int
    """The number of chunks whose content existed at other chunk coordinates and was moved by reference."""
    kept: int
    """The number of chunks that were kept."""
    partials: int = 0
    """The number of partial aggregates that were computed."""
    other_versions: int = 0
    """The number of kept chunks that were computed with other versions of icefloe, numpy or xarray."""
    reason: str | None = None
    """The reason why all chunks were recomputed; empty if some were kept."""


@dataclass(frozen=True, slots=True)
class DeriveReport(Report):
    """The report of `derive_arrays`, or of its dry run: one entry per output."""

    outputs: tuple[DerivedArray, ...]
    """The reports of the individual outputs."""
    is_current: bool
    """True if all outputs were already up to date."""
    recomputed: int
    """The total number of chunks that were computed."""
    moved: int
    """The total number of chunks that were moved by reference."""
    kept: int
    """The total number of chunks that were kept."""
    bytes_read: int = 0
    """The decoded size of all chunks that tasks read, in bytes."""
    input_snapshots: tuple[str, ...] = ()
    """The snapshots from which the inputs were read."""
    commit: str | None = None
    """The new snapshot; None if nothing changed. If outputs are on several branches, the last new
    snapshot.
    """
    dry_run: bool = False
    """True if nothing was written."""
