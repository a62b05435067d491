"""`icefloe.spark.write`: the rows of a frame become cells of arrays, in one commit or in none."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from icefloe.conflicts import ConflictSolver
from icefloe.distributed import receipt
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.query.decode import quoted
from icefloe.query.encode import Values, keys_of, unique_keys
from icefloe.query.options import parse
from icefloe.query.write.blocks import BLOCK, CELL, placed, write_sorted
from icefloe.query.write.idempotency import CommitOrder, check_branch, commit_once, committed, solver_of
from icefloe.query.write.target import APPEND, OVERWRITE, Target, Template, dims_for, prepare
from icefloe.repository import Repository
from icefloe.session import ForkSession
from icefloe.spark.dataframe import arrow_schema, described, map_in_arrow, place_of, plain_errors
from icefloe.spark.worker import VERSION, check_version, readable_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    message: str = "written by Spark",
    metadata: Mapping[str, Any] | None = None,
    txn_app_id: str | None = None,
    txn_version: str | int | None = None,
    solver: str | ConflictSolver | None = None,
    **storage_options: Any,
) -> str:
    """Write rows with a column per dimension and per variable; the id of the commit.

    `append` sets the cells at the coordinates of the rows, and the others keep their values; coordinates
    after the end of `append_dim` (the first dimension) make it longer. `overwrite` makes the named variables
    anew. Arrays that are not there are made with the given dimensions, chunks, types and fill values.

    The frame is read twice: for its coordinates, and then for its rows, which are shuffled so that each chunk
    is written by one task. With `txn_app_id` and `txn_version` a job that is run again commits nothing more.
    When another writer was faster, `solver` decides: none, detect (the default), ours, theirs or an object.
    """
    if mode not in (APPEND, OVERWRITE):
        raise InvalidInputError(f"mode must be append or overwrite, not {mode!r}", kind=ErrorKind.NOT_ALLOWED)
    opened = repo if isinstance(repo, Repository) else _opened(repo, storage_options)
    check_branch(opened, branch)
    version = None if txn_version is None else str(txn_version)
    order = CommitOrder(branch, message, dict(metadata or {}), txn_app_id, version, solver_of(solver))
    done = committed(opened, order)
    if done is not None:
        return done
    template = Template(
        tuple(dims) if dims is not None else None,
        dict(chunks or {}),
        _by_variable(dtype),
        _by_variable(fill_value),
        append_dim,
    )
    session = opened.writable_session(branch)
    spark: Any = df.sparkSession
    title = f"write {', '.join(df.columns)} to {branch} of {place_of(opened)}{group}"
    with described(spark, title), plain_errors():
        chosen = dims_for(session, group, df.columns, template)
        keys = _keys(df, chosen)
        if any(not len(each) for each in keys.values()):
            return session.snapshot_id
        schema = arrow_schema(df.schema)
        target = prepare(session, group, schema, chosen, keys, template, mode)
        session.merge_receipts(_receipts(df, target, session.fork()))
    return commit_once(opened, session, order)


def _opened(repo: str | os.PathLike[str], storage_options: Mapping[str, Any]) -> Repository:
    words = {name: str(value) for name, value in storage_options.items()}
    return parse({"path": os.fspath(repo), **words}).open()


def _by_variable(given: Any) -> dict[str, Any]:
    """Something for each variable, or one thing for all."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {"": given}


def _keys(df: DataFrame, dims: tuple[str, ...]) -> dict[str, Values]:
    """The coordinates that the rows have, per dimension."""
    driver = VERSION

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_version(driver)
        yield _packed(_found_keys, batches, dims)

    frame: Any = df.select(*(quoted(dim) for dim in dims))
    parts = [_unpacked(row) for row in map_in_arrow(frame, run, "answer binary").collect()]
    return {dim: unique_keys([part[dim] for part in parts if len(part[dim])]) for dim in dims}


def _found_keys(batches: Iterator[pa.RecordBatch], dims: tuple[str, ...]) -> dict[str, Values]:
    found: dict[str, list[Values]] = {dim: [] for dim in dims}
    for batch in batches:
        for dim in dims:
            found[dim].append(unique_keys([keys_of(batch.column(dim), dim)]))
    return {dim: unique_keys(parts) for dim, parts in found.items()}


def _receipts(df: DataFrame, target: Target, fork: ForkSession) -> list[bytes]:
    """Have the rows written by the executors, a block by one task; what they did."""
    names = [variable.name for variable in target.variables]
    frame: Any = df.select(*(quoted(name) for name in (*target.dims, *names)))
    fields = [StructField(BLOCK, LongType()), StructField(CELL, LongType())]
    keyed_as = StructType(fields + [df.schema[name] for name in names])
    pickled, driver = pickle.dumps((fork, target)), VERSION

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with readable_errors():
            check_version(driver)
            _, goal = pickle.loads(pickled)
            for batch in batches:
                yield placed(goal, batch)

    def put(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Each attempt has a fork of its own: what a failed or a slower one wrote is in no receipt.
        yield _packed(_written, batches, pickle.loads(pickled))

    spark: Any = df.sparkSession
    tasks = max(min(int(spark.conf.get("spark.sql.shuffle.partitions")), _blocks(target)), 1)
    keyed: Any = map_in_arrow(frame, place, keyed_as)  # type: ignore[arg-type]
    rows = keyed.repartition(tasks, BLOCK).sortWithinPartitions(BLOCK)
    # Collected once and used once: Spark would write again for every other look at the frame.
    return [_unpacked(row) for row in map_in_arrow(rows, put, "answer binary").collect()]


def _blocks(target: Target) -> int:
    count = 1
    for size in target.grid:
        count *= size
    return count


def _written(batches: Iterator[pa.RecordBatch], goal: tuple[ForkSession, Target]) -> bytes:
    fork, target = goal
    write_sorted(fork, target, batches)
    return receipt(fork)


def _packed(function: Any, batches: Iterator[pa.RecordBatch], goal: Any) -> pa.RecordBatch:
    """The answer of a task; an error of ours is one too, so that Spark neither tries again nor adds to it."""
    try:
        answer: tuple[bool, Any] = (False, function(batches, goal))
    except IcechunkError as error:
        answer = (True, error)
    return pa.RecordBatch.from_pydict({"answer": pa.array([pickle.dumps(answer)], pa.binary())})


def _unpacked(row: Any) -> Any:
    failed, value = pickle.loads(bytes(row["answer"]))
    if failed:
        raise value
    return value
