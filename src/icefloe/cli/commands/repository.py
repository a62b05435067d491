"""Commands for whole repositories: init, info, config, status."""

from __future__ import annotations

from typing import Any

import click

from icefloe._internal.redaction import HIDDEN, may_be_secret, redact
from icefloe.cli.output import CommandOutput
from icefloe.cli.params import output_option, repo_argument, storage_argument
from icefloe.errors import AlreadyExistsError, ErrorKind
from icefloe.history.overview import collect_overview
from icefloe.history.overview import get_status as current_status
from icefloe.repository import Repository
from icefloe.storage.base import Storage
from icefloe.types import RepoAvailability, RepoStatus


@click.command()
@storage_argument
@click.option(
    "--spec-version",
    type=click.Choice(["1", "2"]),
    default="2",
    show_default=True,
    help="The version of the Icechunk format.",
)
@output_option
def init(storage: Storage, spec_version: str, out: CommandOutput) -> None:
    """Create a repository.

    \b
    icefloe init data/repo
    icefloe init s3://bucket/weather -o region=eu-west-1
    """
    if Repository.exists(storage):
        raise AlreadyExistsError("a repository already exists at this location", kind=ErrorKind.NOT_ALLOWED)
    repo = Repository.create(storage, spec_version=int(spec_version))
    found = {**storage.describe(), "spec_version": int(spec_version), "main": repo.lookup_branch("main")}
    out.value(found, f"created a repository in {storage.place}, format version {spec_version}")


@click.command()
@repo_argument
@output_option
def info(repo: Repository, out: CommandOutput) -> None:
    """Summarize a repository: version, refs and history.

    \b
    icefloe info data/repo
    """
    out.record(collect_overview(repo._refs, repo.storage))


@click.command()
@repo_argument
@output_option
def config(repo: Repository, out: CommandOutput) -> None:
    """Print the stored configuration of a repository.

    \b
    icefloe config data/repo
    """
    stored = Repository.fetch_config(repo.storage)
    text = str(stored) if stored else "no configuration is stored; the defaults apply"
    out.value(_remove_secrets(stored.to_plain()) if stored else {}, text)


def _remove_secrets(plain: Any, name: str = "") -> Any:
    """Remove options, headers and parts of URLs that may be secret from a configuration."""
    if isinstance(plain, dict):
        hide_all = name == "headers"
        return {
            redact(key): HIDDEN
            if isinstance(value, str) and (hide_all or may_be_secret(key))
            else _remove_secrets(value, key)
            for key, value in plain.items()
        }
    if isinstance(plain, list):
        return [_remove_secrets(each) for each in plain]
    return redact(plain) if isinstance(plain, str) else plain


@click.command()
@repo_argument
@click.option(
    "--set",
    "availability",
    type=click.Choice(["online", "read-only"]),
    help="Change the status for all users.",
)
@click.option("--reason", help="With --set: the reason, which other users see.")
@output_option
def status(repo: Repository, availability: str | None, reason: str | None, out: CommandOutput) -> None:
    """Show or change whether a repository is writable.

    \b
    icefloe status data/repo
    icefloe status data/repo --set read-only --reason "moving to another bucket"
    """
    if reason is not None and availability is None:
        raise click.UsageError("--reason requires --set")
    if availability:
        repo.set_status(RepoStatus(RepoAvailability[availability.replace("-", "_")], None, reason))
    out.record(current_status(repo._refs))
