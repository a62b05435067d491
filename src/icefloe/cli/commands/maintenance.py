"""Commands that maintain the storage: gc, expire, storage, rewrite-manifests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import click

from icefloe._internal.amounts import counted, format_bytes
from icefloe._internal.executor import ThreadExecutor
from icefloe._internal.table import Table
from icefloe.cli import revisions
from icefloe.cli.execution import repo_executor_option, with_progress
from icefloe.cli.output import CommandOutput, format_value, plain
from icefloe.cli.params import (
    all_option,
    branch_option,
    complete_revision,
    dry_run_option,
    is_listed,
    output_option,
    repo_argument,
)
from icefloe.cli.revisions import Time
from icefloe.config import ManifestConfig, RepositoryConfig
from icefloe.maintenance.retention import RetentionPolicy, RetentionReport
from icefloe.repository import Repository

F = TypeVar("F", bound=Callable[..., Any])

_SAFE_AGE = timedelta(days=1)
_MANIFESTS_AT_ONCE = 4
_PERIODS = {"hourly": "hours", "daily": "days", "weekly": "weeks", "monthly": "months", "yearly": "years"}
_RULES = {
    "last": "Keep this many snapshots of each branch.",
    **{rule: f"Keep one snapshot for each of this many {period}." for rule, period in _PERIODS.items()},
}


def _keep_options(function: F) -> F:
    """Add an option for each rule of a retention policy."""
    for rule, text in reversed(_RULES.items()):
        function = click.option(f"--keep-{rule}", rule, type=click.IntRange(min=0), help=text)(function)
    return function


@click.command()
@repo_argument
@click.option(
    "--older-than",
    type=Time(),
    required=True,
    help="Delete only objects created before a time, or older than an age such as 7d.",
)
@dry_run_option
@click.option(
    "--table", is_flag=True, help="With --dry-run: list each object with its kind, size, age and reason."
)
@click.option(
    "--yes",
    is_flag=True,
    help="Delete objects even if the time is so recent that open sessions could lose chunks.",
)
@click.option(
    "--ops-log-older-than",
    "ops_log_cutoff",
    type=Time(),
    help="Also shorten the operations log: delete backups of the repo info that contain only operations"
    " before "
    "this time or age.",
)
@repo_executor_option
@output_option
def gc(
    repo: Repository,
    older_than: datetime,
    dry_run: bool,
    table: bool,
    yes: bool,
    ops_log_cutoff: datetime | None,
    out: CommandOutput,
) -> None:
    """Delete objects that no snapshot uses.

    Uncommitted chunks of open sessions also count as garbage. Choose a time before the oldest open session
    was started.

    \b
    icefloe gc data/repo --older-than 7d --dry-run
    """
    repo = with_progress(repo, out, reads_only=True)
    if table:
        if not dry_run:
            raise click.UsageError("--table requires --dry-run")
        found = repo.find_garbage(older_than)
        out.table(_list_rows(found), found.names)
        return
    age = datetime.now(UTC) - older_than
    if not dry_run and not yes and age < _SAFE_AGE:
        when = "the time is in the future: " if age < timedelta(0) else ""
        raise click.UsageError(
            f"{when}objects less than a day old may belong to open sessions; pass --yes if no session is open"
        )
    summary = repo.garbage_collect(older_than, dry_run=dry_run)
    verb = "would delete" if dry_run else "deleted"
    text = (
        f"{verb} {counted(summary.snapshots_deleted, 'snapshot')}, "
        f"{counted(summary.transaction_logs_deleted, 'transaction log')}, "
        f"{counted(summary.manifests_deleted, 'manifest')} and {counted(summary.chunks_deleted, 'chunk')}, "
        f"{format_bytes(summary.bytes_deleted)}"
    )
    if summary.temporary_files_deleted:
        text += f", including {counted(summary.temporary_files_deleted, 'temporary file')} of killed writers"
    if summary.statistics_deleted:
        text += f", including {counted(summary.statistics_deleted, 'statistics file')}"
    if summary.objects_failed_to_delete:
        reasons = format_value("; ".join(summary.delete_errors))
        text += f"\n{summary.objects_failed_to_delete} could not be deleted: {reasons}"
    result = {"dry_run": dry_run, **plain(summary)}
    if ops_log_cutoff is not None:
        trim = repo.trim_ops_log(ops_log_cutoff, dry_run=dry_run)
        result["ops_log"] = plain(trim)
        left = "would be left" if dry_run else "are left"
        text += (
            f"\n{verb} {counted(trim.backups_deleted, 'backup')} of the operations log, "
            f"{format_bytes(trim.bytes_deleted)}; {counted(trim.entries_left, 'operation')} {left}"
        )
    out.value(result, text)


@click.command()
@repo_argument
@click.option(
    "--older-than", type=Time(), help="Expire all snapshots before a time, or older than an age such as 30d."
)
@click.option("--branches", is_flag=True, help="Also delete branches other than main whose tip has expired.")
@click.option("--tags", is_flag=True, help="Also delete tags of expired snapshots.")
@_keep_options
@click.option(
    "--keep-since", "since", type=Time(), help="Keep all snapshots since a time, or younger than an age."
)
@click.option(
    "--keep-on",
    "per_branch",
    multiple=True,
    metavar="BRANCH:RULE=N,...",
    help="The rules for one branch, such as dev:last=3,daily=7; can be repeated.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show which snapshots would be kept and why, and change nothing."
)
@click.option("--yes", is_flag=True, help="Expire even if the time is in the future.")
@repo_executor_option
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
    out: CommandOutput,
    **rules: int | None,
) -> None:
    """Remove old snapshots from the history.

    Select the snapshots to remove with --older-than, or the snapshots to keep with --keep-... options. Run
    `icefloe gc` afterwards to delete the objects that only expired snapshots used.

    \b
    icefloe expire data/repo --older-than 30d --dry-run
    icefloe expire data/repo --keep-last 5 --keep-daily 14 --dry-run
    """
    policy = _make_policy(rules, since, per_branch, tags)
    if policy is not None and older_than is None:
        if branches:
            raise click.UsageError("--branches requires --older-than")
        _print_retention(repo, repo.retain(policy, dry_run=dry_run), policy, out)
        return
    if policy is not None or older_than is None:
        raise click.UsageError("pass either --older-than or --keep-... options")
    if older_than > datetime.now(UTC) and not yes:
        raise click.UsageError(
            "the time is in the future, so all snapshots would expire; pass --yes to confirm"
        )
    options = {"delete_expired_branches": branches, "delete_expired_tags": tags}
    if dry_run:
        _print_retention(repo, repo.retain(older_than, **options, dry_run=True), older_than, out)
        return
    gone = repo.expire_snapshots(older_than, **options)
    out.value({"expired": gone}, f"{counted(len(gone), 'snapshot')} expired")


def _make_policy(
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


def _print_retention(
    repo: Repository, report: RetentionReport, policy: RetentionPolicy | datetime, out: CommandOutput
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
        out.value({"freed": freed, "snapshots": _list_rows(table)})
        return
    out.table(_list_rows(table), table.names)
    out.value(
        f"{counted(freed.snapshots, 'snapshot')} would expire; gc could then delete "
        f"{counted(freed.manifests, 'manifest')} and {counted(freed.chunks, 'chunk')}, "
        f"{format_bytes(freed.bytes)} in all"
    )


def _list_rows(table: Table) -> list[dict[str, Any]]:
    """Return the rows of a table, with times in UTC."""
    rows = list(table.rows())
    for row in rows:
        for name, value in row.items():
            if isinstance(value, datetime):
                row[name] = value.replace(tzinfo=UTC)
    return rows


@click.command()
@repo_argument
@click.option(
    "--by",
    type=click.Choice(["array", "snapshot"]),
    help="Print a table with one row per array, or per snapshot.",
)
@click.option(
    "-r",
    "--revision",
    help=f"The version to measure with --by array: {revisions.HELP}",
    shell_complete=complete_revision,
)
@click.option(
    "--if-older-than",
    type=Time(),
    help="Report the storage that would be freed by expiring snapshots before this time or age.",
)
@click.option("--dry-run", is_flag=True, help="Only report how many snapshots would be read.")
@all_option
@repo_executor_option
@output_option
def storage(
    repo: Repository,
    by: Literal["array", "snapshot"] | None,
    revision: str | None,
    if_older_than: datetime | None,
    dry_run: bool,
    with_ledgers: bool,
    out: CommandOutput,
) -> None:
    """Show the storage used by chunks, each counted once.

    \b
    icefloe storage data/repo
    icefloe storage data/repo --by array -r v1.0
    """
    if revision is not None and by != "array":
        raise click.UsageError("-r requires --by array")
    if by is not None and if_older_than is not None:
        raise click.UsageError("--by and --if-older-than cannot be combined; run the command twice")
    if dry_run:
        count = len(repo.retain(datetime.fromtimestamp(0, UTC), dry_run=True).table)
        out.value(
            {"dry_run": True, "snapshots": count},
            f"would read {counted(count, 'snapshot')} and their manifests",
        )
        return
    repo = with_progress(repo, out, reads_only=True)
    if if_older_than is not None:
        freed = repo.estimate_expiration(older_than=if_older_than)
        text = (
            f"{counted(freed.snapshots, 'snapshot')}, {counted(freed.manifests, 'manifest')} and "
            f"{counted(freed.chunks, 'chunk')} would be freed: {format_bytes(freed.bytes)}"
        )
        out.value(freed, text)
        return
    if by is not None:
        id = None if revision is None else revisions.resolve(repo, revision)
        table = repo.storage_stats(by, snapshot_id=id)
        rows = _list_rows(table)
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
        out.record({name.removesuffix("_bytes"): format_bytes(count) for name, count in values.items()})


@click.command("rewrite-manifests")
@repo_argument
@branch_option
@click.option("-m", "--message", default="Rewrite manifests", show_default=True, help="The commit message.")
@click.option(
    "--amend", is_flag=True, help="Replace the newest commit of the branch instead of adding a commit."
)
@click.option(
    "--pack/--no-pack",
    default=None,
    help="Store several small arrays in one manifest, now and in later commits, or stop doing so.",
)
@dry_run_option
@repo_executor_option
@output_option
def rewrite_manifests(
    repo: Repository,
    branch: str,
    message: str,
    amend: bool,
    pack: bool | None,
    dry_run: bool,
    out: CommandOutput,
) -> None:
    """Rewrite manifests with the current configuration.

    \b
    icefloe rewrite-manifests data/repo --dry-run
    """
    if dry_run:
        id = repo.lookup_branch(branch)
        count = len(repo.list_manifest_files(id))
        text = f"{counted(count, 'manifest')} of {format_value(branch)} would be rewritten"
        out.value({"snapshot": id, "manifests": count, "dry_run": True}, text)
        return
    if pack is not None:
        repo = repo.reopen(RepositoryConfig(manifest=ManifestConfig(pack_small_arrays=pack)))
    if repo.executor is None:
        repo = repo.with_executor(ThreadExecutor(_MANIFESTS_AT_ONCE))
    id = with_progress(repo, out).rewrite_manifests(
        message, branch=branch, commit_method="amend" if amend else "new_commit"
    )
    if pack is not None:
        repo.save_config()
    files = repo.list_manifest_files(id)
    out.value({"snapshot": id, "manifests": len(files)}, f"{id}: {counted(len(files), 'manifest')}")
