"""Ingesting and rechunking on Spark: executors read and write, the driver plans and commits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from icefloe._internal.concurrency import FanOut
from icefloe.ingest import job
from icefloe.ingest.inspect.schema import digest
from icefloe.ingest.inspect.tasks import survey_for_references, survey_some
from icefloe.ingest.options import Options
from icefloe.ingest.plan.tasks import DEFAULT_MEMORY_BYTES
from icefloe.ingest.publish.audit import compare_sample
from icefloe.ingest.rechunk import job as rechunking
from icefloe.ingest.rechunk.job import RechunkReport
from icefloe.ingest.report import Report
from icefloe.ingest.target_repository import repository_at
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.answers import answered
from icefloe.spark.dataframe import described, place_of
from icefloe.spark.executor import Progress, SparkFanOut
from icefloe.storage import storage_from_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_PER_CORE: dict[Any, int] = {survey_some: 4, survey_for_references: 4, digest: 4, compare_sample: 1}
"""So many tasks for what is quick, if there are not many: starting one takes longer than that."""
_PER_TASK: dict[Any, int] = {survey_some: 8, survey_for_references: 8, digest: 256}
"""So many orders for a task where there are: it is what is done again if a worker dies."""
_SHOWN_ROWS = 5


def ingest(
    spark: SparkSession,
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    repo: Repository | str | os.PathLike[str],
    *,
    dry_run: bool = False,
    told: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """Bring files into a repository: those that are not in it yet, checked, in parallel, exactly once.

    `sources` are paths, patterns, folders, URLs, or text files of those. `repo` is a repository, or the place
    of one, which is made if there is none; `storage_options` are then its options. `options` are those of
    `icefloe.ingest.options.make_options`: group, branch, variables, concat_dim, chunks, shards, codec, mode,
    engine, message, metadata, commit_every, on_bad_file, on_change, memory_bytes and more. The report says
    what was done, or with `dry_run` what would be. `told` gets a sentence for each step, `progress` the
    number of tasks that are done and of all.
    """
    from icefloe.ingest.options import make_options

    parallelism = cores(spark)
    chosen = make_options(parallelism=parallelism, **options)
    fan_out = IngestFanOut(spark, parallelism, progress)
    if isinstance(repo, Repository):
        opened: AbstractContextManager[Repository] = nullcontext(repo)
    else:
        opened = repository_at(storage_from_url(repo, **(storage_options or {})), dry_run=dry_run)
    with (
        opened as found,
        described(spark, f"ingest into {chosen.branch} of {place_of(found)}, group {chosen.group}"),
    ):
        return run(found, sources, chosen, fan_out, dry_run=dry_run, told=told)


def rechunk(
    spark: SparkSession,
    repo: Repository | str | os.PathLike[str],
    path: str,
    chunks: Mapping[str, int] | None = None,
    *,
    shards: Mapping[str, int] | None = None,
    codec: str | None = None,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    dry_run: bool = False,
    told: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RechunkReport:
    """Cut an array in another way, or all arrays of a group that have the dimensions, in one commit.

    Executors read and write, the driver commits: `icefloe.ingest.rechunk` tells the rest. `repo` is a
    repository, or the place of one; `storage_options` are then its options.
    """
    if not isinstance(repo, Repository):
        repo = Repository.open(storage_from_url(repo, **(storage_options or {})))
    parallelism = cores(spark)
    with described(spark, f"rechunk {path} on {branch} of {place_of(repo)}"):
        return rechunking.rechunk(
            repo,
            path,
            IngestFanOut(spark, parallelism, progress),
            chunks=chunks,
            shards=shards,
            codec=codec,
            branch=branch,
            message=message,
            metadata=metadata,
            memory_bytes=memory_bytes,
            parallelism=parallelism,
            dry_run=dry_run,
            told=told,
        )


def run(
    repo: Repository, sources: Any, options: Options, fan_out: FanOut, *, dry_run: bool, told: job.Told
) -> Report:
    """The job with a fan-out that is there already."""
    return job.ingest(repo, sources, options, fan_out, dry_run=dry_run, told=told)


def cores(spark: SparkSession) -> int:
    """How many tasks run side by side."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except (AttributeError, NotImplementedError):
        return 2  # Spark Connect does not tell


class IngestFanOut:
    """Spark for an ingest: a few tasks that look at many files each, and a task for each order to write."""

    def __init__(self, spark: SparkSession, parallelism: int, progress: Progress | None = None) -> None:
        self._spark = spark
        self._parallelism = parallelism
        self._progress = progress

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        orders = list(items)
        return SparkFanOut(self._spark, self._tasks(function, len(orders)), self._progress)(function, orders)

    def _tasks(self, function: Callable[[T], R], orders: int) -> int | None:
        if function not in _PER_CORE or not orders:
            return None
        few, many = _PER_CORE[function] * self._parallelism, orders // _PER_TASK.get(function, orders)
        return min(orders, max(few, many))

    def ask(self, query: str, tables: Mapping[str, Session]) -> list[tuple[Any, ...]]:
        """The first rows of the answer to SQL: what a check of an ingest asks."""
        return answered(self._spark, query, tables, _SHOWN_ROWS)[1]
