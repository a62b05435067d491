"""`icefloe.spark.write`: write the rows of a DataFrame into arrays, in one atomic commit."""

from __future__ import annotations

import math
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from icefloe.conflicts import ConflictSolver
from icefloe.distributed import receipt
from icefloe.errors import IcechunkError
from icefloe.maintenance.statistics.collect import Collected, record_statistics
from icefloe.query.decode import Values
from icefloe.query.encode import merge_keys
from icefloe.query.options import describe_location, open_repository
from icefloe.query.spark_types import quote_name
from icefloe.query.write.blocks import BLOCK, CELL, CLAUSE, place_rows, write_sorted
from icefloe.query.write.idempotency import CommitRequest, parse_solver
from icefloe.query.write.job import WriteJob, find_keys
from icefloe.query.write.target import APPEND, FAIL, Template, WriteTarget, index_by_variable
from icefloe.repository import Repository
from icefloe.session import ForkSession
from icefloe.spark.errors import unwrap_errors
from icefloe.spark.progress import describe_jobs
from icefloe.spark.task_frames import convert_schema, map_in_arrow
from icefloe.spark.worker import VERSION, check_version, hide_tracebacks, pack_outcome, unpack_outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Written = tuple[bytes, tuple[Collected, ...], Counter[int]]
"""The receipt of a write task, the statistics of the chunks it wrote, and its row count per clause."""


