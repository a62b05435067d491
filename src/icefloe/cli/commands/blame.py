"""Commands that find the commits behind data: blame, bisect."""

from __future__ import annotations

import click

from icefloe.cli import revisions
from icefloe.cli.output import Output
from icefloe.cli.params import complete_path, output_option, repo_argument, revision_option
from icefloe.repository import Repository


@click.command()
@repo_argument
@click.argument("path", shell_complete=complete_path)
@revision_option
@click.option("-n", "--number", type=click.IntRange(min=1), help="The largest number of commits to look at.")
@output_option
def blame(repo: Repository, path: str, revision: str, number: int | None, out: Output) -> None:
    """Show the commit that wrote each chunk of an array.

    PATH is an array. Chunks that were moved keep their writer, and chunks that came with a merge have that of
    the merged branch. Writers that expired, or lie beyond the number of commits, are shown as older.

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
