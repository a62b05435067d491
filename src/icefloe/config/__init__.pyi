# The public names of the package. `__init__.py` imports each from its module on first use.
from icefloe._internal.logs import initialize_logs as initialize_logs
from icefloe._internal.logs import set_logs_filter as set_logs_filter
from icefloe._internal.logs import shutdown_telemetry as shutdown_telemetry
from icefloe.config.attribution import Attribution as Attribution
from icefloe.config.conditions import ManifestPreloadCondition as ManifestPreloadCondition
from icefloe.config.conditions import ManifestSplitCondition as ManifestSplitCondition
from icefloe.config.conditions import ManifestSplitDimCondition as ManifestSplitDimCondition
from icefloe.config.feature_flags import FeatureFlag as FeatureFlag
from icefloe.config.repository import CachingConfig as CachingConfig
from icefloe.config.repository import CompressionAlgorithm as CompressionAlgorithm
from icefloe.config.repository import CompressionConfig as CompressionConfig
from icefloe.config.repository import EffectiveConfig as EffectiveConfig
from icefloe.config.repository import ManifestConfig as ManifestConfig
from icefloe.config.repository import ManifestPreloadConfig as ManifestPreloadConfig
from icefloe.config.repository import ManifestSplittingConfig as ManifestSplittingConfig
from icefloe.config.repository import ManifestSplitValues as ManifestSplitValues
from icefloe.config.repository import (
    ManifestVirtualChunkLocationCompressionConfig as ManifestVirtualChunkLocationCompressionConfig,
)
from icefloe.config.repository import RepositoryConfig as RepositoryConfig
from icefloe.config.repository import RepoUpdateRetryConfig as RepoUpdateRetryConfig
from icefloe.config.repository import SplitSizesDict as SplitSizesDict
from icefloe.config.repository import from_dict as from_dict
from icefloe.config.repository import to_dict as to_dict
from icefloe.config.settings import EffectiveStorageSettings as EffectiveStorageSettings
from icefloe.config.settings import StorageConcurrencySettings as StorageConcurrencySettings
from icefloe.config.settings import StorageRetriesSettings as StorageRetriesSettings
from icefloe.config.settings import StorageSettings as StorageSettings
from icefloe.config.settings import StorageTimeoutSettings as StorageTimeoutSettings
from icefloe.config.stores import AnyObjectStoreConfig as AnyObjectStoreConfig
from icefloe.config.stores import ChecksumAlgorithm as ChecksumAlgorithm
from icefloe.config.stores import ObjectStoreConfig as ObjectStoreConfig
from icefloe.config.stores import S3Options as S3Options
from icefloe.config.stores import VirtualChunkContainer as VirtualChunkContainer
from icefloe.config.stores import azure_store as azure_store
from icefloe.config.stores import gcs_store as gcs_store
from icefloe.config.stores import http_store as http_store
from icefloe.config.stores import local_filesystem_store as local_filesystem_store
from icefloe.config.stores import s3_store as s3_store
