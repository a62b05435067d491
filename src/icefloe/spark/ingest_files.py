"""Ingest files and rechunk arrays on Spark: executors read and write, and the driver plans and commits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from icefloe._internal.executor import Progress
from icefloe.ingest import job
from icefloe.ingest import rechunk_job as rechunking
from icefloe.ingest.options import DEFAULT_CHECKS, DEFAULT_MEMORY_BYTES, Check, parse_arguments
from icefloe.ingest.rechunk_job import RechunkReport
from icefloe.ingest.report import IngestReport
from icefloe.ingest.target_repository import open_target
from icefloe.query.options import describe_location
from icefloe.repository import Repository
from icefloe.spark.executor import SparkExecutor
from icefloe.spark.progress import describe_jobs
from icefloe.storage import storage_from_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ingest(
    spark: SparkSession,
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    repo: Repository | str | os.PathLike[str],
    *,
    concat_dim: str | None = None,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None,
    codec: str = "zstd",
    mode: Literal["native", "virtual", "hybrid"] = "native",
    group: str = "",
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    variables: str | Sequence[str] = (),
    engine: str | None = None,
    source_group: str | None = None,
    open_options: Mapping[str, Any] | None = None,
    compat: str | None = None,
    data_vars: str | None = None,
    coords: str | None = None,
    join: str | None = None,
    commit_every: int | None = None,
    on_bad_file: Literal["stop", "skip"] = "stop",
    on_change: Literal["report", "ingest"] = "report",
    append_order: Literal["commit", "sorted", "strict"] | None = None,
    checks: Sequence[str | Check] = DEFAULT_CHECKS,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    manifest_references: int = 500_000,
    dry_run: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
) -> IngestReport:
    """Ingest files into a repository on Spark, exactly once.

    Equivalent to `icefloe.ingest_files` with a `SparkExecutor` on this session.

    Parameters
    ----------
    spark
        The session that runs the tasks.
    sources
        Paths, glob patterns, folders, URLs, or text files that list them.
    repo
        A repository, or its path or URL. It is created if it does not exist.
    concat_dim, compat, data_vars, coords, join
        Options for combining files.
    chunks, shards, codec, mode, manifest_references
        Options for how data is stored.
    group, branch, message, metadata, commit_every
        The group for the arrays, the branch to publish to, and its commits.
    variables, engine, source_group, open_options, source_options
        Options for reading files.
    on_bad_file, on_change, append_order, checks
        How to treat unreadable and changed files, how to order rows relative to those of other writers, and
        the conditions for publishing.
    memory_bytes
        The memory that a task may use, in addition to the interpreter and loaded modules.
    dry_run
        Only report what would be done, without writing.
    progress
        Called with a label, the number of finished items, and the total number of items.
    storage_options
        Storage options, such as `region`, if `repo` is a path or URL.

    Returns
    -------
    IngestReport
        The sources that were ingested, skipped or rejected, and the results of the checks.

    Raises
    ------
    InvalidInputError
        If an option is invalid, or files cannot be read or combined.
    ConflictError
        If other writers kept changing the same arrays.
    """
    options = parse_arguments(locals())
    with open_target(repo, storage_options, dry_run=dry_run) as target:
        title = f"ingest into {branch} of {describe_location(target)}, group {group}"
        with describe_jobs(spark, title):
            executor = SparkExecutor(spark, progress=progress)
            return job.ingest(target, sources, options, executor, dry_run=dry_run)


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
    """Change the chunk shape of an array on Spark, in one commit.

    Executors read and write, and the driver commits.

    Parameters
    ----------
    spark
        The session that runs the tasks.
    repo
        A repository, or its path or URL.
    path
        Path of an array, or of a group. In a group, all arrays with the given dimensions are rechunked.
    chunks
        Chunk length per dimension. Other dimensions keep their chunk length.
    shards
        Shard length per dimension. By default, the array has no shards.
    codec
        Compressor for the new chunks. By default, the codecs do not change.
    branch
        The branch to commit to.
    message
        Commit message.
    metadata
        Commit metadata.
    memory_bytes
        Memory that a task may use for data.
    dry_run
        Only report what would be done, without writing.
    progress
        Called with a label, the number of finished items, and the total number of items.
    storage_options
        Storage options, such as `region`, if `repo` is a path or URL.

    Returns
    -------
    RechunkReport
        The arrays that were rechunked, and the commit.

    Raises
    ------
    InvalidInputError
        If the array does not exist, or the chunks or the codec are invalid.
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
