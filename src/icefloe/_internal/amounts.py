"""How much there is of something, in words."""

from __future__ import annotations

_HISSING = ("s", "x", "z", "ch", "sh")


def counted(number: int, thing: str) -> str:
    """Such as `1 file`, `2 files` and `3 branches`."""
    if number == 1:
        return f"1 {thing}"
    if thing.endswith("y") and thing[-2:-1] not in "aeiou":
        return f"{number} {thing[:-1]}ies"
    return f"{number} {thing}{'es' if thing.endswith(_HISSING) else 's'}"


def bytes_text(count: int) -> str:
    """A number of bytes, rounded."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
