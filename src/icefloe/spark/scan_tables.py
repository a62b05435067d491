"""`icefloe.spark.scan`: rows of a repository's arrays as a Spark frame, with nothing fetched in vain."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query import options as source_options
from icefloe.query.decode import ddl, quoted, spark_type
from icefloe.query.scan.plan import BATCH_ROWS, PARTITION_BYTES, Plan, plan
from icefloe.query.scan.read import read_partition
from icefloe.query.scan.reduce import Aggregation, aggregation, combined, run_partition
from icefloe.query.scan.selection import Coordinates, Selection, by_labels, by_positions
from icefloe.query.schema import Table, tables_of
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.dataframe import announced, frame_of, place_of, slots_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = Repository | Session | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Scan:
    """Rows to be read. Each method gives another scan; nothing is read before `to_df` is used."""

    spark: SparkSession
    session: Session
    table: Table
    """With the columns that are wanted."""
    coordinates: Coordinates
    """Of the whole table."""
    selection: Selection
    place: str
    """Where the repository is, and at which version, for people."""
    partition_bytes: int = PARTITION_BYTES
    batch_rows: int = BATCH_ROWS

    def sel(self, indexers: Mapping[str, Any] | None = None, **labels: Any) -> Scan:
        """The cells at some labels of coordinates: a label, a list of them, or a slice, as xarray's `sel`."""
        wanted = {**(indexers or {}), **labels}
        return replace(self, selection=by_labels(self.coordinates, self.selection, wanted))

    def isel(self, indexers: Mapping[str, Any] | None = None, **places: Any) -> Scan:
        """The cells at some positions along dimensions, as xarray's `isel`."""
        wanted = {**(indexers or {}), **places}
        return replace(self, selection=by_positions(self.table, self.selection, wanted))

    def select(self, *names: str | Iterable[str]) -> Scan:
        """Some of the columns. Variables that are not among them are not read."""
        flat = [each for name in names for each in ([name] if isinstance(name, str) else name)]
        return replace(self, table=self.table.only(flat))

    @property
    def title(self) -> str:
        """What Spark's pages show."""
        names = [column.name for column in self.table.variables]
        return title_of(self.place, self.session, self.table, names)

    def plan(self) -> Plan:
        """Which chunks are read by which task."""
        return plan(self.table, self.selection, partition_bytes=self.partition_bytes)

    def to_df(self) -> DataFrame:
        """A frame of the rows. It may be used any number of times, filtered or joined with itself."""
        announced(self.spark, [self.title])
        return self.frame()

    def frame(self) -> DataFrame:
        """The same, without a description for the jobs."""
        made = self.plan()
        read = partial(_read, self.session, made, self.batch_rows)
        return frame_of(self.spark, made.partitions, read, self.table.ddl, self.title)

    def aggregate(self, by: Iterable[str] | str = (), **results: Any) -> DataFrame:
        """Aggregates of variables over the cells, computed where the chunks are read.

        `by` names coordinates, and date parts such as `month(time)`. Results are `t2m="mean"`, several as
        `t2m=["min", "max"]` (columns t2m_min and t2m_max), or with a name of their own,
        `warmest=("t2m", "max")`: count, sum, mean, min, max, std and var, those of a sample as Spark's
        `stddev` and `variance`. Missing values count for nothing; a group without values has null. Sums are
        in double precision, in another order than Spark's: the last digits of floats may differ from it.
        """
        terms = [by] if isinstance(by, str) else list(by)
        # The plan is made for the table as a whole: a coordinate need not be selected to be a key.
        slots = slots_of(self.spark)
        order = aggregation(
            self.session, self.coordinates, self.selection, terms, results, self.partition_bytes, slots
        )
        whole = order.whole and bool(order.plan.partitions or terms)
        schema = order.schema if whole else order.partial_schema
        title = title_of(self.place, self.session, self.table, sorted({r.variable for r in order.results}))
        frame = aggregated(self.spark, self.session, order, schema, f"{title} aggregate")
        announced(self.spark, [title])
        return frame if whole else _combined(frame, order)


