"""The `--authorize` option, which allows a command to read virtual chunks."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click

from icefloe.cli.output import format_value
from icefloe.cli.params import adapt
from icefloe.repository import Repository

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential

_ALL = "all"
_ANONYMOUS = "=anonymous"

authorize_prefixes = click.option(
    "--authorize",
    "prefixes",
    multiple=True,
    metavar="PREFIX[@ENDPOINT]",
    help="Allow access to the virtual chunk container PREFIX, or to `all`, with credentials from the"
    " environment. "
    "PREFIX=anonymous uses no credentials. @ENDPOINT allows the endpoint that the repository configures.",
)


def authorize(repo: Repository, prefixes: tuple[str, ...]) -> Repository:
    """Authorize a command's repository to read virtual chunks from the containers given on the command
    line.
    """
    if not prefixes:
        return repo
    from icefloe.storage.external.trusted_endpoints import is_same_endpoint

    known = sorted((repo.config.virtual_chunk_containers or {}).keys())
    access: dict[str, AnyCredential | None] = {}
    endpoints: dict[str, str] = {}
    for text in prefixes:
        wanted = text.removesuffix(_ANONYMOUS)
        chosen, endpoint = _containers_named(wanted, known)
        access |= {each: _credential(each, anonymous=wanted != text) for each in chosen}
        endpoints |= dict.fromkeys(chosen, endpoint) if endpoint else {}
    opened = repo._reopen(None, access, frozenset())
    withheld = opened._assets.virtual.withheld
    for prefix, endpoint in withheld.items():
        given = next((endpoints[each] for each in endpoints if _is_same_prefix(each, prefix)), None)
        if given is None or not is_same_endpoint(given, endpoint):
            raise click.BadParameter(_ask_for_trust(prefix, endpoint), param_hint="--authorize")
    return repo._reopen(None, access, frozenset(withheld))


authorize_option = adapt(lambda repo, prefixes: {"repo": authorize(repo, prefixes)}, authorize_prefixes)
"""Add `--authorize`, which lets a command's `repo` read virtual chunks. Apply it below `repo_argument`."""


def _containers_named(text: str, known: list[str]) -> tuple[list[str], str]:
    """Return the containers that match `PREFIX` or `PREFIX@ENDPOINT`, and the endpoint or an empty string."""
    names = [_ALL, *known]
    prefix, endpoint = text, ""
    if not any(_is_same_prefix(each, text) for each in names):
        for found in re.finditer("@", text):  # the prefix itself may contain an @
            if any(_is_same_prefix(each, text[: found.start()]) for each in names):
                prefix, endpoint = text[: found.start()], text[found.end() :]
    chosen = known if prefix == _ALL else [each for each in known if _is_same_prefix(each, prefix)]
    if not chosen and prefix != _ALL:
        there = "it has " + ", ".join(map(format_value, known)) if known else "it has none"
        raise click.BadParameter(
            f"the repository has no virtual chunk container {prefix}; {there}",
            param_hint="--authorize",
        )
    return chosen, endpoint


def _is_same_prefix(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _ask_for_trust(prefix: str, endpoint: str) -> str:
    here, there = format_value(prefix), format_value(endpoint)
    return (
        f"the configuration of the repository sends requests for {here} to the endpoint {there}, which would "
        f"receive your credentials. If you trust it, pass --authorize {shlex.quote(f'{here}@{there}')}"
    )


def _credential(prefix: str, *, anonymous: bool) -> AnyCredential | None:
    from icefloe.credentials import make_credential_from_env

    known = prefix.partition("://")[0] in ("file", "http", "https", "s3", "gs", "az")
    return make_credential_from_env(prefix, anonymous=anonymous) if known else None
