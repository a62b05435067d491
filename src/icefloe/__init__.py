"""Transactional, version-controlled storage for Zarr arrays in the Icechunk format, in pure Python.

`import icefloe` is fast: a public name is imported from its module when it is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefloe._internal.logs import initialize_logs as initialize_logs
from icefloe._internal.logs import set_logs_filter as set_logs_filter
from icefloe._internal.logs import shutdown_telemetry as shutdown_telemetry
from icefloe._version import __version__ as __version__

if TYPE_CHECKING:  # type checkers treat `name as name` as exported
    from icefloe._internal.executor import Executor as Executor
    from icefloe._internal.executor import ProcessExecutor as ProcessExecutor
    from icefloe._internal.executor import ThreadExecutor as ThreadExecutor
    from icefloe._internal.table import Table as Table
    from icefloe.comparison.array_references import ChunkReferences as ChunkReferences
    from icefloe.comparison.array_references import chunk_references as chunk_references
    from icefloe.comparison.bisect import Bisection as Bisection
    from icefloe.comparison.bisect import bisect as bisect
    from icefloe.comparison.blame import Blame as Blame
    from icefloe.comparison.blame import blame as blame
    from icefloe.comparison.values import ValueDifferences as ValueDifferences
    from icefloe.comparison.values import compare_values as compare_values
    from icefloe.comparison.values import subtract_values as subtract_values
    from icefloe.comparison.versions import ChunkDifferences as ChunkDifferences
    from icefloe.comparison.versions import Comparison as Comparison
    from icefloe.comparison.versions import compare as compare
    from icefloe.compatibility import install_as_icechunk as install_as_icechunk
    from icefloe.config import Attribution as Attribution
    from icefloe.config import CachingConfig as CachingConfig
    from icefloe.config import CompressionAlgorithm as CompressionAlgorithm
    from icefloe.config import CompressionConfig as CompressionConfig
    from icefloe.config import FeatureFlag as FeatureFlag
    from icefloe.config import ManifestConfig as ManifestConfig
    from icefloe.config import ManifestPreloadCondition as ManifestPreloadCondition
    from icefloe.config import ManifestPreloadConfig as ManifestPreloadConfig
    from icefloe.config import ManifestSplitCondition as ManifestSplitCondition
    from icefloe.config import ManifestSplitDimCondition as ManifestSplitDimCondition
    from icefloe.config import ManifestSplittingConfig as ManifestSplittingConfig
    from icefloe.config import (
        ManifestVirtualChunkLocationCompressionConfig as ManifestVirtualChunkLocationCompressionConfig,
    )
    from icefloe.config import ObjectStoreConfig as ObjectStoreConfig
    from icefloe.config import RepositoryConfig as RepositoryConfig
    from icefloe.config import VirtualChunkContainer as VirtualChunkContainer
    from icefloe.conflicts import AppendConflictError as AppendConflictError
    from icefloe.conflicts import BasicConflictSolver as BasicConflictSolver
    from icefloe.conflicts import ChunkDetails as ChunkDetails
    from icefloe.conflicts import Conflict as Conflict
    from icefloe.conflicts import ConflictDetector as ConflictDetector
    from icefloe.conflicts import ConflictSolver as ConflictSolver
    from icefloe.conflicts import ConflictType as ConflictType
    from icefloe.conflicts import MergeConflict as MergeConflict
    from icefloe.conflicts import MergeConflictError as MergeConflictError
    from icefloe.conflicts import MergeConflicts as MergeConflicts
    from icefloe.conflicts import MergeResult as MergeResult
    from icefloe.conflicts import VersionSelection as VersionSelection
    from icefloe.core.commit.idempotency import CommitKey as CommitKey
    from icefloe.core.commit.idempotency import CommittedVersions as CommittedVersions
    from icefloe.credentials import AnyAzureCredential as AnyAzureCredential
    from icefloe.credentials import AnyAzureStaticCredential as AnyAzureStaticCredential
    from icefloe.credentials import AnyCredential as AnyCredential
    from icefloe.credentials import AnyGcsCredential as AnyGcsCredential
    from icefloe.credentials import AnyGcsStaticCredential as AnyGcsStaticCredential
    from icefloe.credentials import AnyS3Credential as AnyS3Credential
    from icefloe.credentials import AzureCredentials as AzureCredentials
    from icefloe.credentials import AzureRefreshableCredential as AzureRefreshableCredential
    from icefloe.credentials import AzureStaticCredentials as AzureStaticCredentials
    from icefloe.credentials import Credentials as Credentials
    from icefloe.credentials import GcsBearerCredential as GcsBearerCredential
    from icefloe.credentials import GcsCredentials as GcsCredentials
    from icefloe.credentials import GcsStaticCredentials as GcsStaticCredentials
    from icefloe.credentials import S3Credentials as S3Credentials
    from icefloe.credentials import S3StaticCredentials as S3StaticCredentials
    from icefloe.credentials import azure_anonymous_credentials as azure_anonymous_credentials
    from icefloe.credentials import azure_credentials as azure_credentials
    from icefloe.credentials import azure_from_env_credentials as azure_from_env_credentials
    from icefloe.credentials import azure_refreshable_credentials as azure_refreshable_credentials
    from icefloe.credentials import azure_static_credentials as azure_static_credentials
    from icefloe.credentials import containers_credentials as containers_credentials
    from icefloe.credentials import gcs_credentials as gcs_credentials
    from icefloe.credentials import gcs_from_env_credentials as gcs_from_env_credentials
    from icefloe.credentials import gcs_refreshable_credentials as gcs_refreshable_credentials
    from icefloe.credentials import gcs_static_credentials as gcs_static_credentials
    from icefloe.credentials import s3_anonymous_credentials as s3_anonymous_credentials
    from icefloe.credentials import s3_credentials as s3_credentials
    from icefloe.credentials import s3_from_env_credentials as s3_from_env_credentials
    from icefloe.credentials import s3_refreshable_credentials as s3_refreshable_credentials
    from icefloe.credentials import s3_static_credentials as s3_static_credentials
    from icefloe.derive.lineage import Lineage as Lineage
    from icefloe.derive.report import DerivedArray as DerivedArray
    from icefloe.derive.report import DeriveReport as DeriveReport
    from icefloe.errors import AlreadyExistsError as AlreadyExistsError
    from icefloe.errors import ConflictError as ConflictError
    from icefloe.errors import ErrorKind as ErrorKind
    from icefloe.errors import FormatError as FormatError
    from icefloe.errors import Hint as Hint
    from icefloe.errors import IcechunkError as IcechunkError
    from icefloe.errors import InternalError as InternalError
    from icefloe.errors import InvalidInputError as InvalidInputError
    from icefloe.errors import NodeNotFoundError as NodeNotFoundError
    from icefloe.errors import NotFoundError as NotFoundError
    from icefloe.errors import ReadOnlyError as ReadOnlyError
    from icefloe.errors import RebaseFailedError as RebaseFailedError
    from icefloe.errors import RefNotFoundError as RefNotFoundError
    from icefloe.errors import RepositoryNotFoundError as RepositoryNotFoundError
    from icefloe.errors import SessionStateError as SessionStateError
    from icefloe.errors import SnapshotNotFoundError as SnapshotNotFoundError
    from icefloe.errors import StorageError as StorageError
    from icefloe.export import ExportReport as ExportReport
    from icefloe.export import export_zarr as export_zarr
    from icefloe.export.netcdf import export_netcdf as export_netcdf
    from icefloe.feeds.append import AppendReport as AppendReport
    from icefloe.feeds.append import append as append
    from icefloe.feeds.append_solver import AppendSolver as AppendSolver
    from icefloe.legacy.upgrade import MigrationReport as MigrationReport
    from icefloe.legacy.upgrade import migrate as migrate
    from icefloe.maintenance.clone import CloneReport as CloneReport
    from icefloe.maintenance.integrity.findings import VerifyReport as VerifyReport
    from icefloe.maintenance.integrity.last_report import VerificationRecord as VerificationRecord
    from icefloe.maintenance.integrity.last_report import last_verification as last_verification
    from icefloe.maintenance.integrity.repair import ChunkSource as ChunkSource
    from icefloe.maintenance.integrity.repair import RepairReport as RepairReport
    from icefloe.maintenance.retention import RetentionPolicy as RetentionPolicy
    from icefloe.maintenance.retention import RetentionReport as RetentionReport
    from icefloe.maintenance.statistics.collect import StatisticsReport as StatisticsReport
    from icefloe.maintenance.storage_stats import ReclaimableStorage as ReclaimableStorage
    from icefloe.maintenance.window import WindowReport as WindowReport
    from icefloe.ops import GCSummary as GCSummary
    from icefloe.ops import Update as Update
    from icefloe.ops import UpdateType as UpdateType
    from icefloe.pipeline import derive_arrays as derive_arrays
    from icefloe.pipeline import ingest_files as ingest_files
    from icefloe.repository import Repository as Repository
    from icefloe.repository import upgrade_icechunk_repository as upgrade_icechunk_repository
    from icefloe.session import ForkSession as ForkSession
    from icefloe.session import Session as Session
    from icefloe.snapshots import AncestryGraph as AncestryGraph
    from icefloe.snapshots import Diff as Diff
    from icefloe.snapshots import ManifestFileInfo as ManifestFileInfo
    from icefloe.snapshots import SnapshotInfo as SnapshotInfo
    from icefloe.storage import AnyObjectStoreConfig as AnyObjectStoreConfig
    from icefloe.storage import ChecksumAlgorithm as ChecksumAlgorithm
    from icefloe.storage import S3Options as S3Options
    from icefloe.storage import Storage as Storage
    from icefloe.storage import StorageConcurrencySettings as StorageConcurrencySettings
    from icefloe.storage import StorageRetriesSettings as StorageRetriesSettings
    from icefloe.storage import StorageSettings as StorageSettings
    from icefloe.storage import StorageTimeoutSettings as StorageTimeoutSettings
    from icefloe.storage import azure_storage as azure_storage
    from icefloe.storage import gcs_storage as gcs_storage
    from icefloe.storage import gcs_store as gcs_store
    from icefloe.storage import hf_storage as hf_storage
    from icefloe.storage import http_storage as http_storage
    from icefloe.storage import http_store as http_store
    from icefloe.storage import in_memory_storage as in_memory_storage
    from icefloe.storage import local_filesystem_storage as local_filesystem_storage
    from icefloe.storage import local_filesystem_store as local_filesystem_store
    from icefloe.storage import r2_storage as r2_storage
    from icefloe.storage import redirect_storage as redirect_storage
    from icefloe.storage import s3_storage as s3_storage
    from icefloe.storage import s3_store as s3_store
    from icefloe.storage import storage_from_url as storage_from_url
    from icefloe.storage import tigris_storage as tigris_storage
    from icefloe.store import IcechunkStore as IcechunkStore
    from icefloe.types import ChunkType as ChunkType
    from icefloe.types import CommitMethod as CommitMethod
    from icefloe.types import RepoAvailability as RepoAvailability
    from icefloe.types import RepoStatus as RepoStatus
    from icefloe.types import SessionMode as SessionMode
    from icefloe.types import SpecVersion as SpecVersion
    from icefloe.types import VirtualChunkSpec as VirtualChunkSpec

_HOMES = {
    "maintenance.integrity.last_report": "VerificationRecord last_verification",
    "comparison.bisect": "Bisection bisect",
    "comparison.blame": "Blame blame",
    "comparison.values": "ValueDifferences compare_values subtract_values",
    "comparison.versions": "ChunkDifferences Comparison compare",
    "comparison.array_references": "ChunkReferences chunk_references",
    "compatibility": "install_as_icechunk",
    "config": """
        Attribution CachingConfig CompressionAlgorithm CompressionConfig FeatureFlag ManifestConfig
        ManifestPreloadCondition ManifestPreloadConfig ManifestSplitCondition
        ManifestSplitDimCondition ManifestSplittingConfig
        ManifestVirtualChunkLocationCompressionConfig ObjectStoreConfig RepositoryConfig
        VirtualChunkContainer
    """,
    "conflicts": """
        AppendConflictError BasicConflictSolver ChunkDetails Conflict ConflictDetector ConflictSolver
        ConflictType MergeConflict MergeConflictError MergeConflicts MergeResult VersionSelection
    """,
    "credentials": """
        AnyAzureCredential AnyAzureStaticCredential AnyCredential AnyGcsCredential
        AnyGcsStaticCredential AnyS3Credential AzureCredentials AzureRefreshableCredential
        AzureStaticCredentials Credentials GcsBearerCredential GcsCredentials GcsStaticCredentials
        S3Credentials S3StaticCredentials azure_anonymous_credentials azure_credentials
        azure_from_env_credentials azure_refreshable_credentials azure_static_credentials
        containers_credentials gcs_credentials gcs_from_env_credentials gcs_refreshable_credentials
        gcs_static_credentials s3_anonymous_credentials s3_credentials s3_from_env_credentials
        s3_refreshable_credentials s3_static_credentials
    """,
    "errors": """
        AlreadyExistsError ConflictError ErrorKind FormatError Hint IcechunkError InternalError
        InvalidInputError NodeNotFoundError NotFoundError ReadOnlyError RebaseFailedError
        RefNotFoundError RepositoryNotFoundError SessionStateError SnapshotNotFoundError
        StorageError
    """,
    "core.commit.idempotency": "CommitKey CommittedVersions",
    "export": "ExportReport export_zarr",
    "export.netcdf": "export_netcdf",
    "maintenance.clone": "CloneReport",
    "maintenance.integrity.findings": "VerifyReport",
    "maintenance.statistics.collect": "StatisticsReport",
    "maintenance.integrity.repair": "ChunkSource RepairReport",
    "maintenance.retention": "RetentionPolicy RetentionReport",
    "maintenance.storage_stats": "ReclaimableStorage",
    "_internal.executor": "Executor ProcessExecutor ThreadExecutor",
    "_internal.table": "Table",
    "feeds.append": "AppendReport append",
    "feeds.append_solver": "AppendSolver",
    "maintenance.window": "WindowReport",
    "legacy.upgrade": "MigrationReport migrate",
    "ops": "GCSummary Update UpdateType",
    "derive.lineage": "Lineage",
    "derive.report": "DerivedArray DeriveReport",
    "pipeline": "derive_arrays ingest_files",
    "repository": "Repository upgrade_icechunk_repository",
    "session": "ForkSession Session",
    "snapshots": "AncestryGraph Diff ManifestFileInfo SnapshotInfo",
    "storage": """
        AnyObjectStoreConfig ChecksumAlgorithm S3Options Storage StorageConcurrencySettings
        StorageRetriesSettings StorageSettings StorageTimeoutSettings azure_storage gcs_storage
        gcs_store hf_storage http_storage http_store in_memory_storage local_filesystem_storage
        local_filesystem_store r2_storage redirect_storage s3_storage s3_store storage_from_url
        tigris_storage
    """,
    "store": "IcechunkStore",
    "types": "ChunkType CommitMethod RepoAvailability RepoStatus SessionMode SpecVersion VirtualChunkSpec",
}
"""The public names, by the module that defines them."""

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
_HERE = """
    __version__ initialize_logs print_debug_info set_logs_filter shutdown_telemetry spec_version
    supported_spec_versions user_agent
