"""Groups of commands whose first word may be left out."""

from __future__ import annotations

import difflib
from typing import Any

import click


class GroupWithDefault(click.Group):
    """A group that takes a word which is no command, nor nearly one, for an argument of its default."""

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._default = default

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # docstring inherited
        known = args[0] in self.commands or args[0].startswith("-")
        if not known and not difflib.get_close_matches(args[0], self.commands):
            args = [self._default, *args]
        return super().resolve_command(ctx, args)
