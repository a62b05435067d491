"""Format counts and sizes for display."""

from __future__ import annotations

_HISSING = ("s", "x", "z", "ch", "sh")


def counted(number: int, thing: str) -> str:
    """Format a count with a noun: `1 file`, `2 files`, `3 branches`."""
    if number == 1:
        return f"1 {thing}"
    if thing.endswith("y") and thing[-2:-1] not in "aeiou":
        return f"{number} {thing[:-1]}ies"
    return f"{number} {thing}{'es' if thing.endswith(_HISSING) else 's'}"


def format_bytes(count: int) -> str:
    """Format a number of bytes, rounded: `1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
