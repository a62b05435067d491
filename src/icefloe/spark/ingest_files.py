"""Ingesting and rechunking on Spark: executors read and write, the driver plans and commits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from icefloe._internal.executor import Progress
from icefloe.ingest import job
from icefloe.ingest.options import DEFAULT_MEMORY_BYTES
from icefloe.ingest.report import Report
from icefloe.ingest.rewrite import rechunk as rechunking
from icefloe.ingest.rewrite.rechunk import RechunkReport
from icefloe.ingest.target_repository import repository_at
from icefloe.query.options import describe_location
from icefloe.repository import Repository
from icefloe.spark.dataframe import describe_jobs
from icefloe.spark.executor import SparkExecutor
from icefloe.storage import storage_from_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


def ingest(
    spark: SparkSession,
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    repo: Repository | str | os.PathLike[str],
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """Bring files into a repository: those that are not in it yet, checked, in parallel, exactly once.

    The same as `icefloe.ingest_files` with an executor on this session.

    `sources` are paths, patterns, folders, URLs, or text files of those. `repo` is a repository, or the place
    of one, which is made if there is none; `storage_options` are then its options. `options` are those of
    `icefloe.ingest.options.make_options`: group, branch, variables, concat_dim, chunks, shards, codec, mode,
    engine, message, metadata, commit_every, on_bad_file, on_change, memory_bytes and more. The report says
    what was done, or with `dry_run` what would be. Each step is logged at INFO as `icefloe.ingest`;
    `progress` gets the number of tasks that are done and of all.
    """
    from icefloe.ingest.options import make_options

    executor = SparkExecutor(spark, progress=progress)
    if "source_options" in options:
        options["storage_options"] = options.pop("source_options")
    chosen = make_options(**options)
    if isinstance(repo, Repository):
        opened: AbstractContextManager[Repository] = nullcontext(repo)
    else:
        opened = repository_at(storage_from_url(repo, **(storage_options or {})), dry_run=dry_run)
    with (
        opened as found,
        describe_jobs(
            spark, f"ingest into {chosen.branch} of {describe_location(found)}, group {chosen.group}"
        ),
    ):
        return job.ingest(found, sources, chosen, executor, dry_run=dry_run)


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
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RechunkReport:
    """Cut an array in another way, or all arrays of a group that have the dimensions, in one commit.

    Executors read and write, the driver commits: `icefloe.ingest.rechunk` tells the rest. `repo` is a
    repository, or the place of one; `storage_options` are then its options.
    """
    if not isinstance(repo, Repository):
        repo = Repository.open(storage_from_url(repo, **(storage_options or {})))
    executor = SparkExecutor(spark, progress=progress)
    with describe_jobs(spark, f"rechunk {path} on {branch} of {describe_location(repo)}"):
        return rechunking.rechunk(
            repo,
            path,
            executor,
            chunks=chunks,
            shards=shards,
            codec=codec,
            branch=branch,
            message=message,
            metadata=metadata,
            memory_bytes=memory_bytes,
            dry_run=dry_run,
        )
