"""What commands print: one JSON document for programs, or text for people."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from itertools import zip_longest
from typing import Any

import click

_PAUSE_S = 2.0


class Output:
    """Where results go. What is no result, such as progress, goes to the error stream."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._told_at = time.monotonic()

    def progress(self, stage: str, done: int, total: int) -> None:
        """Tell on the error stream how far something is: now and then, and at its end."""
        now = time.monotonic()
        if self.as_json or (done < total and now - self._told_at < _PAUSE_S):
            return
        self._told_at = now
        click.echo(f"{stage}: {done} of {total}", err=True)

    def value(self, value: Any, text: str | None = None) -> None:
        """One result, and how people read it."""
        click.echo(
            json.dumps(plain(value), indent=2, ensure_ascii=False) if self.as_json else text or str(value)
        )

    def record(self, value: Mapping[str, Any], title: str | None = None) -> None:
        """Names with values."""
        width = max(map(len, value), default=0)
        lines = [f"{name:<{width}}  {shown(each)}" for name, each in value.items()]
        self.value(value, "\n".join([title, *lines] if title else lines))

    def table(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Many results with the same names."""
        found = [{name: row[name] for name in columns} for row in rows]
        if self.as_json:
            self.value(found)
            return
        numbers = [
            bool(found) and all(isinstance(row[name], int | float) for row in found) for name in columns
        ]
        titles = [name.replace("_", " ") for name in columns]
        texts = [[shown(row[name]) for name in columns] for row in found]
        if sys.stdout.isatty():
            _fold_to_terminal(titles, texts, numbers)
        else:
            for line in aligned([titles, *texts], numbers):
                click.echo(line)


def aligned(rows: Sequence[Sequence[str]], to_the_right: Sequence[bool]) -> Iterator[str]:
    """The lines of a table as wide as it needs to be, two spaces between columns."""
    cells = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(_width(line) for row in cells for line in row[at]) for at in range(len(to_the_right))]
    for row in cells:
        for lines in zip_longest(*row, fillvalue=""):
            padded = []
            for text, width, right in zip(lines, widths, to_the_right, strict=True):
                space = " " * (width - _width(text))
                padded.append(space + text if right else text + space)
            yield "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def _fold_to_terminal(
    titles: Sequence[str], rows: Sequence[Sequence[str]], to_the_right: Sequence[bool]
) -> None:
    """Print a table no wider than the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_edge=False)
    for title, right in zip(titles, to_the_right, strict=True):
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout, highlight=False).print(table)


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(plain(value), ensure_ascii=False)
    return str(value)


def plain(value: Any) -> Any:
    """A value in terms of JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name
    return value


def bytes_text(count: int) -> str:
    """A number of bytes, rounded."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
