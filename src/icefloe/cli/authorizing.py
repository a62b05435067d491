"""Which files a command may read for virtual chunks: only what the user names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

import icefloe
from icefloe.credentials import AnyCredential, Credentials
from icefloe.repository import Repository

F = TypeVar("F", bound=Callable[..., Any])

ALL = "all"
_ANONYMOUS = "=anonymous"
_SIGNED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "s3": (icefloe.s3_from_env_credentials, icefloe.s3_anonymous_credentials),
    "gs": (icefloe.gcs_from_env_credentials, lambda: icefloe.gcs_credentials(anonymous=True)),
    "az": (icefloe.azure_from_env_credentials, icefloe.azure_from_env_credentials),
}
"""Per scheme, with keys from the environment and without any."""


def authorize_option(function: F) -> F:
    """`--authorize PREFIX`: the function's `repo` may read there. Stands below `repo_argument`."""

    @click.option(
        "--authorize",
        "prefixes",
        multiple=True,
        metavar="PREFIX",
        help="Read virtual chunks of this container, with keys from the environment, or of all; "
        "PREFIX=anonymous without keys.",
    )
    @functools.wraps(function)
    def wrapped(*args: Any, repo: Repository, prefixes: tuple[str, ...], **kwargs: Any) -> Any:
        return function(*args, repo=authorized(repo, prefixes), **kwargs)

    return wrapped  # type: ignore[return-value]


def authorized(repo: Repository, prefixes: tuple[str, ...]) -> Repository:
    """The same repository, which may read virtual chunks of some containers."""
    if not prefixes:
        return repo
    known = sorted((repo.config.virtual_chunk_containers or {}).keys())
    access: dict[str, AnyCredential | None] = {}
    for text in prefixes:
        prefix = text.removesuffix(_ANONYMOUS)
        same = [each for each in known if each.rstrip("/") == prefix.rstrip("/")]
        chosen = known if prefix == ALL else same
        if not chosen:
            there = "there are " + ", ".join(known) if known else "there is none"
            raise click.BadParameter(
                f"{prefix} is no container of virtual chunks of this repository; {there}",
                param_hint="--authorize",
            )
        access |= {each: _credential(each, anonymous=prefix != text) for each in chosen}
    return repo.reopen(authorize_virtual_chunk_access=access)


def _credential(prefix: str, *, anonymous: bool) -> AnyCredential | None:
    scheme = prefix.partition("://")[0]
    if scheme == "file":
        return Credentials.LocalFileSystemAccess()
    if scheme in ("http", "https"):
        return Credentials.HttpAccess()
    if scheme not in _SIGNED:
        return None
    return icefloe.containers_credentials({prefix: _SIGNED[scheme][anonymous]()})[prefix]