def write(
    df: DataFrame,
    repo: Repository | str | os.PathLike[str],
    *,
    group: str = "/",
    branch: str = "main",
    mode: str = APPEND,
    dims: Iterable[str] | None = None,
    chunks: Mapping[str, int] | None = None,
    dtype: Mapping[str, str] | str | None = None,
    fill_value: Mapping[str, Any] | float | None = None,
    append_dim: str | None = None,
    late: str = FAIL,
    message: str = "written by Spark",
    metadata: Mapping[str, Any] | None = None,
    txn_app_id: str | None = None,
    txn_version: str | int | None = None,
    solver: str | ConflictSolver | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Shuffle the rows of a Spark DataFrame by chunk, and write them into arrays in one atomic commit.

    The DataFrame is evaluated twice: once for its coordinates, and once for its rows, which are shuffled so
    that each chunk is written by exactly one task. Cache a DataFrame that is expensive to compute.

    Parameters
    ----------
    df
        The rows, with a column per dimension and per variable.
    repo
        A repository, or its path or URL.
    group
        Path of the group that contains the arrays.
    branch
        The branch to commit to.
    mode
        `append` sets the cells at the coordinates of the rows and keeps all others; coordinates beyond the
        end of `append_dim` extend it. `overwrite` replaces the variables that occur in the rows.
    dims
        Names of the dimensions. Defaults to those of the existing arrays.
    chunks
        Chunk length per dimension, for new arrays.
    dtype
        Data type of new arrays: one for all, or one per variable.
    fill_value
        Fill value of new arrays, which represents null: one for all, or one per variable.
    append_dim
        The dimension that may grow. Defaults to the first dimension.
    late
        How to handle late rows, whose coordinate is new but lies before the end of that dimension: `fail`,
        `drop`, or `insert`, which keeps the dimension sorted and rewrites everything after the first new
        coordinate.
    message
        Commit message.
    metadata
        Commit metadata.
    txn_app_id, txn_version
        Application name and version of this run, which form an idempotency key. Running a job again with the
        same pair commits nothing.
    solver
        What to do if another writer has committed: `none`, `detect` (the default: rebase if nothing
        conflicts), `ours`, `theirs`, `append` (keep the rows that both appended along `append_dim`), or a
        conflict solver.
    storage_options
        Storage options, such as `region`, if `repo` is a path or URL.

    Returns
    -------
    str
        The id of the commit, or of the tip of the branch if there are no rows.

    Raises
    ------
    InvalidInputError
        If a row has a null coordinate, two rows refer to the same cell, or an array cannot store a value.
    ConflictError
        If another writer changed the same chunks.
    """
    version = None if txn_version is None else str(txn_version)
    request = CommitRequest(branch, message, dict(metadata or {}), txn_app_id, version, parse_solver(solver))
    template = Template(
        tuple(dims) if dims is not None else None,
        dict(chunks or {}),
        index_by_variable(dtype),
        index_by_variable(fill_value),
        append_dim,
        late,
    )
    job = WriteJob(group, mode, template, request)
    opened = open_repository(repo, storage_options)
    session = job.start(opened)
    if (done := request.find_commit(opened)) is not None:
        return done
    spark: Any = df.sparkSession
    title = f"write {', '.join(df.columns)} to {branch} of {describe_location(opened)}{group}"
    with describe_jobs(spark, title), unwrap_errors():
        names = job.dims(session, df.columns)
        keys = collect_keys(df, names)
        if any(not len(each) for each in keys.values()):
            return session.snapshot_id
        target = job.prepare(session, convert_schema(df.schema), names, keys)
        written = write_blocks(df, target, session.fork())
        session._merge_receipts([each for each, *_ in written])
    commit = job.commit_once(opened, session, names)
    record_statistics(session, (found for _, statistics, _ in written for found in statistics))
    return commit


def collect_keys(df: DataFrame, dims: tuple[str, ...]) -> dict[str, Values]:
    """Collect the distinct coordinates in a DataFrame, per dimension."""
    driver = VERSION

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_version(driver)
        yield run_task(_find_keys, batches, dims)

    frame: Any = df.select(*(quote_name(dim) for dim in dims))
    parts = [unpack_outcome(row["answer"]) for row in map_in_arrow(frame, run, "answer binary").collect()]
    return {dim: merge_keys([part[dim] for part in parts]) for dim in dims}


def _find_keys(batches: Iterator[pa.RecordBatch], dims: tuple[str, ...]) -> dict[str, Values]:
    parts = [find_keys([batch], dims) for batch in batches]
    return {dim: merge_keys([part[dim] for part in parts]) for dim in dims}


def write_blocks(df: DataFrame, target: WriteTarget, fork: ForkSession) -> list[Written]:
    """Shuffle the rows of a DataFrame by block and write them on executors, each block in a single task.
    Return receipts and statistics.
    """
    clause = [CLAUSE] if target.clauses else []
    names = [*clause, *(variable.name for variable in target.variables)]
    frame: Any = df.select(*(quote_name(name) for name in (*target.dims, *names)))
    fields = [StructField(BLOCK, LongType()), StructField(CELL, LongType())]
    keyed_as = StructType(fields + [df.schema[name] for name in names])
    pickled, driver = pickle.dumps((fork, target)), VERSION

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with hide_tracebacks():
            check_version(driver)
            _, goal = pickle.loads(pickled)
            for batch in batches:
                yield place_rows(goal, batch)

    def put(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Each attempt has its own fork, so receipts never contain chunks from failed or slower attempts.
        yield run_task(_write_partition, batches, pickle.loads(pickled))

    spark: Any = df.sparkSession
    tasks = max(min(int(spark.conf.get("spark.sql.shuffle.partitions")), math.prod(target.grid)), 1)
    keyed: Any = map_in_arrow(frame, place, keyed_as)  # type: ignore[arg-type]
    rows = keyed.repartition(tasks, BLOCK).sortWithinPartitions(BLOCK)
    # Collect the DataFrame only once: Spark would write again each time it is used.
    return [unpack_outcome(row["answer"]) for row in map_in_arrow(rows, put, "answer binary").collect()]


def _write_partition(batches: Iterator[pa.RecordBatch], goal: tuple[ForkSession, WriteTarget]) -> Written:
    fork, target = goal
    counts: Counter[int] = Counter()

    def count_rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if target.clauses:
                counts.update(batch.column(CLAUSE).to_pylist())
            yield batch

    statistics = write_sorted(fork, target, count_rows())
    return receipt(fork), statistics, counts


def run_task(function: Any, batches: Iterator[pa.RecordBatch], goal: Any) -> pa.RecordBatch:
    """Run the body of a Spark write task. Errors are returned as values, so that Spark does not retry the
    task.
    """
    packed = pack_outcome(partial(function, batches, goal), IcechunkError)
    return pa.RecordBatch.from_pydict({"answer": pa.array([packed], pa.binary())})
