"""The command line reference describes every command, and the documentation shows commands that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from docs._site.cli_reference import cli_page
from icefloe.cli.main import commands
from icefloe.cli.main import icefloe as program

WANTED = {
    "init",
    "ingest",
    "inspect-file",
    "log",
    "show",
    "diff",
    "branch",
    "tag",
    "cat",
    "export",
    "tree",
    "info",
    "head",
    "plot",
    "refs",
    "ops",
    "merge",
    "cherry-pick",
    "revert",
    "config",
    "status",
    "doctor",
    "sql",
}


def test_all_commands_are_documented() -> None:
    assert set(commands()) >= WANTED


def test_every_command_has_an_example() -> None:
    sections = cli_page().split("\n### ")[1:]
    without = [each.splitlines()[0] for each in sections if "```sh" not in each and "####" not in each]
    assert without == []


def test_defaults_in_the_cli_reference_are_real_values() -> None:
    page = cli_page()

    assert "Sentinel" not in page
    assert "| `--memory INTEGER RANGE` | The memory for data in each task, in MiB. Default: `256`. |" in page


def _typed() -> Iterator[tuple[str, list[str]]]:
    """Yield each command in the shell blocks of the documentation, with its page."""
    root = Path(__file__).parent.parent
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("icefloe "):
                    words = shlex.split(line, comments=True)[1:]
                    end = next((at for at, word in enumerate(words) if word in (">", ">>", "|")), len(words))
                    yield f"{page.name}: {line}", words[:end]


def test_commands_in_the_cli_reference_can_be_parsed() -> None:
    """Names, options and arguments are those of the program; nothing is run."""
    wrong = []
    for line, given in _typed():
        command: click.Command | None = program
        context, name, words = click.Context(program), "", given
        try:
            while isinstance(command, click.Group) and words:
                found, command, words = command.resolve_command(context, words)
                name = found or ""
            if command is not None and not isinstance(command, click.Group):
                command.make_context(name, list(words))
        except click.ClickException as error:
            if "does not exist" not in error.format_message():  # a file of the reader's own
                wrong.append(f"{line}: {error.format_message()}")

    assert wrong == []
