"""HTML for notebooks and report files: escaped, self-contained, and readable in light and dark themes.

Colours are mixed from the current text colour, so that no theme needs to be known. Nothing is loaded from
elsewhere.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final

from icefloe._internal.printable import escape_control_in_lines
from icefloe._internal.redaction import redact

_MAX_ROWS: Final = 100
_MAX_NAMES: Final = 20
_STYLE: Final = """
.icefloe-repr{font:13px/1.5 system-ui,sans-serif;max-width:75em}
.icefloe-repr .ic-title{padding:6px 0;border-bottom:1px solid color-mix(in srgb,currentColor 25%,transparent)}
.icefloe-repr .ic-title b{font-size:1.1em}
.icefloe-repr .ic-title span{opacity:.65;margin-left:.6em}
.icefloe-repr table{border-collapse:collapse;margin:2px 0 6px;font-size:12px;text-align:left}
.icefloe-repr th,.icefloe-repr td{padding:2px 14px 2px 0;border:0;vertical-align:top;text-align:left;
white-space:pre-wrap;overflow-wrap:break-word;background:none}
.icefloe-repr th{font-weight:600;opacity:.65}
.icefloe-repr td.ic-number,.icefloe-repr th.ic-number{text-align:right;font-variant-numeric:tabular-nums}
.icefloe-repr tbody tr:hover td{background:color-mix(in srgb,currentColor 7%,transparent)}
.icefloe-repr details{margin:2px 0}
.icefloe-repr summary{cursor:pointer;font-weight:600;padding:2px 0}
.icefloe-repr summary span{opacity:.6;font-weight:400;margin-left:.4em}
.icefloe-repr details>:not(summary){margin-left:1.2em}
.icefloe-repr code{font:12px ui-monospace,monospace;background:none;color:inherit}
.icefloe-repr .ic-good{color:#2b9a57}.icefloe-repr .ic-bad{color:#e0483e}
"""


def escape(text: Any) -> str:
    """Escape text for HTML, after escaping control characters and redacting secrets in URLs."""
    return html.escape(escape_control_in_lines(redact(str(text))))


def render_card(package: str, title: str, note: str, *parts: str) -> str:
    """Return an HTML card for notebooks, with a title, a note next to it, and a body."""
    head = f'<div class="ic-title"><b>{escape(title)}</b><span>{escape(note)}</span></div>'
    style = _STYLE if package == "icefloe" else _STYLE.replace(".icefloe-repr", f".{package}-repr")
    return f'<div class="{package}-repr"><style>{style}</style>{head}{"".join(parts)}</div>'


def render_page(title: str, body: str) -> str:
    """Return a complete HTML document, for a report file."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>body{{margin:2em}}</style></head>\n<body>{body}</body></html>\n"
    )


def render_facts(values: Mapping[str, Any]) -> str:
    """Return a two-column HTML table of names and values."""
    rows = (
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{render_cell(value)}</td></tr>"
        for name, value in values.items()
    )
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def render_section(title: str, count: int | None, content: str, *, is_open: bool = True) -> str:
    """Return a collapsible HTML section; an empty string if the count is 0."""
    if count == 0:
        return ""
    number = "" if count is None else f"<span>({count})</span>"
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{escape(title)}{number}</summary>{content}</details>"


def render_table(names: Sequence[str], rows: Iterable[Sequence[Any]], total: int | None = None) -> str:
    """Return an HTML table with at most 100 rows, followed by the number of rows that were left out."""
    shown = [row for row, _ in zip(rows, range(_MAX_ROWS), strict=False)]
    numeric = [
        bool(shown)
        and all(isinstance(row[at], int | float) and not isinstance(row[at], bool) for row in shown)
        for at in range(len(names))
    ]
    kinds = [' class="ic-number"' if number else "" for number in numeric]
    head = "".join(
        f"<th{kind}>{escape(name.replace('_', ' '))}</th>" for name, kind in zip(names, kinds, strict=True)
    )
    lines = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{render_cell(value)}</td>" for value, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in shown
    )
    more = (total or 0) - len(shown)
    note = f"<div>and {more} more</div>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>{note}"


def render_cell(value: Any) -> str:
    """Return a value as single-line HTML, for a table cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return escape(value.isoformat(sep=" ", timespec="seconds"))
    if isinstance(value, Enum):
        return escape(value.value if isinstance(value, str) else value.name)
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        names = list(map(str, value))
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        return escape(", ".join(names[:_MAX_NAMES]) + more) if names else "-"
    return escape(value)


def mark(is_good: bool, text: str) -> str:
    """Return a green or red HTML mark, with a symbol for readers who cannot distinguish the colours."""
    sign, kind = ("✓", "good") if is_good else ("✗", "bad")
    return f'<span class="ic-{kind}">{sign} {escape(text)}</span>'
