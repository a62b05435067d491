"""Commands that combine or rewrite commits: merge, cherry-pick, revert, squash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from itertools import takewhile, zip_longest
from typing import Any, TypeVar

import click

from icefloe._internal.amounts import counted
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.errors import CONFLICT, format_hint
from icefloe.cli.output import CommandOutput, format_value, plain
from icefloe.cli.params import (
    branch_option,
    complete_revision,
    dry_run_option,
    message_option,
    order_option,
    output_option,
    repo_argument,
)
from icefloe.conflicts import MergeConflictError, MergeResult, describe_place
from icefloe.core.merge.row_placement import AppendOrder
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.feeds.append_solver import AppendSolver
from icefloe.repository import Repository

F = TypeVar("F", bound=Callable[..., Any])

_strategy = click.option(
    "--strategy",
    type=click.Choice(["fail", "ours", "theirs", "append"]),
    default="fail",
    show_default=True,
    help="How to resolve conflicts: fail, use the version of the branch (ours), use the merged version"
    " (theirs), "
    "or keep the rows that both sides appended along --dim (append).",
)
_dim = click.option(
    "--dim", default="time", show_default=True, help="The dimension to append along with --strategy append."
)


def _merge_options(function: F) -> F:
    """Add the options that merge, cherry-pick and revert share."""

    @wraps(function)
    def run(*args: Any, strategy: str, dim: str, order: AppendOrder, **options: Any) -> Any:
        chosen = AppendSolver(dim, order=order) if strategy == "append" else strategy
        return function(*args, strategy=chosen, **options)

    command: Any = run
    for add in (output_option, authorize_option, dry_run_option, order_option, _dim, _strategy):
        command = add(command)
    return message_option(branch_option(command))  # type: ignore[no-any-return]


@click.command()
@repo_argument
@click.argument("source", shell_complete=complete_revision)
@_merge_options
def merge(
    repo: Repository, source: str, branch: str, message: str | None, out: CommandOutput, **options: Any
) -> int:
    """Merge a branch, tag or snapshot into a branch.

    SOURCE is the version to merge. If there are conflicts, the command lists them, writes nothing and exits
    with code 4.

    \b
    icefloe merge data/repo dev --dry-run
    icefloe merge data/repo main --branch dev -m "the new grid" --strategy theirs
    icefloe merge data/repo late-data --strategy append --dim time
    """
    id, message = revisions.resolve(repo, source), message or f"Merge {source} into {branch}"
    merged = partial(repo.merge, id, branch, message=message, **options)
    return _run(out, merged, f"{source} into {branch}")


@click.command()
@repo_argument
@click.argument("commit", shell_complete=complete_revision)
@_merge_options
def cherry_pick(repo: Repository, commit: str, branch: str, out: CommandOutput, **options: Any) -> int:
    """Apply the changes of one commit to a branch.

    COMMIT is the version whose changes to apply. If there are conflicts, the exit code is 4.

    \b
    icefloe cherry-pick data/repo 6XR01DHE8FB6HX6SKHX0
    icefloe cherry-pick data/repo main~2 --branch dev --dry-run
    """
    id = revisions.resolve(repo, commit)
    return _run(out, partial(repo.cherry_pick, id, branch=branch, **options), f"{id} onto {branch}")


@click.command()
@repo_argument
@click.argument("commit", shell_complete=complete_revision)
@_merge_options
def revert(repo: Repository, commit: str, branch: str, out: CommandOutput, **options: Any) -> int:
    """Undo the changes of one commit on a branch.

    COMMIT is the version whose changes to undo. If there are conflicts, the exit code is 4.

    \b
    icefloe revert data/repo main --dry-run
    """
    id = revisions.resolve(repo, commit)
    return _run(out, partial(repo.revert, id, branch=branch, **options), f"the revert of {id} into {branch}")


@click.command()
@repo_argument
@click.argument("since", shell_complete=complete_revision)
@branch_option
@message_option
@dry_run_option
@output_option
def squash(
    repo: Repository, since: str, branch: str, message: str | None, dry_run: bool, out: CommandOutput
) -> None:
    """Squash the newest commits of a branch into one.

    SINCE is the last version to keep. All later commits of the branch become one commit.

    \b
    icefloe squash data/repo main@7d --dry-run
    """
    start = revisions.resolve(repo, since)
    history = [info.id for info in repo.ancestry(branch=branch)]
    later = list(takewhile(lambda id: id != start, history))
    if start not in history or not later:
        raise InvalidInputError(
            f"{since} is not a commit before the tip of branch {branch}, so there is nothing to squash",
            kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    made = None if dry_run else repo.squash(start, branch=branch, message=message)
    on = format_value(branch)
    verb = f"one commit on {on} would replace" if made is None else f"{on} is at {made}, which replaces"
    text = f"{verb} {counted(len(later), 'commit')}: {' '.join(later)}"
    out.value({"branch": branch, "since": start, "squashed": later, "snapshot": made}, text)


def _run(out: CommandOutput, work: Callable[[], MergeResult], what: str) -> int:
    """Run a merge operation, print its result, and return the exit code."""
    try:
        result = work()
    except MergeConflictError as error:
        result = error.result
    rows = result.conflicts
    details = rows.details()
    lines = [_format_result(result, format_value(what))]
    for row, found in zip(rows[: len(details)], details, strict=True):
        place = format_value(row.path) if row.chunk is None else f"{format_value(row.path)} {list(row.chunk)}"
        lines.append(
            f"  {place}: {str(row.kind).lower()} | ours: {format_value(row.ours)}"
            f" | theirs: {format_value(row.theirs)}"
        )
        if found is not None:
            hint = f"; {format_hint(found.hint)}" if found.hint else ""
            lines.append(f"    {describe_place(row, replace(found, hint=None))}{hint}")
            lines += [f"      {format_value(str(cell))}" for cell in found.cells]
    lines += [f"  and {len(rows) - len(details)} more"] if len(rows) > len(details) else []
    value = {
        "outcome": result.outcome,
        "snapshot": result.snapshot_id,
        "base": result.base_id,
        "ours": result.ours_id,
        "theirs": result.theirs_id,
        "conflicts": [plain(row) | {"details": plain(found)} for row, found in zip_longest(rows, details)],
        "changes": plain(result.changes),
    }
    out.value(value, "\n".join(lines))
    return CONFLICT if result.outcome == "conflicts" else 0


def _format_result(result: MergeResult, what: str) -> str:
    match result.outcome:
        case "conflicts":
            count = counted(len(result.conflicts), "conflict")
            return f"{what}: {count}, nothing was written; --strategy resolves conflicts"
        case "up-to-date":
            return f"{what}: nothing to do"
    verb = {"merged": "merged", "fast-forward": "moved forward"}[result.outcome]
    if result.snapshot_id is None:
        return f"{what}: would be {verb}"
    solved = f", {counted(len(result.conflicts), 'conflict')} resolved" if result.conflicts else ""
    return f"{what}: {verb}, at {result.snapshot_id}{solved}"
