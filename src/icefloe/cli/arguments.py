"""Arguments that many commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

import icefloe
from icefloe.cli.output import Output
from icefloe.repository import Repository
from icefloe.storage.base import Storage

F = TypeVar("F", bound=Callable[..., Any])


def _options(values: tuple[str, ...]) -> dict[str, str]:
    options = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="-o")
        options[name] = value
    return options


def storage_argument(function: F) -> F:
    """REPO and its options: the function gets `storage`."""

    @click.argument("repo", metavar="REPO")
    @click.option(
        "-o", "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the storage."
    )
    @functools.wraps(function)
    def wrapped(*args: Any, repo: str, options: tuple[str, ...], **kwargs: Any) -> Any:
        storage: Storage = icefloe.storage_from_url(repo, **_options(options))
        return function(*args, storage=storage, **kwargs)

    return wrapped  # type: ignore[return-value]


def repo_argument(function: F) -> F:
    """REPO and its options: the function gets `repo`, opened."""

    @storage_argument
    @functools.wraps(function)
    def wrapped(*args: Any, storage: Storage, **kwargs: Any) -> Any:
        return function(*args, repo=Repository.open(storage), **kwargs)

    return wrapped  # type: ignore[return-value]


def output_option(function: F) -> F:
    """`--json`: the function gets `out`."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    @functools.wraps(function)
    def wrapped(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        return function(*args, out=Output(as_json=as_json), **kwargs)

    return wrapped  # type: ignore[return-value]
