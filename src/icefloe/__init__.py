"""Transactional, version-controlled storage for Zarr arrays in the Icechunk format, in pure Python.

Names are looked up in their modules when they are first used: `import icefloe` itself loads next to nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefloe._internal.logs import initialize_logs, set_logs_filter, shutdown_telemetry
from icefloe._version import __version__

if TYPE_CHECKING:
    from icefloe._internal.table import Table
    from icefloe.compatibility import (
        install_as_icechunk,
    )
    from icefloe.config import (
        Attribution,
        CachingConfig,
        CompressionAlgorithm,
        CompressionConfig,
        FeatureFlag,
        ManifestConfig,
        ManifestPreloadCondition,
        ManifestPreloadConfig,
        ManifestSplitCondition,
        ManifestSplitDimCondition,
        ManifestSplittingConfig,
        ManifestVirtualChunkLocationCompressionConfig,
        ObjectStoreConfig,
        RepositoryConfig,
        VirtualChunkContainer,
    )
    from icefloe.conflicts import (
        BasicConflictSolver,
        ChunkDetails,
        Conflict,
        ConflictDetector,
        ConflictSolver,
        ConflictType,
        MergeConflict,
        MergeConflictError,
        MergeConflicts,
        MergeResult,
        VersionSelection,
    )
    from icefloe.core.commit.idempotency import CommitKey
    from icefloe.credentials import (
        AnyAzureCredential,
        AnyAzureStaticCredential,
        AnyCredential,
        AnyGcsCredential,
        AnyGcsStaticCredential,
        AnyS3Credential,
        AzureCredentials,
        AzureRefreshableCredential,
        AzureStaticCredentials,
        Credentials,
        GcsBearerCredential,
        GcsCredentials,
        GcsStaticCredentials,
        S3Credentials,
        S3StaticCredentials,
        azure_anonymous_credentials,
        azure_credentials,
        azure_from_env_credentials,
        azure_refreshable_credentials,
        azure_static_credentials,
        containers_credentials,
        gcs_credentials,
        gcs_from_env_credentials,
        gcs_refreshable_credentials,
        gcs_static_credentials,
        s3_anonymous_credentials,
        s3_credentials,
        s3_from_env_credentials,
        s3_refreshable_credentials,
        s3_static_credentials,
    )
    from icefloe.errors import (
        AlreadyExistsError,
        ConflictError,
        ErrorKind,
        FormatError,
        Hint,
        IcechunkError,
        InternalError,
        InvalidInputError,
        NodeNotFoundError,
        NotFoundError,
        ReadOnlyError,
        RebaseFailedError,
        RefNotFoundError,
        RepositoryNotFoundError,
        SessionStateError,
        SnapshotNotFoundError,
        StorageError,
    )
    from icefloe.export import ExportReport, export_zarr
    from icefloe.export.netcdf import export_netcdf
    from icefloe.legacy.upgrade import MigrationReport, migrate
    from icefloe.maintenance.clone import CloneReport
    from icefloe.maintenance.integrity.findings import VerifyReport
    from icefloe.maintenance.integrity.repair import ChunkSource, RepairReport
    from icefloe.maintenance.retention import RetentionPolicy, RetentionReport
    from icefloe.maintenance.storage_stats import ReclaimableStorage
    from icefloe.migrations import upgrade_icechunk_repository
    from icefloe.ops import (
        GCSummary,
        Update,
        UpdateType,
    )
    from icefloe.pipeline import ingest_files
    from icefloe.repository import (
        Repository,
    )
    from icefloe.session import (
        ForkSession,
        Session,
    )
    from icefloe.snapshots import (
        AncestryGraph,
        Diff,
        ManifestFileInfo,
        SnapshotInfo,
    )
    from icefloe.storage import (
        AnyObjectStoreConfig,
        ChecksumAlgorithm,
        S3Options,
        Storage,
        StorageConcurrencySettings,
        StorageRetriesSettings,
        StorageSettings,
        StorageTimeoutSettings,
        azure_storage,
        gcs_storage,
        gcs_store,
        hf_storage,
        http_storage,
        http_store,
        in_memory_storage,
        local_filesystem_storage,
        local_filesystem_store,
        r2_storage,
        redirect_storage,
        s3_storage,
        s3_store,
        storage_from_url,
        tigris_storage,
    )
    from icefloe.store import (
        IcechunkStore,
    )
    from icefloe.types import (
        ChunkType,
        CommitMethod,
        RepoAvailability,
        RepoStatus,
        SessionMode,
        SpecVersion,
        VirtualChunkSpec,
    )

__all__ = [
    "AlreadyExistsError",
    "AncestryGraph",
    "AnyAzureCredential",
    "AnyAzureStaticCredential",
    "AnyCredential",
    "AnyGcsCredential",
    "AnyGcsStaticCredential",
    "AnyObjectStoreConfig",
    "AnyS3Credential",
    "Attribution",
    "AzureCredentials",
    "AzureRefreshableCredential",
    "AzureStaticCredentials",
    "BasicConflictSolver",
    "CachingConfig",
    "ChecksumAlgorithm",
    "ChunkDetails",
    "ChunkSource",
    "ChunkType",
    "CloneReport",
    "CommitKey",
    "CommitMethod",
    "CompressionAlgorithm",
    "CompressionConfig",
    "Conflict",
    "ConflictDetector",
    "ConflictError",
    "ConflictSolver",
    "ConflictType",
    "Credentials",
    "Diff",
    "ErrorKind",
    "ExportReport",
    "FeatureFlag",
    "ForkSession",
    "FormatError",
    "GCSummary",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "Hint",
    "IcechunkError",
    "IcechunkStore",
    "InternalError",
    "InvalidInputError",
    "ManifestConfig",
    "ManifestFileInfo",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "MergeConflict",
    "MergeConflictError",
    "MergeConflicts",
    "MergeResult",
    "MigrationReport",
    "NodeNotFoundError",
    "NotFoundError",
    "ObjectStoreConfig",
    "ReadOnlyError",
    "RebaseFailedError",
    "ReclaimableStorage",
    "RefNotFoundError",
    "RepairReport",
    "RepoAvailability",
    "RepoStatus",
    "Repository",
    "RepositoryConfig",
    "RepositoryNotFoundError",
    "RetentionPolicy",
    "RetentionReport",
    "S3Credentials",
    "S3Options",
    "S3StaticCredentials",
    "Session",
    "SessionMode",
    "SessionStateError",
    "SnapshotInfo",
    "SnapshotNotFoundError",
    "SpecVersion",
    "Storage",
    "StorageConcurrencySettings",
    "StorageError",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "Table",
    "Update",
    "UpdateType",
    "VerifyReport",
    "VersionSelection",
    "VirtualChunkContainer",
    "VirtualChunkSpec",
    "__version__",
    "azure_anonymous_credentials",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_refreshable_credentials",
    "azure_static_credentials",
    "azure_storage",
    "containers_credentials",
    "export_netcdf",
    "export_zarr",
    "gcs_credentials",
    "gcs_from_env_credentials",
    "gcs_refreshable_credentials",
    "gcs_static_credentials",
    "gcs_storage",
    "gcs_store",
    "hf_storage",
    "http_storage",
    "http_store",
    "in_memory_storage",
    "ingest_files",
    "initialize_logs",
    "install_as_icechunk",
    "local_filesystem_storage",
    "local_filesystem_store",
    "migrate",
    "print_debug_info",
    "r2_storage",
    "redirect_storage",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_refreshable_credentials",
    "s3_static_credentials",
    "s3_storage",
    "s3_store",
    "set_logs_filter",
    "shutdown_telemetry",
    "spec_version",
    "storage_from_url",
    "supported_spec_versions",
    "tigris_storage",
    "upgrade_icechunk_repository",
    "user_agent",
]

_HOMES = {
    "compatibility": "install_as_icechunk",
    "config": """
        Attribution CachingConfig CompressionAlgorithm CompressionConfig FeatureFlag ManifestConfig
        ManifestPreloadCondition ManifestPreloadConfig ManifestSplitCondition
        ManifestSplitDimCondition ManifestSplittingConfig
        ManifestVirtualChunkLocationCompressionConfig ObjectStoreConfig RepositoryConfig
        VirtualChunkContainer
    """,
    "conflicts": """
        BasicConflictSolver ChunkDetails Conflict ConflictDetector ConflictSolver ConflictType MergeConflict
        MergeConflictError MergeConflicts MergeResult VersionSelection
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
    "core.commit.idempotency": "CommitKey",
    "export": "ExportReport export_zarr",
    "export.netcdf": "export_netcdf",
    "maintenance.clone": "CloneReport",
    "maintenance.integrity.findings": "VerifyReport",
    "maintenance.integrity.repair": "ChunkSource RepairReport",
    "maintenance.retention": "RetentionPolicy RetentionReport",
    "maintenance.storage_stats": "ReclaimableStorage",
    "_internal.table": "Table",
    "legacy.upgrade": "MigrationReport migrate",
    "migrations": "upgrade_icechunk_repository",
    "ops": "GCSummary Update UpdateType",
    "pipeline": "ingest_files",
    "repository": "Repository",
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
"""The public names by the module that holds them."""

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

