"""The command that extracts values at points or over zones: extract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.execution import ExecutorChoice, executor_option, start_spark
from icefloe.cli.output import CommandOutput
from icefloe.cli.params import (
    complete_file,
    isel_option,
    output_option,
    repo_argument,
    revision_option,
    sel_option,
)
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.repository import Repository

_FUNCTIONS = ("mean", "sum", "min", "max", "count")


@click.command()
@repo_argument
@click.argument("variables", nargs=-1, metavar="[VARIABLE]...")
@click.option(
    "--points",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    shell_complete=complete_file,
    help="A CSV or Parquet file of points, with one column per coordinate.",
)
@click.option(
    "--zones",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    shell_complete=complete_file,
    help="A GeoJSON file of polygons.",
)
@click.option("--group", default="/", show_default=True, help="The group that contains the variables.")
@click.option(
    "--method",
    type=click.Choice(["nearest", "linear"]),
    default="nearest",
    show_default=True,
    help="How to compute the value at a point: of the nearest cell, or interpolated.",
)
@click.option(
    "--tolerance",
    type=float,
    help="The maximum distance from a point to its nearest cell, in the units of the coordinates;"
    " unlimited by default.",
)
@click.option(
    "--by", help="The GeoJSON property with the names of the zones; by default, zones are numbered."
)
@click.option(
    "--function",
    "functions",
    type=click.Choice(_FUNCTIONS),
    multiple=True,
    default=["mean"],
    show_default=True,
    help="The aggregate to compute over each zone; can be repeated.",
)
@click.option("--weights", type=click.Choice(["area"]), help="Also weight cells by their area on the sphere.")
@sel_option
@isel_option
@click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    shell_complete=complete_file,
    help="Write the result to a Parquet or CSV file instead of printing it.",
)
@revision_option
@authorize_option
@executor_option
@output_option
def extract(
    repo: Repository,
    variables: tuple[str, ...],
    points: Path | None,
    zones: Path | None,
    group: str,
    method: str,
    tolerance: float | None,
    by: str | None,
    functions: tuple[str, ...],
    weights: str | None,
    sel: dict[str, Any],
    isel: dict[str, slice | int],
    file: Path | None,
    revision: str,
    executor: ExecutorChoice,
    out: CommandOutput,
) -> None:
    """Extract values at points, or aggregates over zones.

    VARIABLE is the name of a variable. By default, all variables of the group are extracted. Each chunk is
    read once. In aggregates over zones, each cell is weighted by the fraction of its area inside the zone.

    \b
    icefloe extract data/repo t2m --points stations.csv -f stations.parquet
    icefloe extract data/repo t2m --zones countries.geojson --by name
    """
    if (points is None) == (zones is None):
        raise click.UsageError("pass either --points or --zones")
    from icefloe.query.extract.points import plan_points
    from icefloe.query.extract.run import Extraction, collect
    from icefloe.query.extract.zones import plan_zones
    from icefloe.query.scan.plan import scan_table
    from icefloe.query.schema import find_tables

    session = repo.readonly_session(snapshot_id=revisions.resolve(repo, revision))
    scan = scan_table(session, find_tables(session, group).choose(list(variables) or None))
    scan = scan.sel(sel).isel(isel)
    if points is not None:
        job: Extraction = plan_points(scan, read_points_file(points), method, tolerance)
    else:
        results = {column.name: list(functions) for column in scan.table.variables}
        job = plan_zones(scan, zones, results, by=by, weights=weights)
    if executor.is_spark:
        from icefloe.spark.scan_tables import extract_frame  # pyspark is slow to import

        with start_spark(executor) as spark:
            table = extract_frame(spark, job).toArrow()
    else:
        table = collect(job)
    if file is None:
        out.table(table.to_pylist(), table.column_names)
        return
    write_table(table, file)
    out.value({"rows": table.num_rows, "file": str(file)}, f"{table.num_rows} rows: {file}")


def read_points_file(path: Path) -> Any:
    """Read the points to extract from a CSV or Parquet file."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        return parquet.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"the points in {path} cannot be read: {error}; expected a CSV or Parquet file",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        ) from None


def write_table(table: Any, path: Path) -> None:
    """Write extracted values to a Parquet or CSV file."""
    from pyarrow import csv, parquet

    if path.suffix == ".csv":
        csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        raise click.UsageError(f"--file must end in .parquet or .csv, not {path.suffix or path.name!r}")
