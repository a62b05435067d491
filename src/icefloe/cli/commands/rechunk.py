"""The command that changes the chunking of arrays: rechunk."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from icefloe._internal.amounts import counted, format_bytes
from icefloe._internal.executor import ThreadExecutor
from icefloe.cli.authorize import authorize_option
from icefloe.cli.execution import ExecutorChoice, executor_option, start_executor
from icefloe.cli.output import CommandOutput, format_value
from icefloe.cli.params import (
    Sizes,
    branch_option,
    codec_help,
    complete_path,
    dry_run_option,
    memory_option,
    message_option,
    metadata_option,
    output_option,
    repo_argument,
)
from icefloe.cli.progress import show_logs
from icefloe.repository import Repository


@click.command()
@repo_argument
@authorize_option
@click.argument("array", shell_complete=complete_path)
@click.option(
    "--chunks",
    type=Sizes(),
    help="The new chunk shape, such as time=24,lat=180, or 0=24 for dimensions without names; -1 is the"
    " whole dimension.",
)
@click.option("--shards", type=Sizes(), help="The new shard shape; no shards by default.")
@click.option("--codec", help=f"The compression: {codec_help}; unchanged by default.")
@branch_option
@message_option
@metadata_option
@memory_option
@dry_run_option
@executor_option
@output_option
def rechunk(
    repo: Repository,
    array: str,
    chunks: dict[str, int] | None,
    shards: dict[str, int] | None,
    codec: str | None,
    branch: str,
    message: str | None,
    metadata: dict[str, Any],
    memory: int,
    dry_run: bool,
    executor: ExecutorChoice,
    out: CommandOutput,
) -> int:
    """Change the chunking of an array, in one commit.

    ARRAY is the path of an array. If it is the path of a group, all of its arrays that have the given
    dimensions are changed. Other dimensions keep their chunks.

    \b
    icefloe rechunk data/repo t2m --chunks time=-1,lat=24,lon=24
    icefloe rechunk data/repo / --chunks time=24 --shards time=240 --dry-run
    """
    from icefloe.ingest import rechunk as work

    run = partial(
        work,
        repo,
        array,
        chunks=chunks,
        shards=shards,
        codec=codec,
        branch=branch,
        message=message,
        metadata=metadata,
        memory_bytes=memory << 20,
    )
    report = run(ThreadExecutor(1), dry_run=True)  # report mistakes before Spark starts
    if report.arrays:
        chosen = executor.or_default(out)
        with show_logs("icefloe.ingest", out.progress.say), start_executor(chosen, out) as running:
            report = run(running, dry_run=dry_run)
    out.value(report.to_dict(), _format_report(report.to_dict(), dry_run=dry_run))
    return 0


def _format_report(report: dict[str, Any], *, dry_run: bool) -> str:
    lines = [_array(each) for each in report["arrays"]]
    lines += [f"    {path}: has these chunks already" for path in report["unchanged"]]
    if report["arrays"] and dry_run:  # a real run has already logged the plan
        again = f", chunks read {report['read_factor']:.1f} times" if report["read_factor"] > 1.05 else ""
        aside = f", {format_bytes(report['spilled_bytes'])} spilled" if report["spilled_bytes"] else ""
        lines.append(
            f"{format_bytes(report['nbytes'])} in {counted(report['blocks'], 'block')}, "
            f"{counted(report['tasks'], 'task')} of at most {format_bytes(report['memory_bytes'])}"
            f"{again}{aside}"
        )
    if dry_run:
        lines.append("dry run: nothing was written")
    elif report["commit"] is None:
        lines.append("nothing to do")
    else:
        compared = counted(report["compared"], "new chunk")
        lines.append(f"{compared} compared with the old ones; the branch is at {report['commit']}")
    return "\n".join(map(format_value, lines))


def _array(array: dict[str, Any]) -> str:
    parts = zip(array["dims"], array["shape"], array["chunks_before"], array["chunks"], strict=True)
    inside = ", ".join(f"{dim}: {size} by {new}, was {old}" for dim, size, old, new in parts)
    shards = f" in shards of {' x '.join(map(str, array['shards']))}" if array["shards"] else ""
    return f"    {array['path']} ({inside}){shards} {array['dtype']}  {format_bytes(array['nbytes'])}"