_MODULES = (
    "config",
    "conflicts",
    "credentials",
    "ops",
    "repository",
    "serve",
    "session",
    "snapshots",
    "storage",
    "store",
    "types",
    "virtual",
)
_DEBUG_PACKAGES = ("zarr", "numcodecs", "xarray", "virtualizarr", "obstore", "numpy")


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(f"icefloe.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(f"icefloe.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


def open(
    url: str,
    *,
    config: RepositoryConfig | None = None,
    authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
    attribution: Attribution | None = None,
    **options: Any,
) -> Repository:
    """The repository at a URL or path; options are those of `storage_from_url`."""
    from icefloe.repository import Repository
    from icefloe.storage import storage_from_url

    storage = storage_from_url(url, **options)
    return Repository.open(storage, config, authorize_virtual_chunk_access, attribution)


def spec_version() -> SpecVersion:
    """The version of the format that new repositories get."""
    from icefloe.types import SpecVersion

    return SpecVersion.current()


def supported_spec_versions() -> list[SpecVersion]:
    """The versions of the format that can be read and written, newest first."""
    from icefloe.types import SpecVersion

    return sorted(SpecVersion, reverse=True)


def user_agent() -> str:
    """Name and version, as they stand in the header of files and requests."""
    return f"icefloe-{__version__}"


def print_debug_info() -> None:
    """Print what a report of a bug should tell: platform, and the versions of Python and packages."""
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
