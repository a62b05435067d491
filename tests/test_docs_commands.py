"""Commands that README.md, docs/ and the help of commands show: they exist, and so do their options."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from icefloe.cli import main as app
from tests.support.source_tree import ROOT

SPAN = re.compile(r"`(icefloe [a-z-]+[^`/:]*?(?: [^`]+)?)`")
LINE = re.compile(r"^(?:    |\$ )?(icefloe [a-z].+)$")


def documents() -> list[Path]:
    """Return every Markdown file that may show commands."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown(text: str) -> Iterator[str]:
    """Yield the commands in a text: spans of code, also over two lines, and lines of blocks."""
    fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        found = LINE.match(line)
        if found is not None and (fenced or line.startswith("    ")):
            yield found[1]
    yield from (" ".join(span.split()) for span in SPAN.findall(text))


def parsed(command: click.Command, words: list[str]) -> click.Command:
    """Return the command that words are given to, after it has understood its options."""
    ctx = click.Context(command, info_name=command.name)
    if isinstance(command, click.Group) and words and words[0] in command.list_commands(ctx):
        inner = command.get_command(ctx, words[0])
        assert inner is not None
        return parsed(inner, words[1:])
    if not isinstance(command, click.Group):  # one without a subcommand takes what its default one does
        with contextlib.suppress(click.BadOptionUsage):  # named without its value
            command.make_parser(ctx).parse_args([word for word in words if not re.match(r"-\d", word)])
    return command


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_commands_in_documentation_exist(document: Path) -> None:
    for line in shown(document.read_text(encoding="utf-8")):
        words = [word for word in shlex.split(line, comments=True)[1:] if word != "..."]
        if words[0].startswith("-"):  # icefloe --help
            continue
        assert words[0] in app.commands(), line
        try:
            parsed(app.icefloe, words)
        except click.UsageError as error:
            pytest.fail(f"{document.name}: {line}: {error.format_message()}")


def test_examples_in_help_are_valid() -> None:
    for name in app.commands():
        command = app.icefloe.get_command(click.Context(app.icefloe), name)
        assert command is not None
        lines = [line.strip() for line in (command.help or "").splitlines()]
        examples = [line for line in lines if line.startswith("icefloe ")]
        assert examples or name == "completion", f"{name} shows no example"
        for line in examples:
            assert len(line) <= 78, f"wider than 80 columns with its indent: {line}"
            parsed(app.icefloe, shlex.split(line)[1:])
