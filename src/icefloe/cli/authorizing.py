"""Which files a command may read for virtual chunks: only what the user names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

import icefloe
from icefloe.repository import Repository

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential

F = TypeVar("F", bound=Callable[..., Any])

ALL = "all"
_ANONYMOUS = "=anonymous"


authorize_prefixes = click.option(
    "--authorize",
    "prefixes",
    multiple=True,
    metavar="PREFIX",
    help="Read virtual chunks of this container, with keys from the environment, or of all; "
    "PREFIX=anonymous without keys.",
)


def authorize_option(function: F) -> F:
    """`--authorize PREFIX`: the function's `repo` may read there. Stands below `repo_argument`."""

    @authorize_prefixes
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
    from icefloe.credentials import Credentials

    if scheme == "file":
        return Credentials.LocalFileSystemAccess()
    if scheme in ("http", "https"):
        return Credentials.HttpAccess()
    if scheme not in ("s3", "gs", "az"):
        return None
    return icefloe.containers_credentials({prefix: _signed(scheme, anonymous=anonymous)})[prefix]


def _signed(scheme: str, *, anonymous: bool) -> Any:
    """With keys from the environment, or without any."""
    if scheme == "s3":
        return icefloe.s3_anonymous_credentials() if anonymous else icefloe.s3_from_env_credentials()
    if scheme == "gs":
        return icefloe.gcs_credentials(anonymous=True) if anonymous else icefloe.gcs_from_env_credentials()
    return icefloe.azure_from_env_credentials()
