"""Hints of errors on the command line."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import click
import pytest

from icefloe.cli.errors import COMMANDS, ONLY_IN_PYTHON, OPTIONS, explain, format_hint
from icefloe.cli.main import icefloe
from icefloe.errors import Hint, IcechunkError
from tests.support.cli_calls import commands
from tests.support.source_tree import last_name, source_modules


def library_hints() -> Iterator[dict[str, ast.expr]]:
    """Return the options of all hints in the library."""
    for module in source_modules():
        for node in ast.walk(module.tree) if module.component != "cli" else ():
            if isinstance(node, ast.Call) and last_name(node.func) == "Hint":
                yield {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}


def typed_options() -> set[str]:
    """Return all options of all commands."""
    found: set[str] = set()
    for name in commands(icefloe):
        command: click.Command | None = icefloe
        for word in name.split():
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), word)
        assert command is not None
        found |= {text for each in command.params for text in each.opts}
    return found


def test_library_hints_are_translated_to_command_line_options() -> None:
    hints = list(library_hints())
    names = {name for options in hints for name in options} - {"function", "mode"} - ONLY_IN_PYTHON
    functions = {ast.literal_eval(options["function"]) for options in hints if "function" in options}

    assert len(hints) > 15
    typed = {OPTIONS.get(name, f"--{name.replace('_', '-')}").split()[0] for name in names}
    assert typed - typed_options() == set()
    assert functions - set(COMMANDS) == set()


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (Hint("{on_change} takes them", on_change="ingest"), "--on-change ingest takes them"),
        (Hint("{overwrite} lets it follow", overwrite=True), "--overwrite lets it follow"),
        (Hint("name one with {concat_dim}", concat_dim=None), "name one with --concat-dim"),
        (Hint("{mode} copies it", mode="hybrid"), "--hybrid copies it"),
        (Hint("{function} makes one", function="Repository.create"), "`icefloe init` makes one"),
        (Hint("with {open_options}", open_options={"a": "{...}"}), "with --open-option 'a={...}'"),
        (Hint("or pass {check_clean_root}", check_clean_root=False), ""),
    ],
)
def test_hints_in_commands_name_command_line_options(hint: Hint, text: str) -> None:
    assert format_hint(hint) == text
    assert explain(IcechunkError("wrong").with_hint(hint))[0] == (f"wrong; {text}" if text else "wrong")
