"""Words of the form NAME=VALUE."""

from __future__ import annotations

import re

import click

_NAME = re.compile(r"[a-z_]+")


def storage_options(values: tuple[str, ...]) -> dict[str, str]:
    """Options of a storage, written as NAME=VALUE."""
    options = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise not_a_pair(text, "-o")
        options[name] = value
    return options


def not_a_pair(text: str, option: str) -> click.BadParameter:
    """Explain that an option is no NAME=VALUE. What does not look like a name may be a secret."""
    problem = f"{text!r} is not NAME=VALUE" if _NAME.fullmatch(text) else "expected NAME=VALUE"
    return click.BadParameter(problem, param_hint=option)
