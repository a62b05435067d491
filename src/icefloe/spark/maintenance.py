"""Upkeep of a repository on Spark: executors read, copy and decode; the driver moves refs and deletes.

Each function does what the method of `Repository` with its name does, and gives the same; tables come as
DataFrames.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from icefloe._internal.table import Table
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.export import ExportReport, export_zarr
from icefloe.maintenance.clone import CloneReport
from icefloe.maintenance.retention import RetentionPolicy
from icefloe.ops import ChunkStorageStats, GCSummary
from icefloe.query.options import locate
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.executor import SparkExecutor
from icefloe.storage.base import Storage
from icefloe.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "apply_retention",
    "chunk_storage_stats",
    "clone_to",
    "export",
    "frame",
    "garbage",
    "garbage_collect",
    "on_spark",
    "record_checksums",
    "rewrite_manifests",
    "storage_by_array",
    "storage_by_snapshot",
    "verify",
]

_TASKS_PER_CORE = 4
_ARROW_TYPES = {"string": "string", "bool": "boolean", "double": "double", "int64": "long"}


def on_spark(spark: SparkSession, repo: Repository, tasks: int | None = None) -> Repository:
    """The same repository, whose upkeep runs on Spark in at most so many `tasks` per step.

    Some per core by default: a task costs about 0.1 s. InvalidInputError for a repository in the memory of
    this process, which executors cannot reach.
    """
    if isinstance(repo.storage, MemoryStorage):
        raise InvalidInputError(
            "a repository in memory is in this process alone, and Spark works in others; use a folder",
            kind=ErrorKind.NOT_ALLOWED,
        )
    cores = int(spark.sparkContext.defaultParallelism)
    title = f"upkeep of {locate(repo)}"
    return repo.working_with(SparkExecutor(spark, tasks or _TASKS_PER_CORE * cores, title=title))


def frame(spark: SparkSession, table: Table) -> DataFrame:
    """A table as a DataFrame. Times are times of UTC, shown in the zone of the Spark session."""
    arrow = table.to_arrow()
    types = ", ".join(f"`{field.name}` {_type(str(field.type))}" for field in arrow.schema)
    session: Any = spark
    made: DataFrame = session.createDataFrame(arrow.to_pylist(), types)
    return made


def _type(arrow: str) -> str:
    return "timestamp" if arrow.startswith("timestamp") else _ARROW_TYPES[arrow]


def garbage(spark: SparkSession, repo: Repository, delete_object_older_than: datetime) -> DataFrame:
    """What a collection would delete: object, kind, bytes, written_at, age_s, reason."""
    return frame(spark, on_spark(spark, repo).garbage(delete_object_older_than))


def garbage_collect(
    spark: SparkSession, repo: Repository, delete_object_older_than: datetime, *, dry_run: bool = False
) -> GCSummary:
    """Delete what no snapshot needs."""
    return on_spark(spark, repo).garbage_collect(delete_object_older_than, dry_run=dry_run)


def apply_retention(
    spark: SparkSession, repo: Repository, policy: RetentionPolicy, *, dry_run: bool = False
) -> DataFrame:
    """Take what a policy does not keep out of the history: snapshot, written_at, message, kept, reason."""
    return frame(spark, repo.apply_retention(policy, dry_run=dry_run))


def verify(spark: SparkSession, repo: Repository, level: str = "graph", **options: Any) -> DataFrame:
    """What is wrong: kind, object, where, message; empty where all is well. `options` are the method's."""
    return frame(spark, on_spark(spark, repo).verify(level, **options).table())


def record_checksums(spark: SparkSession, repo: Repository) -> int:
    """Record the checksums of all objects in use that have none yet; of how many."""
    return on_spark(spark, repo).record_checksums()


def chunk_storage_stats(spark: SparkSession, repo: Repository) -> ChunkStorageStats:
    """How many bytes of chunks the snapshots refer to, each chunk counted once."""
    return on_spark(spark, repo).chunk_storage_stats()


def storage_by_array(spark: SparkSession, repo: Repository, *, snapshot_id: str | None = None) -> DataFrame:
    """Bytes by array."""
    return frame(spark, on_spark(spark, repo).storage_by_array(snapshot_id=snapshot_id))


def storage_by_snapshot(spark: SparkSession, repo: Repository) -> DataFrame:
    """Bytes by snapshot."""
    return frame(spark, on_spark(spark, repo).storage_by_snapshot())


def rewrite_manifests(
    spark: SparkSession,
    repo: Repository,
    message: str,
    *,
    branch: str,
    metadata: Mapping[str, Any] | None = None,
    commit_method: str = "new_commit",
) -> str:
    """Write all manifests of a branch anew, split as configured now, in a commit of its own; its id."""
    return on_spark(spark, repo).rewrite_manifests(
        message, branch=branch, metadata=dict(metadata or {}), commit_method=commit_method
    )


def clone_to(spark: SparkSession, repo: Repository, target: Storage, **options: Any) -> CloneReport:
    """Copy a repository to another place. `options` are the method's."""
    return on_spark(spark, repo).clone_to(target, **options)


def export(
    spark: SparkSession, repo: Repository, session: Session, target: Storage, **options: Any
) -> ExportReport:
    """Write a group of a session of the repository as plain Zarr. `options` are those of `export_zarr`."""
    return export_zarr(session, target, **options, executor=on_spark(spark, repo).executor)
