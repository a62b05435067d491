"""The command that cuts arrays of a repository in another way."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from icefloe._internal.amounts import bytes_text, counted
from icefloe._internal.executor import ThreadExecutor
from icefloe.cli.commands.ingest import cells, metadata_of
from icefloe.cli.complete import complete_array, complete_branch
from icefloe.cli.execution import SparkChoice, running_executor, spark_options
from icefloe.cli.output import Output, shown
from icefloe.cli.params import output_option, repo_argument
from icefloe.cli.progress import show_logs
from icefloe.repository import Repository


@click.command()
@repo_argument
@click.argument("array", shell_complete=complete_array)
@click.option(
    "--chunks",
    help="Cells per chunk, such as time=24,lat=180, or 0=24 for dimensions without names; -1 is all of them.",
)
@click.option("--shards", help="Cells per shard; without it there are no shards afterwards.")
@click.option("--codec", help="zstd:LEVEL, blosc:NAME:LEVEL, gzip:LEVEL, none; without it codecs stay.")
@click.option("--branch", default="main", show_default=True, shell_complete=complete_branch)
@click.option("-m", "--message", help="The message of the commit.")
@click.option("--metadata", multiple=True, metavar="NAME=VALUE", help="More metadata of the commit.")
@click.option(
    "--memory", default=256, show_default=True, type=click.IntRange(min=1), help="MiB that a task may hold."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@spark_options
@output_option
def rechunk(
    repo: Repository,
    array: str,
    chunks: str | None,
    shards: str | None,
    codec: str | None,
    branch: str,
    message: str | None,
    metadata: tuple[str, ...],
    memory: int,
    dry_run: bool,
    spark: SparkChoice,
    out: Output,
) -> int:
    """Cut an array in another way, in parallel, in one commit.

    ARRAY is the path of an array, or of a group: then all of its arrays that have the
    dimensions. Dimensions that are not named keep their chunks.

    \b
    icefloe rechunk data/repo t2m --chunks time=-1,lat=24,lon=24
    icefloe rechunk data/repo / --chunks time=24 --shards time=240 --codec zstd:9 --dry-run
    """
    from icefloe.ingest import rechunk as work

    order = partial(
        work,
        repo,
        array,
        chunks=cells(chunks, "chunks") if chunks else None,
        shards=cells(shards, "shards") if shards else None,
        codec=codec,
        branch=branch,
        message=message,
        metadata=metadata_of(metadata),
        memory_bytes=memory << 20,
    )
    report = order(ThreadExecutor(1), dry_run=True)  # what is wrong, or done already, is told without Spark
    if report.arrays:
        with show_logs("icefloe.ingest", out.progress.say), running_executor(spark, out) as (executor, _):
            report = order(executor, dry_run=dry_run)
    out.value(report.to_dict(), _text(report.to_dict(), dry_run=dry_run))
    return 0


def _text(report: dict[str, Any], *, dry_run: bool) -> str:
    lines = [_array(each) for each in report["arrays"]]
    lines += [f"    {path}: is cut like that already" for path in report["unchanged"]]
    if report["arrays"] and dry_run:  # else it was told
        again = f", chunks read {report['read_factor']:.1f} times" if report["read_factor"] > 1.05 else ""
        aside = f", {bytes_text(report['aside_bytes'])} put aside in between" if report["aside_bytes"] else ""
        lines.append(
            f"{bytes_text(report['nbytes'])} in {counted(report['blocks'], 'block')}, "
            f"{counted(report['tasks'], 'task')} of at most {bytes_text(report['memory_bytes'])}"
            f"{again}{aside}"
        )
    if dry_run:
        lines.append("nothing was written: a dry run")
    elif report["commit"] is None:
        lines.append("nothing to do")
    else:
        compared = counted(report["compared"], "new chunk")
        lines.append(f"{compared} compared; the branch is at {report['commit']}")
    return "\n".join(map(shown, lines))


def _array(array: dict[str, Any]) -> str:
    parts = zip(array["dims"], array["shape"], array["chunks_before"], array["chunks"], strict=True)
    inside = ", ".join(f"{dim}: {size} by {new}, was {old}" for dim, size, old, new in parts)
    shards = f" in shards of {' x '.join(map(str, array['shards']))}" if array["shards"] else ""
    return f"    {array['path']} ({inside}){shards} {array['dtype']}  {bytes_text(array['nbytes'])}"
