"""Storages of repositories, and the functions that create them.

As in the official package, this module also has the settings of storages and the functions for virtual chunk
containers. Functions that create storages are imported on first use, because they load all back ends.
"""

from typing import TYPE_CHECKING, Any

from icefloe.config import (
    AnyObjectStoreConfig,
    ChecksumAlgorithm,
    ObjectStoreConfig,
    S3Options,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.storage.base import (
    ABSENT,
    ALWAYS,
    Absent,
    Always,
    ConditionNotMetError,
    DeleteReport,
    ObjectKind,
    ObjectNotFoundError,
    PutCondition,
    StorageObjectInfo,
    Unchanged,
    Version,
)

if TYPE_CHECKING:
    from icefloe.storage.base import Storage
    from icefloe.storage.factories import (
        azure_storage,
        gcs_storage,
        hf_storage,
        http_storage,
        in_memory_storage,
        local_filesystem_storage,
        r2_storage,
        s3_object_store_storage,
        s3_storage,
        tigris_storage,
    )
    from icefloe.storage.urls import redirect_storage, storage_from_url
    from icefloe.types import ChunkType

__all__ = [
    "ABSENT",
    "ALWAYS",
    "Absent",
    "Always",
    "AnyObjectStoreConfig",
    "ChecksumAlgorithm",
    "ChunkType",
    "ConditionNotMetError",
    "DeleteReport",
    "ObjectKind",
    "ObjectNotFoundError",
    "ObjectStoreConfig",
    "PutCondition",
    "S3Options",
    "Storage",
    "StorageConcurrencySettings",
    "StorageObjectInfo",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "Unchanged",
    "Version",
    "azure_storage",
    "azure_store",
    "gcs_storage",
    "gcs_store",
    "hf_storage",
    "http_storage",
    "http_store",
    "in_memory_storage",
    "local_filesystem_storage",
    "local_filesystem_store",
    "r2_storage",
    "redirect_storage",
    "s3_object_store_storage",
    "s3_storage",
    "s3_store",
    "storage_from_url",
    "tigris_storage",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from icefloe import types
    from icefloe.storage import factories, urls  # these modules add the constructors of `Storage`

    value = next(getattr(home, name) for home in (urls, factories, types) if hasattr(home, name))
    globals()[name] = value
    return value
