"""The command sql: questions to repositories, answered by Spark."""

from __future__ import annotations

from functools import partial

import click

from icefloe import storage_from_url
from icefloe.cli.authorize import authorize_prefixes, authorized
from icefloe.cli.execution import SparkChoice, running_spark
from icefloe.cli.output import Output
from icefloe.cli.params import opened, output_option


@click.command()
@click.argument("query")
@click.option(
    "--repo", "repos", multiple=True, required=True, metavar="NAME=PLACE", help="A repository, by a name."
)
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows at most.")
@click.option("--master", default="local[*]", show_default=True, help="The Spark that answers.")
@authorize_prefixes
@output_option
def sql(
    query: str, repos: tuple[str, ...], limit: int, master: str, prefixes: tuple[str, ...], out: Output
) -> None:
    """Answer a query over repositories, on a Spark that is started for it.

    Options of a storage stand in its URL: s3://bucket/era5?region=eu-west-1.

    \b
    icefloe sql "SELECT kind, count(*) FROM r.chunks GROUP BY kind" --repo r=data/repo
    icefloe sql "SELECT avg(t2m) FROM era5 VERSION AS OF 'v1'" --repo era5=s3://bucket/era5
    """
    places = {}
    for text in repos:
        name, equals, place = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=PLACE", param_hint="--repo")
        # What is not there is told before Spark is started.
        places[name] = authorized(opened(storage_from_url(place)), prefixes)
    with running_spark(SparkChoice(master)) as session:
        from icefloe.spark.run_sql import run_query  # pyspark takes its time to import

        told = partial(out.progress, "tasks")
        columns, rows = run_query(session, query, places, limit, told)
    out.table((dict(zip(columns, row, strict=True)) for row in rows), columns)
