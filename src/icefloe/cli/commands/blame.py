"""Commands that find out which commit wrote or changed data: blame, bisect."""

from __future__ import annotations

from typing import Any

import click

from icefloe.cli import revisions
from icefloe.cli.output import CommandOutput, format_value
from icefloe.cli.params import (
    LabelsAt,
    complete_path,
    complete_revision,
    make_branch_option,
    output_option,
    repo_argument,
    revision_option,
)
from icefloe.repository import Repository


@click.command()
@repo_argument
@click.argument("path", shell_complete=complete_path)
@revision_option
@click.option("-n", "--number", type=click.IntRange(min=1), help="The maximum number of commits to search.")
@output_option
def blame(repo: Repository, path: str, revision: str, number: int | None, out: CommandOutput) -> None:
    """Show which commit wrote each chunk of an array.

    PATH is the path of an array. Moving a chunk does not count as writing it. For merged chunks, the commit
    on the merged branch is shown. Chunks are shown as "older" if their commit has expired or was not
    searched.

    \b
    icefloe blame data/repo t2m
    icefloe blame data/repo t2m -r v1.0 --json
    """
    from icefloe.comparison.blame import blame as find_writers

    snapshot_id = revisions.resolve(repo, revision)
    found = find_writers(repo, path, snapshot_id=snapshot_id, limit=number)
    rows = (
        {
            "chunk": chunk,
            "snapshot_id": row["snapshot_id"],
            "written_at": row["written_at"],
            "message": row["message"],
            "merged_by": row["merged_by"],
        }
        for chunk, row in zip(found.coords.tolist(), found.table().rows(), strict=True)
    )
    out.table(rows, ["chunk", "snapshot_id", "written_at", "message", "merged_by"])


@click.command()
@repo_argument
@click.argument("array", shell_complete=complete_path)
@click.option(
    "--at", type=LabelsAt(), help="The part of the array to check, by labels, such as time=2024-01-01,lat=45."
)
@click.option("--when", required=True, help="The condition, such as 'max > 310' or 'missing == 0'.")
@click.option(
    "--from",
    "oldest",
    help="The oldest version to search; the first commit by default.",
    shell_complete=complete_revision,
)
@click.option(
    "--to",
    "newest",
    help="The newest version to search; the tip of --branch by default.",
    shell_complete=complete_revision,
)
@make_branch_option("to search")
@output_option
def bisect(
    repo: Repository,
    array: str,
    at: dict[str, Any] | None,
    when: str,
    oldest: str | None,
    newest: str | None,
    branch: str,
    out: CommandOutput,
) -> None:
    """Find the commit at which a condition became true or false.

    ARRAY is the path of the array. A condition compares min, max, mean, sum, count or missing with a number.
    For a single cell, it can also use value. Comparisons can be combined with and, or and not. The history is
    searched by bisection.

    \b
    icefloe bisect data/repo t2m --when 'max > 310'
    icefloe bisect data/repo t2m --at time=2024-01-15,lat=45 --when 'value < 9'
    """
    from icefloe.comparison.bisect import bisect as search

    found = search(
        repo,
        array,
        when,
        at=at,
        branch=branch,
        from_snapshot_id=None if oldest is None else revisions.resolve(repo, oldest),
        to_snapshot_id=None if newest is None else revisions.resolve(repo, newest),
    )
    commit = found.commit
    document = {
        "snapshot_id": commit.id,
        "before": found.before,
        "written_at": commit.written_at.isoformat(),
        "message": commit.message,
        "holds": found.holds,
        "statistics": {name: list(pair) for name, pair in found.statistics.items()},
        "versions_read": found.versions_read,
    }
    lines = [f"{commit.id}  {commit.written_at:%Y-%m-%d %H:%M}  {commit.message}"]
    for name, (old, new) in found.statistics.items():
        lines.append(f"    {name}: {_number(old)} before, {_number(new)} since")
    lines.append(f"    `{when}` {'holds' if found.holds else 'does not hold'} since this commit")
    out.value(document, "\n".join(map(format_value, lines)))


def _number(value: float | None) -> str:
    return "no such data" if value is None else f"{value:g}"
