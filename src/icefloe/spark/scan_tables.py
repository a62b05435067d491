"""`icefloe.spark.scan`: read the arrays of a repository as a Spark DataFrame, fetching only the needed
chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icefloe.query.extract.points import NEAREST, PointPlan, plan_points
from icefloe.query.extract.run import Extraction, divide_blocks, read_extraction
from icefloe.query.extract.zones import plan_zones
from icefloe.query.options import AnyRepository, open_scan
from icefloe.query.scan.moments import is_wide
from icefloe.query.scan.plan import BATCH_ROWS, PARTITION_BYTES, ScanPlan, TableScan
from icefloe.query.scan.read import read_partition
from icefloe.query.scan.reduce import Aggregation, plan_aggregation, reduce_partition
from icefloe.query.spark_types import quote_name, to_ddl, to_spark_type
from icefloe.query.sql.aggregates import combine_moments
from icefloe.session import Session
from icefloe.spark.progress import describe_next_jobs
from icefloe.spark.task_frames import count_slots, make_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Scan(TableScan):
    """A lazy Spark scan of arrays as a table. Nothing is read until the DataFrame is evaluated.

    `sel`, `isel` and `select` return a narrower scan.
    """

    spark: SparkSession = field(kw_only=True)
    """The Spark session that reads the rows."""

    def to_df(self) -> DataFrame:
        """Return the rows of the scan as a Spark DataFrame.

        The DataFrame can be filtered, joined with itself, and evaluated any number of times.

        Returns
        -------
        DataFrame
            One row per cell, with a column per coordinate and per variable.
        """
        plan = self.plan()
        describe_next_jobs(self.spark, [f"{self.title} ({plan.count_chunks()})"])
        return scan_frame(self.spark, self, plan)

    def aggregate(self, by: Iterable[str] | str = (), **results: Any) -> DataFrame:
        """Aggregate variables over the cells of the scan, in the Spark tasks that read the chunks.

        Missing values are ignored. Groups without values have null results. Sums are computed in double
        precision and in a different order than in Spark, so the last digits of floats may differ.

        Parameters
        ----------
        by
            Coordinates, or date parts of them such as `month(time)`.
        **results
            The aggregates to compute: `t2m="mean"`, several as `t2m=["min", "max"]` (columns t2m_min and
            t2m_max), or with a result name, `warmest=("t2m", "max")`. The functions are count, sum, mean,
            min, max, std and var. Like Spark's `stddev` and `variance`, std and var are the sample
            statistics.

        Returns
        -------
        DataFrame
            One row per group.
        """
        terms = [by] if isinstance(by, str) else list(by)
        aggregation = plan_aggregation(self, terms, results, count_slots(self.spark))
        whole = aggregation.whole and bool(aggregation.plan.partitions or terms)
        schema = aggregation.schema if whole else aggregation.partial_schema
        title = self.title_of(sorted({result.variable for result in aggregation.results}))
        title = f"{title} ({aggregation.counts})"
        frame = aggregate_frame(self.spark, self.session, aggregation, schema, title)
        describe_next_jobs(self.spark, [title])
        return frame if whole else _combine(frame, aggregation)

    def points(self, frame: Any, *, method: str = NEAREST, tolerance: Any = None) -> DataFrame:
        """Extract the values of the scan at points, on Spark. Each chunk is read once.

        Parameters
        ----------
        frame
            A table with a column per lookup coordinate: a Spark or pandas DataFrame, an Arrow table, or a
            mapping of lists. Other columns are passed through.
        method
            `nearest` takes the value of the nearest cell; `linear` interpolates between the cells around a
            point. Latitudes and longitudes may be two-dimensional with `nearest`.
        tolerance
            With `nearest`, the maximum distance in units of the coordinate, or one per coordinate. Points
            without a cell within this distance have null values.

        Returns
        -------
        DataFrame
            One row for each combination of a point and a cell along the other dimensions.
        """
        return extract_frame(self.spark, plan_points(self._detach(), frame, method, tolerance))

    def zones(
        self, zones: Any, *, by: str | None = None, weights: str | None = None, **results: Any
    ) -> DataFrame:
        """Aggregate the variables of the scan over zones, on Spark.

        Each cell is weighted by the fraction of it that a zone covers.

        Parameters
        ----------
        zones
            GeoJSON, given as a mapping, a string or a file path; or a mask, which is an array over latitude
            and longitude with a zone number in each cell and NaN outside all zones. A mask uses whole cells.
        by
            The feature property that names a zone. Defaults to the feature's id, or its number.
        weights
            `area` also weights cells by their area on the sphere.
        **results
            Functions by variable, as in `aggregate`: mean, sum, min, max or count.

        Returns
        -------
        DataFrame
            One row for each combination of a zone and a cell along the other dimensions.
        """
        return extract_frame(self.spark, plan_zones(self._detach(), zones, results, by=by, weights=weights))

    def _detach(self) -> TableScan:
        """Return the scan without its Spark session, which cannot be sent to tasks."""
        return TableScan(**{each.name: getattr(self, each.name) for each in fields(TableScan)})


def extract_frame(spark: SparkSession, job: Extraction) -> DataFrame:
    """Create a Spark DataFrame of values extracted at points or aggregated over zones."""
    title = f"{job.scan.title} {'points' if isinstance(job, PointPlan) else 'zones'}"
    describe_next_jobs(spark, [title])
    tasks = divide_blocks(job, count_slots(spark))

    def read(number: int) -> Iterator[pa.RecordBatch]:
        return read_extraction(job, tasks[number])

    return make_frame(spark, len(tasks), read, to_ddl(job.schema), title)


def scan(
    spark: SparkSession,
    repo: AnyRepository,
    *,
    group: str = "/",
    variables: Iterable[str] | str | None = None,
    columns: Iterable[str] | str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    partition_bytes: int = PARTITION_BYTES,
    batch_rows: int = BATCH_ROWS,
    storage_options: Mapping[str, Any] | None = None,
    statistics: bool = True,
) -> Scan:
    """Scan the variables of a group as a table, on Spark.

    Parameters
    ----------
    spark
        The Spark session to read with.
    repo
        A repository, one of its sessions, or a path or URL. A repository is sent to the executors with its
        credentials.
    group
        Path of the group.
    variables
        Variables to read. They must have the same dimensions. All by default.
    columns
        The columns to return; by default all coordinates and variables. Other variables are not read.
    branch, tag, snapshot_id
        The version to read; the tip of `main` by default. Not allowed if `repo` is a session.
    as_of
        Read the branch as of this time.
    partition_bytes
        Approximate size of the rows that a task reads.
    batch_rows
        Number of rows per batch passed to Spark.
    storage_options
        Storage options, such as `region`, if `repo` is a path or URL.
    statistics
        Use chunk statistics instead of reading chunks wherever the result is the same.

    Returns
    -------
    Scan
        The scan. Narrow it with `sel`, `isel` and `select`, and read it with `to_df`.

    Raises
    ------
    InvalidInputError
        If the variables do not form one table, or a session is given together with a version.
    """
    version = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    found = open_scan(
        Scan,
        repo,
        group=group,
        variables=variables,
        version=version,
        storage_options=storage_options,
        statistics=statistics,
        partition_bytes=partition_bytes,
        batch_rows=batch_rows,
        spark=spark,
    )
    return found if columns is None else found.select([columns] if isinstance(columns, str) else columns)


def scan_frame(spark: SparkSession, scan: TableScan, plan: ScanPlan | None = None) -> DataFrame:
    """Create a Spark DataFrame of the rows of a scan, optionally using an existing plan."""
    plan = scan.plan() if plan is None else plan
    read = partial(read_partition, scan.session, plan, batch_rows=scan.batch_rows)
    return make_frame(spark, plan.partitions, read, scan.table.ddl, scan.title)


def aggregate_frame(
    spark: SparkSession, session: Session, aggregation: Aggregation, schema: pa.Schema, title: str
) -> DataFrame:
    """Create a Spark DataFrame of the aggregates or moments that tasks compute per group of cells."""
    read = partial(reduce_partition, session, aggregation)
    return make_frame(spark, aggregation.tasks, read, to_ddl(schema), f"{title} aggregate")


def _combine(frame: Any, aggregation: Aggregation) -> DataFrame:
    """Merge the moments of groups that are split among several tasks."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    keys = [quote_name(key.name) for key in aggregation.keys]
    outputs = [
        F.expr(
            combine_moments(
                each.function, each.variable, wide=is_wide(aggregation.plan.table.column(each.variable).arrow)
            )
        ).alias(each.name)
        for each in aggregation.results
    ]
    joined: Any = frame.groupBy(*keys).agg(*outputs)
    fields = [
        f"CAST({quote_name(f.name)} AS {to_spark_type(f.type)}) AS {quote_name(f.name)}"
        for f in aggregation.schema
    ]
    return joined.selectExpr(*fields)  # type: ignore[no-any-return]
