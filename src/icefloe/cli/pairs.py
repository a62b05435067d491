"""Words of the form NAME=VALUE."""

from __future__ import annotations

import click


def storage_options(values: tuple[str, ...]) -> dict[str, str]:
    """Options of a storage, written as NAME=VALUE."""
    options = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter("expected NAME=VALUE", param_hint="-o")  # the text may be a secret
        options[name] = value
    return options
