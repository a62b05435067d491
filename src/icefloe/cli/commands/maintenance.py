"""Commands for the upkeep: gc, expire, stats, rewrite-manifests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import click

from icefloe._internal.amounts import bytes_text, counted
from icefloe._internal.executor import ThreadExecutor
from icefloe._internal.table import Table
from icefloe.cli import revisions
from icefloe.cli.complete import complete_branch, complete_revision
from icefloe.cli.ledgers import all_option, is_listed
from icefloe.cli.output import Output, plain, shown
from icefloe.cli.params import output_option, repo_argument, spark_option
from icefloe.cli.revisions import Time
from icefloe.cli.watched import watched
from icefloe.maintenance.retention import RetentionPolicy, RetentionReport
from icefloe.repository import Repository

_SAFE_AGE = timedelta(days=1)
_MANIFESTS_AT_ONCE = 4
_RULES = ("last", "hourly", "daily", "weekly", "monthly", "yearly")


@click.command()
@repo_argument
@click.option("--older-than", type=Time(), required=True, help="A time, or an age such as 7d.")
@click.option("--dry-run", is_flag=True, help="Count, and delete nothing.")
@click.option("--table", is_flag=True, help="With --dry-run: every object, its kind, bytes, age and reason.")
@click.option("--yes", is_flag=True, help="Even if the time is so recent that open sessions may lose chunks.")
@spark_option
@output_option
def gc(repo: Repository, older_than: datetime, dry_run: bool, table: bool, yes: bool, out: Output) -> None:
    """Delete objects that no snapshot needs.

    Chunks that an open session has written, and not committed yet, are needed by no snapshot: choose a time
    before the oldest of them began.

    \b
    icefloe gc data/repo --older-than 7d --dry-run
    """
    repo = watched(repo, out, reads_only=True)
    if table:
        if not dry_run:
            raise click.UsageError("--table shows what would be deleted; it needs --dry-run")
        found = repo.find_garbage(older_than)
        out.table(_shown(found), found.names)
        return
    age = datetime.now(UTC) - older_than
    if not dry_run and not yes and age < _SAFE_AGE:
        when = "the time lies in the future: " if age < timedelta(0) else ""
        raise click.UsageError(
            f"{when}objects less than a day old may belong to sessions that are still open; "
            "say --yes if none is"
        )
    summary = repo.garbage_collect(older_than, dry_run=dry_run)
    verb = "would delete" if dry_run else "deleted"
    text = (
        f"{verb} {counted(summary.snapshots_deleted, 'snapshot')}, "
        f"{counted(summary.transaction_logs_deleted, 'transaction log')}, "
        f"{counted(summary.manifests_deleted, 'manifest')} and {counted(summary.chunks_deleted, 'chunk')}, "
        f"{bytes_text(summary.bytes_deleted)}"
    )
    if summary.temporary_files_deleted:
        text += f"; {counted(summary.temporary_files_deleted, 'temporary file')} of killed writers among that"
    if summary.objects_failed_to_delete:
        reasons = shown("; ".join(summary.delete_errors))
        text += f"\n{summary.objects_failed_to_delete} could not be deleted: {reasons}"
    out.value({"dry_run": dry_run, **plain(summary)}, text)


@click.command()
@repo_argument
@click.option("--older-than", type=Time(), help="A time, or an age such as 30d.")
@click.option("--branches", is_flag=True, help="Also delete branches whose tip is that old; never main.")
@click.option("--tags", is_flag=True, help="Also delete tags that are that old, or that no rule keeps.")
@click.option("--keep-last", "last", type=click.IntRange(min=0), help="So many of each branch.")
@click.option("--keep-hourly", "hourly", type=click.IntRange(min=0), help="One in each of so many hours.")
@click.option("--keep-daily", "daily", type=click.IntRange(min=0), help="Likewise days.")
@click.option("--keep-weekly", "weekly", type=click.IntRange(min=0), help="Likewise weeks.")
@click.option("--keep-monthly", "monthly", type=click.IntRange(min=0), help="Likewise months.")
@click.option("--keep-yearly", "yearly", type=click.IntRange(min=0), help="Likewise years.")
@click.option("--keep-since", "since", type=Time(), help="All that are not older than a time or an age.")
@click.option(
    "--keep-on",
    "per_branch",
    multiple=True,
    metavar="BRANCH:RULE=N,...",
    help="Other rules for a branch, as in dev:last=3,daily=7.",
)
@click.option("--dry-run", is_flag=True, help="Show what would stay and why, and change nothing.")
@click.option("--yes", is_flag=True, help="Even if the time lies in the future.")
@spark_option
@output_option
def expire(
    repo: Repository,
    older_than: datetime | None,
    branches: bool,
    tags: bool,
    since: datetime | None,
    per_branch: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    out: Output,
    **rules: int | None,
) -> None:
    """Take old snapshots out of the history; `icefloe gc` then deletes what only they needed.

    Which ones is told by --older-than, or by what to keep.

    \b
    icefloe expire data/repo --older-than 30d --dry-run
    icefloe expire data/repo --keep-last 5 --keep-daily 14 --keep-monthly 12 --dry-run
    """
    policy = _policy(rules, since, per_branch, tags)
    if policy is not None and older_than is None:
        if branches:
            raise click.UsageError("--branches goes with --older-than")
        _tell_retention(repo, repo.retain(policy, dry_run=dry_run), policy, out)
        return
    if policy is not None or older_than is None:
        raise click.UsageError("say either --older-than or what to keep with --keep-...")
    if older_than > datetime.now(UTC) and not yes:
        raise click.UsageError("the time lies in the future: everything would expire; say --yes if it shall")
    options = {"delete_expired_branches": branches, "delete_expired_tags": tags}
    if dry_run:
        _tell_retention(repo, repo.retain(older_than, **options, dry_run=True), older_than, out)
        return
    gone = repo.expire_snapshots(older_than, **options)
    out.value({"expired": gone}, f"{counted(len(gone), 'snapshot')} expired")


def _policy(
    rules: dict[str, int | None], since: datetime | None, per_branch: tuple[str, ...], tags: bool
) -> RetentionPolicy | None:
    given: dict[str, Any] = {name: count for name, count in rules.items() if count is not None}
    if since is not None:
        given["within"] = max(datetime.now(UTC) - since, timedelta(0))
    if not given and not per_branch:
        return None
    return RetentionPolicy(**given, tagged=not tags, branches=dict(map(_branch_policy, per_branch)))


def _branch_policy(text: str) -> tuple[str, RetentionPolicy]:
    branch, colon, rules = text.rpartition(":")
    given: dict[str, Any] = {}
    for rule in rules.split(","):
        name, _, count = rule.partition("=")
        if not colon or name.strip() not in _RULES or not count.strip().isdigit():
            known = ", ".join(_RULES)
            raise click.BadParameter(
                f"{text!r} is not BRANCH:RULE=N,...; rules are {known}", param_hint="--keep-on"
            )
        given[name.strip()] = int(count)
    return branch, RetentionPolicy(**given)


def _tell_retention(
    repo: Repository, report: RetentionReport, policy: RetentionPolicy | datetime, out: Output
) -> None:
    table = report.table
    if not report.dry_run:
        gone = table["snapshot"][~table["kept"]].tolist()
        out.value({"expired": gone}, f"{counted(len(gone), 'snapshot')} expired")
        return
    if isinstance(policy, datetime):
        freed = repo.estimate_expiration(older_than=policy)
    else:
        freed = repo.estimate_expiration(policy=policy)
    if out.as_json:
        out.value({"freed": freed, "snapshots": _shown(table)})
        return
    out.table(_shown(table), table.names)
    out.value(
        f"{counted(freed.snapshots, 'snapshot')} would expire; gc could then delete "
        f"{counted(freed.manifests, 'manifest')} and {counted(freed.chunks, 'chunk')}, "
        f"{bytes_text(freed.bytes)} in all"
    )


def _shown(table: Table) -> list[dict[str, Any]]:
    """Rows for people and JSON: times with their zone."""
    rows = list(table.rows())
    for row in rows:
        for name, value in row.items():
            if isinstance(value, datetime):
                row[name] = value.replace(tzinfo=UTC)
    return rows


@click.command()
@repo_argument
@click.option("--by", type=click.Choice(["array", "snapshot"]), help="A table, one row for each.")
@click.option(
    "-r",
    "--revision",
    help="With --by array: in one snapshot. " + revisions.HELP,
    shell_complete=complete_revision,
)
@click.option("--if-older-than", type=Time(), help="What an expiration of that time would free.")
@click.option("--dry-run", is_flag=True, help="Count the snapshots to read, and read none.")
@all_option
@spark_option
@output_option
def stats(
    repo: Repository,
    by: Literal["array", "snapshot"] | None,
    revision: str | None,
    if_older_than: datetime | None,
    dry_run: bool,
    with_ledgers: bool,
    out: Output,
) -> None:
    """How many bytes of chunks the snapshots refer to, each chunk counted once.

    \b
    icefloe stats data/repo
    icefloe stats data/repo --by array -r v1.0
    """
    if revision is not None and by != "array":
        raise click.UsageError("-r goes with --by array")
    if by is not None and if_older_than is not None:
        raise click.UsageError("--by and --if-older-than are two questions: say one")
    if dry_run:
        count = len(repo.retain(datetime.fromtimestamp(0, UTC), dry_run=True).table)
        out.value(
            {"dry_run": True, "snapshots": count},
            f"would read {counted(count, 'snapshot')} and their manifests",
        )
        return
    repo = watched(repo, out, reads_only=True)
    if if_older_than is not None:
        freed = repo.estimate_expiration(older_than=if_older_than)
        text = (
            f"{counted(freed.snapshots, 'snapshot')}, {counted(freed.manifests, 'manifest')} and "
            f"{counted(freed.chunks, 'chunk')}, {bytes_text(freed.bytes)}, would go"
        )
        out.value(freed, text)
        return
    if by is not None:
        id = None if revision is None else revisions.resolve(repo, revision)
        table = repo.storage_stats(by, snapshot_id=id)
        rows = _shown(table)
        if by == "array":
            rows = [row for row in rows if is_listed(row["array"], with_ledgers=with_ledgers)]
        out.table(rows, table.names)
        return
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
@click.option("--branch", default="main", show_default=True, shell_complete=complete_branch)
@click.option("-m", "--message", default="Rewrite manifests", show_default=True)
@click.option("--amend", is_flag=True, help="In place of the branch's tip.")
@click.option("--dry-run", is_flag=True, help="Tell how many manifests there are, and write nothing.")
@spark_option
@output_option
def rewrite_manifests(
    repo: Repository, branch: str, message: str, amend: bool, dry_run: bool, out: Output
) -> None:
    """Write all manifests of a branch anew, split as configured now.

    \b
    icefloe rewrite-manifests data/repo --dry-run
    """
    if dry_run:
        id = repo.lookup_branch(branch)
        count = len(repo.list_manifest_files(id))
        text = f"{counted(count, 'manifest')} of {shown(branch)} would be rewritten"
        out.value({"snapshot": id, "manifests": count, "dry_run": True}, text)
        return
    if repo.executor is None:
        repo = repo.with_executor(ThreadExecutor(_MANIFESTS_AT_ONCE))
    id = watched(repo, out).rewrite_manifests(
        message, branch=branch, commit_method="amend" if amend else "new_commit"
    )
    files = repo.list_manifest_files(id)
    out.value({"snapshot": id, "manifests": len(files)}, f"{id}: {counted(len(files), 'manifest')}")
