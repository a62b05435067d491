"""Run commands as a user types them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icefloe.cli import main as app


class Terminal:
    """A runner of commands for one repository."""

    def __init__(self, capsys: pytest.CaptureFixture[str], repo: str) -> None:
        self._capsys = capsys
        self.repo = repo
        self.errors = ""

    def __call__(self, command: str, *words: str, code: int = 0) -> str:
        """Run a command, check its exit code, and return its output."""
        self._capsys.readouterr()
        found = app.main([*command.split(), self.repo, *words])
        printed = self._capsys.readouterr()
        self.errors = printed.err
        assert found == code, printed
        return printed.out

    def json(self, command: str, *words: str, code: int = 0) -> Any:
        """Run a command with `--json`, and return the parsed output."""
        return json.loads(self(command, *words, "--json", code=code))
