"""The command that runs SQL queries with Spark: sql."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from icefloe import storage_from_url
from icefloe.cli.authorize import authorize, authorize_prefixes
from icefloe.cli.execution import ExecutorChoice, executor_option, start_spark
from icefloe.cli.output import CommandOutput
from icefloe.cli.params import Pair, cache_option, open_repository, output_option

if TYPE_CHECKING:
    from icefloe.query.sql.relations import TableReads


@click.command()
@click.argument("repos", type=Pair("NAME=REPO"), nargs=-1, required=True, metavar="NAME=REPO...")
@click.argument("query")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="The maximum number of rows to print.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Do not run the query. Count the chunks that it would skip, answer from statistics, and read.",
)
@click.option(
    "--statistics",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Use recorded chunk statistics instead of reading chunks where possible.",
)
@authorize_prefixes
@executor_option
@cache_option
@output_option
def sql(
    repos: tuple[tuple[str, str], ...],
    query: str,
    limit: int,
    explain: bool,
    statistics: str,
    prefixes: tuple[str, ...],
    executor: ExecutorChoice,
    out: CommandOutput,
) -> None:
    """Run a SQL query over repositories.

    QUERY refers to the repository REPO as NAME. Add storage options to the URL, such as
    s3://bucket/era5?region=eu-west-1. With --executor threads, a built-in engine runs simple queries on a
    single table without starting Spark.

    On Spark, MERGE, UPDATE, DELETE and INSERT change arrays in one commit, and CREATE and DROP change
    branches and tags.

    \b
    icefloe sql r=data/repo "SELECT kind, count(*) FROM r.chunks GROUP BY kind"
    icefloe sql r=data/repo --executor threads "SELECT max(t2m) FROM r"
    icefloe sql r=data/repo --explain "SELECT count(*) FROM r WHERE t2m > 310"
    icefloe sql r=s3://bucket/repo "SELECT avg(t2m) FROM r VERSION AS OF 'v1'"
    icefloe sql r=data/repo "UPDATE r SET t2m = NULL WHERE t2m > 400"
    """
    if executor.text and not executor.is_spark and executor.text != "threads":
        raise click.UsageError(
            "SQL queries run only on Spark or in this process; pass --executor spark or threads"
        )
    # Report mistakes before Spark starts.
    opened: dict[str, Any] = {
        name: authorize(open_repository(storage_from_url(location)), prefixes) for name, location in repos
    }
    used = statistics == "on"
    if executor.text == "threads":
        from icefloe.query.local.results import to_rows
        from icefloe.query.local.sql import run_local_query

        answer = run_local_query(query, opened, limit, statistics=used, explain=explain)
        if explain:
            show_reads([answer.reads], out)
        else:
            out.table(to_rows(answer.table), answer.table.schema.names)
        return
    with start_spark(executor) as session:
        from icefloe.spark.run_sql import explain_query, run_query  # pyspark is slow to import

        if explain:
            show_reads(explain_query(session, query, opened, statistics=used), out)
            return
        progress = partial(out.progress, "tasks")
        columns, rows = run_query(session, query, opened, limit, progress, statistics=used)
    out.table((dict(zip(columns, row, strict=True)) for row in rows), columns)


def show_reads(reads: Sequence[TableReads], out: CommandOutput) -> None:
    """Print how many chunks of each table a query skips, computes from statistics, and reads."""
    rows = [
        {
            "table": each.table,
            "method": each.method,
            "chunks": each.counts.chunks,
            "skipped": each.counts.skipped,
            "from_statistics": each.counts.answered,
            "read": each.counts.read,
        }
        for each in reads
    ]
    out.table(rows, ("table", "method", "chunks", "skipped", "from_statistics", "read"))