def aggregated(
    spark: SparkSession, session: Session, order: Aggregation, schema: pa.Schema, title: str
) -> DataFrame:
    """What tasks found, each for its groups: results or moments."""
    read = partial(_aggregate, session, order)
    return frame_of(spark, order.plan.partitions, read, ddl(schema), title)


def _combined(frame: Any, order: Aggregation) -> DataFrame:
    """Groups that came from several tasks, or from none, put together."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    keys = [quoted(key.name) for key in order.keys]
    outputs = [F.expr(text).alias(name) for text, name in combined(order)[len(keys) :]]
    joined: Any = frame.groupBy(*keys).agg(*outputs)
    fields = [f"CAST({quoted(f.name)} AS {spark_type(f.type)}) AS {quoted(f.name)}" for f in order.schema]
    return joined.selectExpr(*fields)  # type: ignore[no-any-return]


def _aggregate(session: Session, order: Aggregation, partition: int) -> Iterator[pa.RecordBatch]:
    return run_partition(session, order, partition)


def _read(session: Session, made: Plan, batch_rows: int, partition: int) -> Iterator[pa.RecordBatch]:
    return read_partition(session, made, partition, batch_rows)


def scan(
    spark: SparkSession,
    repo: Place,
    *,
    group: str = "/",
    variables: Iterable[str] | str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    version_as_of: str | None = None,
    timestamp_as_of: str | None = None,
    partition_bytes: int = PARTITION_BYTES,
    batch_rows: int = BATCH_ROWS,
    **storage_options: Any,
) -> Scan:
    """A scan of the table that a group's variables make, at the tip of main or at another version.

    `repo` is a repository, one of its sessions, or the folder or URL of one, with the options of its storage.
    A repository goes to the executors with its credentials.
    """
    version = {
        "branch": branch,
        "tag": tag,
        "snapshot": snapshot,
        "versionAsOf": version_as_of,
        "timestampAsOf": timestamp_as_of,
    }
    given = {name: value for name, value in version.items() if value is not None}
    session, place = open_session(repo, given, storage_options)
    names = [variables] if isinstance(variables, str) else variables
    table = tables_of(session, group).choose(None if names is None else list(names))
    return scan_of(spark, session, table, place, partition_bytes, batch_rows)


def scan_of(
    spark: SparkSession,
    session: Session,
    table: Table,
    place: str,
    partition_bytes: int = PARTITION_BYTES,
    batch_rows: int = BATCH_ROWS,
) -> Scan:
    """A scan of a table that is known."""
    everything = Selection.everything(table)
    coordinates = Coordinates(session, table)
    return Scan(spark, session, table, coordinates, everything, place, partition_bytes, batch_rows)


def title_of(place: str, session: Session, table: Table, variables: Sequence[str]) -> str:
    """What Spark's pages show: the repository, the ref, the snapshot and the arrays."""
    prefix = table.group.rstrip("/") + "/"
    arrays = ", ".join(prefix + name for name in variables)
    return f"{place} @ {session.snapshot_id}: {arrays or table.group}"


def open_session(
    repo: Place, version: Mapping[str, str], storage_options: Mapping[str, Any]
) -> tuple[Session, str]:
    """A read-only session, and the name of the place for people."""
    if isinstance(repo, Session):
        if version:
            raise InvalidInputError(
                "a session is one version and has no other; give the repository", kind=ErrorKind.NOT_ALLOWED
            )
        return repo, "session"
    if not isinstance(repo, Repository):
        words = {name: str(value) for name, value in storage_options.items()}
        repo = source_options.parse({"path": os.fspath(repo), **words}).open()
    ref = next(iter(version.values()), "main")
    return source_options.session_at(repo, version), f"{place_of(repo)} {ref}"
