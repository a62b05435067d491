"""The configuration of a repository, its parts, and virtual chunk containers.

These classes convert to plain dicts and back (`to_plain`, `from_plain`) in the form that is stored: every key
is present, None if it is not set, and enums are strings or maps with one key. `format` turns the dicts into
bytes.
"""

from icefloe._internal.logs import initialize_logs, set_logs_filter, shutdown_telemetry
from icefloe.config.attribution import Attribution
from icefloe.config.conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.config.feature_flags import FeatureFlag
from icefloe.config.repository import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    EffectiveConfig,
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestSplittingConfig,
    ManifestSplitValues,
    ManifestVirtualChunkLocationCompressionConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    SplitSizesDict,
    from_dict,
    to_dict,
)
from icefloe.config.settings import (
    EffectiveStorageSettings,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.config.stores import (
    AnyObjectStoreConfig,
    ChecksumAlgorithm,
    ObjectStoreConfig,
    S3Options,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)

__all__ = [
    "AnyObjectStoreConfig",
    "Attribution",
    "CachingConfig",
    "ChecksumAlgorithm",
    "CompressionAlgorithm",
    "CompressionConfig",
    "EffectiveConfig",
    "EffectiveStorageSettings",
    "FeatureFlag",
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplitValues",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "ObjectStoreConfig",
    "RepoUpdateRetryConfig",
    "RepositoryConfig",
    "S3Options",
    "SplitSizesDict",
    "StorageConcurrencySettings",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "VirtualChunkContainer",
    "azure_store",
    "from_dict",
    "gcs_store",
    "http_store",
    "initialize_logs",
    "local_filesystem_store",
    "s3_store",
    "set_logs_filter",
    "shutdown_telemetry",
    "to_dict",
]
