"""Commands that summarize the values of arrays: statistics, describe."""

from __future__ import annotations

from typing import Any

import click

from icefloe._internal.amounts import counted
from icefloe._internal.executor import ThreadExecutor
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.commands.contents import find_array
from icefloe.cli.execution import repo_executor_option, with_progress
from icefloe.cli.output import CommandOutput, plain
from icefloe.cli.params import (
    complete_path,
    complete_revision,
    is_listed,
    output_option,
    repo_argument,
    revision_option,
)
from icefloe.format.snapshot import ArrayNodeData
from icefloe.repository import Repository
from icefloe.session import Session

_COLUMNS = ("array", "cells", "missing", "min", "mean", "max", "std")


@click.command()
@repo_argument
@click.argument("arrays", nargs=-1, shell_complete=complete_path)
@click.option(
    "-r",
    "--revision",
    help=f"Collect statistics of this version only: {revisions.HELP} All branches and tags by default.",
    shell_complete=complete_revision,
)
@authorize_option
@repo_executor_option
@output_option
def statistics(repo: Repository, arrays: tuple[str, ...], revision: str | None, out: CommandOutput) -> None:
    """Record chunk statistics that speed up queries.

    ARRAYS are the paths of arrays. The default is all arrays. Only chunks that have no statistics yet are
    read. Statistics are stored below icefloe/statistics/ in the repository, which other readers ignore.

    \b
    icefloe statistics data/repo
    icefloe statistics s3://bucket/era5 --executor spark
    """
    snapshot_id = revision and revisions.resolve(repo, revision)
    paths = None
    if arrays:
        session = repo.readonly_session(snapshot_id=snapshot_id or revisions.resolve(repo, "main"))
        paths = [find_array(session, path) for path in arrays]
    report = with_progress(repo, out).collect_statistics(snapshot_id=snapshot_id, arrays=paths)
    text = f"{counted(report.chunks, 'chunk')} read, {report.known} had statistics before, "
    text += f"{counted(report.files, 'file')} written"
    if report.unchecked:
        text += f"; {counted(report.unchecked, 'virtual chunk')} without a checksum cannot have statistics"
    out.value(plain(report), text)


@click.command()
@repo_argument
@click.argument("array", required=False, shell_complete=complete_path)
@revision_option
@click.option(
    "--statistics",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Use recorded chunk statistics instead of reading all chunks.",
)
@authorize_option
@output_option
def describe(repo: Repository, array: str | None, revision: str, statistics: str, out: CommandOutput) -> None:
    """Describe the values of arrays: min, mean, max, std.

    ARRAY is the path of an array. By default, all arrays are described. Values are decoded as in xarray. Only
    chunks without recorded statistics are read.

    \b
    icefloe describe data/repo
    icefloe describe data/repo t2m -r v1.0 --json
    """
    from icefloe.maintenance.statistics.describe import describe_array

    session = repo.readonly_session(snapshot_id=revisions.resolve(repo, revision))
    paths = [find_array(session, array)] if array else list_arrays(session)
    executor = ThreadExecutor()
    found = [describe_array(session, path, executor, statistics=statistics == "on") for path in paths]
    rows: list[dict[str, Any]] = []
    for each in found:
        row = {"array": each.path, "cells": each.cells, "missing": each.missing, "min": each.minimum}
        row |= {"mean": each.mean, "max": each.maximum, "std": each.std}
        if out.as_json:
            row |= {"dtype": each.dtype, "chunks": each.chunks, "chunks_read": each.chunks_read}
        else:
            row = {name: _shorten(value) for name, value in row.items()}
        rows.append(row)
    if out.as_json:
        out.value(rows)
    else:
        out.table(rows, _COLUMNS)


def _shorten(value: Any) -> Any:
    """Round a number to seven significant digits for display."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def list_arrays(session: Session) -> list[str]:
    """List the paths of all arrays, except those that icefloe uses internally."""
    workspace = session._workspace
    paths = [path for path in workspace.paths() if is_listed(path, with_ledgers=False)]
    nodes = [node for path in paths if (node := workspace.node(path)) is not None]
    return [node.path for node in nodes if isinstance(node.node_data, ArrayNodeData)]
