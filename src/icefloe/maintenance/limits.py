"""Bounds that users set for maintenance."""

from __future__ import annotations

from icefloe.encoding.envelope import PLAUSIBLE_BYTES


def check_positive(**counts: int | None) -> None:
    """Raise ValueError for a bound below 1."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"invalid zero value: {name} is {count}, and must be at least 1")


def concurrent_reads(**counts: int) -> int:
    """Compute how many files may be read at once so that all bounds hold, whatever their sizes."""
    check_positive(**counts)
    by_count = min(counts["max_snapshots_in_memory"], counts["max_concurrent_manifest_fetches"])
    by_size = counts["max_decoded_manifest_mem_bytes"] // PLAUSIBLE_BYTES
    return max(1, min(by_count, by_size))
