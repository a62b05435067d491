"""Commands that take data elsewhere: clone."""

from __future__ import annotations

import click

from icefloe.cli.arguments import output_option, repo_argument, spark_option, target_argument
from icefloe.cli.output import Output, bytes_text, plain
from icefloe.repository import Repository
from icefloe.storage.base import Storage


@click.command()
@repo_argument
@target_argument
@click.option("--branch", "branches", multiple=True, help="This branch and main; all without it.")
@click.option("--tag", "tags", multiple=True, help="This tag; all without it.")
@click.option("--no-tags", is_flag=True, help="No tags at all.")
@click.option("--depth", type=click.IntRange(min=1), help="So many of the newest snapshots of each.")
@click.option("--read-back", is_flag=True, help="Read every copy again, and compare.")
@click.option("--overwrite", is_flag=True, help="Branches follow, even if their commits there get lost.")
@click.option("--dry-run", is_flag=True, help="Count, and write nothing.")
@spark_option
@output_option
def clone(
    repo: Repository,
    target: Storage,
    branches: tuple[str, ...],
    tags: tuple[str, ...],
    no_tags: bool,
    depth: int | None,
    read_back: bool,
    overwrite: bool,
    dry_run: bool,
    out: Output,
) -> None:
    """Copy a repository to TARGET, or add what is new to a copy that is there.

    What was broken off goes on when it is run again.

    \b
    icefloe clone data/repo s3://bucket/repo --target-option region=eu-west-1
    icefloe clone data/repo backup/repo --depth 10
    """
    report = repo.clone_to(
        target,
        branches=branches or None,
        tags=() if no_tags else tags or None,
        depth=depth,
        read_back=read_back,
        overwrite=overwrite,
        dry_run=dry_run,
        progress=out.progress,
    )
    verb = "would copy" if dry_run else "copied"
    text = (
        f"{verb} {report.snapshots} snapshots, {report.transaction_logs} transaction logs, "
        f"{report.manifests} manifests and {report.chunks} chunks, {bytes_text(report.bytes_copied)}; "
        f"{report.objects_there} objects were there"
    )
    out.value(plain(report), text)
