"""Commands about a repository as a whole: init, info, config, status, doctor."""

from __future__ import annotations

import click

from icefloe.cli.app import NOT_WELL
from icefloe.cli.arguments import output_option, repo_argument, storage_argument
from icefloe.cli.output import Output
from icefloe.errors import AlreadyExistsError, ErrorKind
from icefloe.repository import Repository
from icefloe.storage.base import Storage
from icefloe.types import RepoAvailability, RepoStatus


@click.command()
@storage_argument
@click.option("--spec-version", type=click.Choice(["1", "2"]), default="2", show_default=True)
@output_option
def init(storage: Storage, spec_version: str, out: Output) -> None:
    """Make a new repository.

    \b
    icefloe init data/repo
    icefloe init s3://bucket/weather -o region=eu-west-1
    """
    if Repository.exists(storage):
        raise AlreadyExistsError("there is a repository at this place already", kind=ErrorKind.NOT_ALLOWED)
    repo = Repository.create(storage, spec_version=int(spec_version))
    found = {**storage.describe(), "spec_version": int(spec_version), "main": repo.lookup_branch("main")}
    out.value(found, f"new repository of version {spec_version} at {found['main']}")


@click.command()
@repo_argument
@output_option
def info(repo: Repository, out: Output) -> None:
    """What a repository is: place, version, branches, tags, size of its history.

    \b
    icefloe info data/repo
    """
    tip = next(iter(repo.ancestry(branch="main")), None)
    out.record(
        {
            **repo.storage.describe(),
            "spec_version": int(repo.spec_version.value),
            "status": repo.get_status().availability.name if repo.spec_version.value > 1 else "online",
            "branches": sorted(repo.list_branches()),
            "tags": sorted(repo.list_tags()),
            "commits_on_main": sum(1 for _ in repo.ancestry(branch="main")),
            "latest_commit": tip and tip.message,
            "committed_at": tip and tip.written_at,
        }
    )


@click.command()
@repo_argument
@output_option
def config(repo: Repository, out: Output) -> None:
    """The stored configuration of a repository.

    \b
    icefloe config data/repo
    """
    stored = Repository.fetch_config(repo.storage)
    out.value(stored.to_plain() if stored else {}, str(stored) if stored else "the defaults: none is stored")


@click.command()
@repo_argument
@click.option(
    "--set", "availability", type=click.Choice(["online", "read-only"]), help="Change it, for everybody."
)
@click.option("--reason", help="What others are told.")
@output_option
def status(repo: Repository, availability: str | None, reason: str | None, out: Output) -> None:
    """Whether a repository may be written; or make it read-only, or put it online again.

    \b
    icefloe status data/repo
    """
    if availability:
        repo.set_status(RepoStatus(RepoAvailability[availability.replace("-", "_")], None, reason))
    now = repo.get_status()
    out.record(
        {"availability": now.availability, "reason": now.limited_availability_reason, "since": now.set_at}
    )


@click.group()
def doctor() -> None:
    """Look whether things are as they should be.

    \b
    icefloe doctor s3://bucket/repo -o region=eu-west-1
    """


@doctor.command("storage")
@storage_argument
@output_option
def doctor_storage(storage: Storage, out: Output) -> int:
    """Try whether a place keeps what conditional writes promise, before data is trusted to it."""
    from icefloe.storage.probe import probe

    report = probe(storage)
    out.value({"place": report.place, "safe": report.safe, "checks": report.checks}, str(report))
    return 0 if report.safe else NOT_WELL