"""
__all__ = sorted([*_HOME_OF, *_HERE.split()])  # computed, so that each name is listed once

_MODULES = """
    config conflicts credentials dask distributed export feeds ingest ops query repository serve session
    snapshots spark storage store testing types virtual xarray
"""
"""Modules that are attributes of the package without an import of their own."""
_DEBUG_PACKAGES = ("zarr", "numcodecs", "xarray", "virtualizarr", "obstore", "numpy")


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(f"icefloe.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES.split():
        return import_module(f"icefloe.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES.split()})


def open(
    url: str,
    *,
    config: RepositoryConfig | None = None,
    authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
    attribution: Attribution | None = None,
    **options: Any,
) -> Repository:
    """Open the repository at a path or URL.

    Parameters
    ----------
    url
        A path, or a URL such as `s3://bucket/prefix`.
    config, authorize_virtual_chunk_access, attribution
        See `Repository.open`.
    **options
        Storage options; see `storage_from_url`.

    Returns
    -------
    Repository

    Raises
    ------
    RepositoryNotFoundError
        If there is no repository at this location.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.open("s3://bucket/weather", region="eu-west-1")  # doctest: +SKIP
    """
    from icefloe.repository import Repository
    from icefloe.storage import storage_from_url

    storage = storage_from_url(url, **options)
    return Repository.open(storage, config, authorize_virtual_chunk_access, attribution)


def spec_version() -> SpecVersion:
    """Return the version of the format that new repositories have.

    Returns
    -------
    SpecVersion
    """
    from icefloe.types import SpecVersion

    return SpecVersion.current()


def supported_spec_versions() -> list[SpecVersion]:
    """Return the versions of the format that icefloe reads and writes, newest first.

    Returns
    -------
    list of SpecVersion
    """
    from icefloe.types import SpecVersion

    return sorted(SpecVersion, reverse=True)


def user_agent() -> str:
    """Return the name and version that icefloe writes into files and sends with requests.

    Returns
    -------
    str
    """
    return f"icefloe-{__version__}"


def print_debug_info() -> None:
    """Print the platform and the versions of Python and packages, for bug reports."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"platform": platform.platform(), "python": platform.python_version(), "icefloe": __version__}
    for package in _DEBUG_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    sys.stdout.writelines(f"{name}:  {text}\n" for name, text in found.items())


initialize_logs()
