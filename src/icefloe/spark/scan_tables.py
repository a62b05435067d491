"""`icefloe.spark.scan`: read arrays of a repository as a Spark data frame, with only the needed chunks."""

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
    """A lazy scan of the tables that arrays form, with Spark. Nothing is read until its data frame is used.

    `sel`, `isel` and `select` return a narrower scan.
    """

    spark: SparkSession = field(kw_only=True)
    """The Spark session that reads the rows."""

    def to_df(self) -> DataFrame:
        """Return the rows of a scanned table as a Spark data frame.

        The data frame can be used any number of times, filtered, and joined with itself.

        Returns
        -------
        DataFrame
            A row per cell, with a column per coordinate and per variable.
        """
        plan = self.plan()
        describe_next_jobs(self.spark, [f"{self.title} ({plan.count_chunks()})"])
        return scan_frame(self.spark, self, plan)

    def aggregate(self, by: Iterable[str] | str = (), **results: Any) -> DataFrame:
        """Aggregate variables over the cells of a scanned table on Spark, in the tasks that read the chunks.

        Missing values are ignored; the result of a group without values is null. Sums are computed in double
        precision and in a different order than Spark's, so the last digits of floats may differ.

        Parameters
        ----------
        by
            Coordinates, or date parts of them such as `month(time)`.
        **results
            The aggregates to compute: `t2m="mean"`, several as `t2m=["min", "max"]` (columns t2m_min and
            t2m_max), or with a name, `warmest=("t2m", "max")`. Functions are count, sum, mean, min, max,
            std and var; std and var are those of a sample, as Spark's `stddev` and `variance`.

        Returns
        -------
        DataFrame
            A row per group.
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
        """Read the values at points of a scanned table with Spark. Each chunk is read once.

        Parameters
        ----------
        frame
            A table with a column per coordinate that is looked up: a data frame of Spark or pandas, an Arrow
            table, or a mapping of lists. Other columns are passed on.
        method
            `nearest` takes the value of the nearest cell, `linear` interpolates between the cells around a
            point. Latitudes and longitudes may be two-dimensional with `nearest`.
        tolerance
            With `nearest`, the maximum distance in units of the coordinate, or one per coordinate. Points
            without a cell within this distance have null values.

        Returns
        -------
        DataFrame
            A row per point and cell of the other dimensions.
        """
        return extract_frame(self.spark, plan_points(self._detach(), frame, method, tolerance))

    def zones(
        self, zones: Any, *, by: str | None = None, weights: str | None = None, **results: Any
    ) -> DataFrame:
        """Aggregate variables of a scanned table over zones with Spark.

        Cells are weighted by the fraction that a zone covers.

        Parameters
        ----------
        zones
            GeoJSON as a mapping, as text or as the path of a file; or a mask, an array over latitude and
            longitude with the number of a zone in each cell and NaN outside, which uses whole cells.
        by
            The property that names a zone. By default the id of a feature, or its number.
        weights
            `area` also weights cells by their area on the sphere.
        **results
            Functions by variable, as in `aggregate`: mean, sum, min, max or count.

        Returns
        -------
        DataFrame
            A row per zone and cell of the other dimensions.
        """
        return extract_frame(self.spark, plan_zones(self._detach(), zones, results, by=by, weights=weights))

    def _detach(self) -> TableScan:
        """Return the scan without its Spark session, because a session cannot be sent to tasks."""
        return TableScan(**{each.name: getattr(self, each.name) for each in fields(TableScan)})


def extract_frame(spark: SparkSession, job: Extraction) -> DataFrame:
    """Create a Spark data frame of the values of a scanned table at points or over zones."""
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
    """Scan the variables of a group as a table, with Spark.

    Parameters
    ----------
    spark
        The session that reads.
    repo
        A repository, one of its sessions, or a path or URL. A repository is sent to the executors with its
        credentials.
    group
        Path of the group.
    variables
        Variables to read. They must have the same dimensions. All by default.
    columns
        Columns of the rows; by default all coordinates and variables. Other variables are not read.
    branch, tag, snapshot_id
        The version to read: the tip of `main` by default. Not with a session.
    as_of
        Read the branch as it was at this time.
    partition_bytes
        Approximate size of the rows that a task reads.
    batch_rows
        Number of rows that are passed to Spark at a time.
    storage_options
        Options of the storage if `repo` is a path or URL, such as `region`.
    statistics
        Use statistics of chunks instead of reading them, where that gives the same result.

    Returns
    -------
    Scan
        The scan, which `sel`, `isel` and `select` narrow and `to_df` reads.

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
    """Create a Spark data frame of the rows of a scanned table, optionally with an existing plan."""
    plan = scan.plan() if plan is None else plan
    read = partial(read_partition, scan.session, plan, batch_rows=scan.batch_rows)
    return make_frame(spark, plan.partitions, read, scan.table.ddl, scan.title)


def aggregate_frame(
    spark: SparkSession, session: Session, aggregation: Aggregation, schema: pa.Schema, title: str
) -> DataFrame:
    """Create a Spark data frame of the aggregates or moments that tasks compute for groups of cells."""
    read = partial(reduce_partition, session, aggregation)
    return make_frame(spark, aggregation.tasks, read, to_ddl(schema), f"{title} aggregate")


def _combine(frame: Any, aggregation: Aggregation) -> DataFrame:
    """Combine the moments of groups that are divided among tasks."""
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
