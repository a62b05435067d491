"""Commands for the upkeep: verify, gc, expire, stats, rewrite-manifests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from icefloe.cli.app import NOT_WELL
from icefloe.cli.arguments import output_option, repo_argument
from icefloe.cli.output import Output, bytes_text, plain
from icefloe.cli.revisions import Time
from icefloe.maintenance.findings import Level
from icefloe.repository import Repository

_SAFE_AGE = timedelta(days=1)


@click.command()
@repo_argument
@click.option(
    "--level", type=click.Choice([each.value for each in Level]), default="graph", show_default=True
)
@output_option
def verify(repo: Repository, level: str, out: Output) -> int:
    """Look whether all that branches and tags lead to is there and readable. Exit code 5 if not."""
    report = repo.verify(level)
    looked = (
        f"{report.snapshots} snapshots, {report.transaction_logs} transaction logs, "
        f"{report.manifests} manifests, {report.references} references"
    )
    lines = [f"{found.kind}: {found.object} ({found.where}): {found.message}" for found in report.findings]
    verdict = f"well: {looked}" if report.ok else f"{len(lines)} things are wrong, among {looked}"
    out.value({"ok": report.ok, **plain(report)}, "\n".join([verdict, *lines]))
    return 0 if report.ok else NOT_WELL


@click.command()
@repo_argument
@click.option("--older-than", type=Time(), required=True, help="A time, or an age such as 7d.")
@click.option("--dry-run", is_flag=True, help="Count, and delete nothing.")
@click.option("--yes", is_flag=True, help="Even if the time is so recent that open sessions may lose chunks.")
@output_option
def gc(repo: Repository, older_than: datetime, dry_run: bool, yes: bool, out: Output) -> None:
    """Delete objects that no snapshot needs.

    Chunks that an open session has written, and not committed yet, are needed by no snapshot: choose a time
    before the oldest of them began.

    \b
    icefloe gc data/repo --older-than 7d --dry-run
    """
    if not dry_run and not yes and datetime.now(UTC) - older_than < _SAFE_AGE:
        raise click.UsageError(
            "objects less than a day old may belong to sessions that are still open; say --yes if none is"
        )
    summary = repo.garbage_collect(older_than, dry_run=dry_run)
    verb = "would delete" if dry_run else "deleted"
    text = (
        f"{verb} {summary.snapshots_deleted} snapshots, {summary.transaction_logs_deleted} transaction logs, "
        f"{summary.manifests_deleted} manifests and {summary.chunks_deleted} chunks, "
        f"{bytes_text(summary.bytes_deleted)}"
    )
    if summary.objects_failed_to_delete:
        text += (
            f"\n{summary.objects_failed_to_delete} could not be deleted: {'; '.join(summary.delete_errors)}"
        )
    out.value({"dry_run": dry_run, **plain(summary)}, text)


@click.command()
@repo_argument
@click.option("--older-than", type=Time(), required=True, help="A time, or an age such as 30d.")
@click.option("--branches", is_flag=True, help="Also delete branches whose tip is that old; never main.")
@click.option("--tags", is_flag=True, help="Also delete tags that are that old.")
@output_option
def expire(repo: Repository, older_than: datetime, branches: bool, tags: bool, out: Output) -> None:
    """Take old snapshots out of the history; `icefloe gc` then deletes what only they needed."""
    gone = repo.expire_snapshots(older_than, delete_expired_branches=branches, delete_expired_tags=tags)
    out.value({"expired": gone}, f"{len(gone)} snapshots expired")


@click.command()
@repo_argument
@output_option
def stats(repo: Repository, out: Output) -> None:
    """How many bytes of chunks the snapshots refer to, each chunk counted once."""
    found = repo.chunk_storage_stats()
    values: dict[str, Any] = {
        "native_bytes": found.native_bytes,
        "virtual_bytes": found.virtual_bytes,
        "inlined_bytes": found.inlined_bytes,
        "total_bytes": found.total_bytes(),
    }
    if out.as_json:
        out.value(values)
    else:
        out.record({name.removesuffix("_bytes"): bytes_text(count) for name, count in values.items()})


@click.command("rewrite-manifests")
@repo_argument
@click.option("--branch", default="main", show_default=True)
@click.option("-m", "--message", default="Rewrite manifests", show_default=True)
@click.option("--amend", is_flag=True, help="In place of the branch's tip.")
@output_option
def rewrite_manifests(repo: Repository, branch: str, message: str, amend: bool, out: Output) -> None:
    """Write all manifests of a branch anew, split as configured now."""
    id = repo.rewrite_manifests(message, branch=branch, commit_method="amend" if amend else "new_commit")
    files = repo.list_manifest_files(id)
    out.value({"snapshot": id, "manifests": len(files)}, f"{id}: {len(files)} manifests")
