"""The reference pages say what the code says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from icefloe.cli.app import commands
from tests import reference

WANTED = {
    "init",
    "ingest",
    "run",
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


@pytest.mark.parametrize(
    ("page", "made"), [(reference.CLI_PAGE, reference.cli_page), (reference.API_PAGE, reference.api_page)]
)
def test_pages_are_made_of_the_code(page: Path, made: Callable[[], str]) -> None:
    assert page.read_text(encoding="utf-8") == made(), "run python -m tests.reference"


def test_commands_are_all_there() -> None:
    assert set(commands()) >= WANTED


def test_every_command_has_an_example() -> None:
    page = reference.CLI_PAGE.read_text(encoding="utf-8")
    sections = page.split("\n### ")[1:]
    without = [each.splitlines()[0] for each in sections if "```sh" not in each and "####" not in each]
    assert without == []
