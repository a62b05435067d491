"""How a command names elements of dimensions: by number, or by label."""

from __future__ import annotations

from typing import Any

import click


def index_of(text: str) -> tuple[str, slice | int]:
    """`--isel DIM=INDEX` or `DIM=START:STOP`."""
    name, wanted = _named(text, "--isel")
    try:
        if ":" not in wanted:
            return name, int(wanted)
        return name, slice(*(int(bound) if bound.strip() else None for bound in wanted.split(":", 2)))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not DIM=INDEX or DIM=START:STOP", param_hint="--isel"
        ) from None


def label_of(text: str) -> tuple[str, Any]:
    """`--sel DIM=LABEL` or `DIM=FIRST..LAST`."""
    name, wanted = _named(text, "--sel")
    first, dots, last = wanted.partition("..")
    return name, slice(_value(first), _value(last)) if dots else _value(wanted)


def _named(text: str, option: str) -> tuple[str, str]:
    name, equals, wanted = text.partition("=")
    if not equals or not name or not wanted:
        raise click.BadParameter(f"{text!r} names no dimension; write DIM=...", param_hint=option)
    return name, wanted


def _value(text: str) -> str | int | float | None:
    """A label: a number where it looks like one, text otherwise, as for times; None where it is open."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
