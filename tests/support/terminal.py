"""Run commands as a user types them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icefloe.cli import main as app


class Terminal:
    """Types commands at one repository."""

    def __init__(self, capsys: pytest.CaptureFixture[str], repo: str) -> None:
        self._capsys = capsys
        self.repo = repo
        self.errors = ""

    def __call__(self, command: str, *words: str, code: int = 0) -> str:
        """What a command prints; it must end with the given exit code."""
        self._capsys.readouterr()
        found = app.main([*command.split(), self.repo, *words])
        printed = self._capsys.readouterr()
        self.errors = printed.err
        assert found == code, printed
        return printed.out

    def json(self, command: str, *words: str, code: int = 0) -> Any:
        """The same for programs."""
        return json.loads(self(command, *words, "--json", code=code))
