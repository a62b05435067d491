"""Command output: one JSON document for programs, or text for people."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from itertools import zip_longest
from typing import Any

import click

from icefloe._internal.printable import escape_control, escape_control_in_json, escape_control_in_lines
from icefloe._internal.streams import get_colour_stream
from icefloe.cli.progress import Meter

_TEXT = "message"
"""The only column in which cells may span several lines. In other columns, a line break could forge a row."""
_NARROWEST = 12
"""The minimum width of the last column of a folded table."""


class CommandOutput:
    """The standard output of a command: a JSON document or text. Progress goes to stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.progress = Meter()

    def value(self, value: Any, text: str | None = None) -> None:
        """Print a result, as JSON or as `text`."""
        click.echo(format_json(value) if self.as_json else text or str(value))

    def drawing(self, value: Any, text: str) -> None:
        """Print a result as JSON, or as coloured text in which control characters are already escaped."""
        if self.as_json:
            self.value(value)
        else:
            click.echo(text, file=get_colour_stream(sys.stdout))

    def record(self, value: Mapping[str, Any], title: str | None = None) -> None:
        """Print a record with one line per name and value."""
        width = max(map(len, value), default=0)
        lines = [
            indent_text(f"{escape_control(name):<{width}}  ", format_value_lines(each))
            for name, each in value.items()
        ]
        self.value(value, "\n".join([title, *lines] if title else lines))

    def table(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Print a table, as JSON or as aligned text."""
        found = [{name: row[name] for name in columns} for row in rows]
        if self.as_json:
            self.value(found)
            return
        numbers = [
            bool(found) and all(isinstance(row[name], int | float) for row in found) for name in columns
        ]
        titles = [escape_control(name.replace("_", " ")) for name in columns]
        texts = [
            [(format_value_lines if name == _TEXT else format_value)(row[name]) for name in columns]
            for row in found
        ]
        if sys.stdout.isatty() and _can_be_folded([titles, *texts], shutil.get_terminal_size().columns):
            _fold_to_terminal(titles, texts, numbers)
        else:
            for line in align_rows([titles, *texts], numbers):
                click.echo(line)


def align_rows(rows: Sequence[Sequence[str]], to_the_right: Sequence[bool]) -> Iterator[str]:
    """Yield the lines of a table of any width, with two spaces between columns."""
    cells = [[cell.split("\n") for cell in row] for row in rows]
    widths = [
        max(_measure_width(line) for row in cells for line in row[at]) for at in range(len(to_the_right))
    ]
    for row in cells:
        for lines in zip_longest(*row, fillvalue=""):
            padded = []
            for text, width, right in zip(lines, widths, to_the_right, strict=True):
                space = " " * (width - _measure_width(text))
                padded.append(space + text if right else text + space)
            yield "  ".join(padded).rstrip()


def _measure_width(text: str) -> int:
    """Return the width of a string in terminal columns."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def _can_be_folded(rows: Sequence[Sequence[str]], columns: int) -> bool:
    """Return True if the table fits when only its last column is folded. Names and ids in other columns are
    never folded.
    """
    widths = [
        max(_measure_width(line) for row in rows for line in row[at].split("\n"))
        for at in range(len(rows[0]))
    ]
    return sum(widths[:-1]) + 2 * len(widths) + _NARROWEST <= columns


def _fold_to_terminal(
    titles: Sequence[str], rows: Sequence[Sequence[str]], to_the_right: Sequence[bool]
) -> None:
    """Print a table folded to the terminal width."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_edge=False)
    for at, (title, right) in enumerate(zip(titles, to_the_right, strict=True), 1):
        table.add_column(
            title, justify="right" if right else "left", overflow="fold", no_wrap=at < len(titles)
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=get_colour_stream(sys.stdout), highlight=False).print(table)


def format_value(value: Any) -> str:
    """Format a value for people, on one line."""
    return escape_control(format_value_lines(value))


def format_value_lines(value: Any) -> str:
    """Format a value for people. The result may span several lines, which callers indent."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, str):
        return escape_control_in_lines(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping | list | tuple):
        return escape_control_in_json(json.dumps(plain(value), ensure_ascii=False))
    return escape_control_in_lines(str(value))


def format_json(value: Any) -> str:
    r"""Format a value as a JSON document. Control characters are escaped as `\uXXXX`."""
    return escape_control_in_json(json.dumps(plain(value), indent=2, ensure_ascii=False))


def indent_text(title: str, text: str) -> str:
    """Return a title followed by a text whose further lines are aligned with its first line."""
    return title + text.replace("\n", "\n" + " " * len(title))


def plain(value: Any) -> Any:
    """Convert a value to JSON types. Numbers that JSON cannot represent become strings, such as "NaN"."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if value is None or isinstance(value, str | int | float) else str(value)
