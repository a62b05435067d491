"""Ingest and rechunk on Spark: executors read and write, the driver plans and commits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

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
    """Ingest files into a repository on Spark, exactly once.

    This is `icefloe.ingest_files` with an executor on this session.

    Parameters
    ----------
    spark
        The session that runs the tasks.
    sources
        Paths, patterns, folders or URLs, or text files that list them.
    repo
        A repository, or its path or URL, where it is created if it does not exist.
    dry_run
        Report what would be done, without writing.
    progress
        Called with a label, the number of finished items and their total.
    storage_options
        Options of the storage if `repo` is a path or URL, such as `region`.
    **options
        Options of `icefloe.ingest_files`, such as `concat_dim`, `chunks` and `mode`.

    Returns
    -------
    Report
        The sources that were ingested, skipped or rejected, and the results of the checks.

    Raises
    ------
    InvalidInputError
        If an option is invalid, or files cannot be read or combined.
    ConflictError
        If other writers kept changing the same arrays.
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
    """Change the chunks of an array on Spark, in one commit.

    Executors read and write, and the driver commits.

    Parameters
    ----------
    spark
        The session that runs the tasks.
    repo
        A repository, or its path or URL.
    path
        Path of an array, or of a group whose arrays with these dimensions are rechunked.
    chunks
        Chunk length per dimension. Other dimensions keep theirs.
    shards
        Shard length per dimension. By default, the array has no shards.
    codec
        Compressor of the new chunks. By default, the codecs do not change.
    branch
        The branch to commit to.
    message
        Commit message.
    metadata
        Commit metadata.
    memory_bytes
        Memory that a task may use for data.
    dry_run
        Report what would be done, without writing.
    progress
        Called with a label, the number of finished items and their total.
    storage_options
        Options of the storage if `repo` is a path or URL, such as `region`.

    Returns
    -------
    RechunkReport
        The arrays that were rechunked, and the commit.

    Raises
    ------
    InvalidInputError
        If there is no such array, or chunks or codec are invalid.
    ConflictError
        If another writer changed the array.
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
