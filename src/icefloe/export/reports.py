"""What an export tells when it is done."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ExportReport:
    """What was written, or with `dry_run` would be."""

    dry_run: bool
    arrays: list[str] = field(default_factory=list)
    """Paths below the exported group."""
    groups: int = 0
    chunks_copied: int = 0
    """Chunks whose bytes were copied as they are."""
    chunks_encoded: int = 0
    """Chunks of which a part was exported: decoded, cut and encoded again."""
    bytes_written: int = 0
