"""Make text from untrusted sources safe to print: terminals obey control characters, people trust lines.

Names, messages and attributes of a repository are chosen by whoever wrote it. Control characters (C0, C1,
DEL), bidirectional marks, invisible characters and line separators are spelled out here: `\\x1b`, `\\u202e`.
"""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """Spell out every character that a terminal could obey, including line breaks and tabs."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def printable_lines(text: str) -> str:
    """Spell out every character that a terminal could obey, except line feeds and tabs."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return text.translate(_ESCAPES_WITHIN_LINES)


def printable_json(document: str) -> str:
    r"""Escape the same characters in a JSON document as `\uXXXX`. It still parses to the same value."""
    if document.replace("\n", "").isprintable():
        return document
    return document.translate(_JSON_ESCAPES)


def _is_safe(character: str) -> bool:
    # Spaces of other widths (Zs) are not "printable" in Python, but French and Japanese texts contain them.
    return character.isprintable() or unicodedata.category(character) == "Zs"


class _Escapes(dict[int, str]):
    """A table for `str.translate` that is filled as characters occur."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        found = character if _is_safe(character) else self.escape(character)
        self[code] = found
        return found

    def escape(self, character: str) -> str:
        return character.encode("unicode_escape").decode()


class _JsonEscapes(_Escapes):
    def escape(self, character: str) -> str:
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


_ESCAPES = _Escapes()
_ESCAPES_WITHIN_LINES = _Escapes({ord("\n"): "\n", ord("\t"): "\t"})
_JSON_ESCAPES = _JsonEscapes({ord("\n"): "\n"})
