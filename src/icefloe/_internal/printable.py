"""Escape control characters in untrusted text before it is printed.

The writer of a repository chooses its names, messages and attributes. Control characters in them could change
what a terminal shows. Control characters (C0, C1, DEL), bidirectional marks, invisible characters and line
separators are escaped: `\\x1b`, `\\u202e`.
"""

from __future__ import annotations

import unicodedata


def escape_control(text: str) -> str:
    """Escape all control characters in untrusted text, including line breaks and tabs."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def escape_control_in_lines(text: str) -> str:
    """Escape all control characters in untrusted text, except line feeds and tabs."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return text.translate(_ESCAPES_WITHIN_LINES)


def escape_control_in_json(document: str) -> str:
    r"""Escape control characters in a JSON document as `\uXXXX`, which does not change its value."""
    if document.replace("\n", "").isprintable():
        return document
    return document.translate(_JSON_ESCAPES)


def _is_safe(character: str) -> bool:
    # Python considers special spaces (Zs) not printable, but French and Japanese texts contain them.
    return character.isprintable() or unicodedata.category(character) == "Zs"


class _Escapes(dict[int, str]):
    """A table for `str.translate` that is filled on demand, as characters occur."""

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
