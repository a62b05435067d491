"""Parse versions and times on the command line."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from icefloe.errors import InvalidInputError
from icefloe.history.versions import DEFAULT_VERSION as DEFAULT
from icefloe.history.versions import parse_duration, parse_time
from icefloe.history.versions import resolve_version as resolve

__all__ = ["DEFAULT", "HELP", "Duration", "Time", "resolve"]

HELP = "a branch, a tag, a snapshot id, BRANCH@TIME, or VERSION~N for N commits earlier."


class Duration(click.ParamType[timedelta | float]):
    """The parameter type for a duration, or for a plain number."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta | float:
        # docstring inherited
        if isinstance(value, timedelta | float):
            return value
        found = parse_duration(str(value))
        if found is not None:
            return found
        try:
            return float(str(value))
        except ValueError:
            self.fail(f"{value!r} is neither a duration such as 12h or 3d, nor a number", param, ctx)


class Time(click.ParamType[datetime]):
    """The parameter type for a time, or for an age such as 7d."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        # docstring inherited
        try:
            return value if isinstance(value, datetime) else parse_time(str(value))
        except InvalidInputError as error:
            raise click.BadParameter(str(error)) from None
