"""What a run of a recipe did, or would do."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe._internal.report import Report


@dataclass(frozen=True, slots=True)
class DerivedArray(Report):
    """One output of a recipe in numbers."""

    name: str
    """Name in the recipe."""
    path: str
    """Path of the array."""
    recomputed: int
    """Chunks that were computed."""
    moved: int
    """Chunks whose content was found at another place, and moved by reference."""
    kept: int
    """Chunks that stayed."""
    partials: int = 0
    """Partial aggregates that were computed."""
    other_versions: int = 0
    """Kept chunks that other versions of icefloe, numpy or xarray computed."""
    reason: str | None = None
    """Why everything was computed again."""


@dataclass(frozen=True, slots=True)
class DeriveReport(Report):
    """What `derive_arrays` did, or would do."""

    outputs: tuple[DerivedArray, ...]
    """The outputs of the recipe, one by one."""
    is_current: bool
    """True if nothing had to be computed, moved or described anew."""
    recomputed: int
    """Chunks of all outputs that were computed."""
    moved: int
    """Chunks of all outputs that were moved by reference."""
    kept: int
    """Chunks of all outputs that stayed."""
    bytes_read: int = 0
    """Decoded bytes that tasks read."""
    input_snapshots: tuple[str, ...] = ()
    """Snapshots that the inputs were read from."""
    commit: str | None = None
    """The new snapshot; None if nothing changed."""
    dry_run: bool = False
    """True if nothing was written."""
