"""Which files a command may read for virtual chunks: only what the user names."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

import icefloe
from icefloe.cli.output import shown
from icefloe.repository import Repository
from icefloe.storage.external.endpoints import same_endpoint

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential

F = TypeVar("F", bound=Callable[..., Any])

ALL = "all"
_ANONYMOUS = "=anonymous"


authorize_prefixes = click.option(
    "--authorize",
    "prefixes",
    multiple=True,
    metavar="PREFIX[@ENDPOINT]",
    help="Read virtual chunks of this container, with keys from the environment, or of all; "
    "PREFIX=anonymous without keys. An endpoint that only the repository names must be repeated.",
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
    endpoints: dict[str, str] = {}
    for text in prefixes:
        wanted = text.removesuffix(_ANONYMOUS)
        chosen, endpoint = _chosen(wanted, known)
        access |= {each: _credential(each, anonymous=wanted != text) for each in chosen}
        endpoints |= dict.fromkeys(chosen, endpoint) if endpoint else {}
    opened = repo._reopen(None, access, frozenset())
    withheld = opened._assets.virtual.withheld
    for prefix, endpoint in withheld.items():
        given = next((endpoints[each] for each in endpoints if _same(each, prefix)), None)
        if given is None or not same_endpoint(given, endpoint):
            raise click.BadParameter(_question(prefix, endpoint), param_hint="--authorize")
    return repo._reopen(None, access, frozenset(withheld))


def _chosen(text: str, known: list[str]) -> tuple[list[str], str]:
    """Find the containers that PREFIX or PREFIX@ENDPOINT names, and the endpoint."""
    names = [ALL, *known]
    prefix, endpoint = text, ""
    if not any(_same(each, text) for each in names):
        for found in re.finditer("@", text):  # a prefix may have one, too
            if any(_same(each, text[: found.start()]) for each in names):
                prefix, endpoint = text[: found.start()], text[found.end() :]
    chosen = known if prefix == ALL else [each for each in known if _same(each, prefix)]
    if not chosen:
        there = "there are " + ", ".join(map(shown, known)) if known else "there is none"
        raise click.BadParameter(
            f"{prefix} is no container of virtual chunks of this repository; {there}",
            param_hint="--authorize",
        )
    return chosen, endpoint


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _question(prefix: str, endpoint: str) -> str:
    here, there = shown(prefix), shown(endpoint)
    return (
        f"the repository names the endpoint {there} for {here}. It would receive your credentials. "
        f"If you trust it, say --authorize {shlex.quote(f'{here}@{there}')}"
    )


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
