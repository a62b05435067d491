"""Storage settings: parallel requests, retries, timeouts, conditional writes and storage classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from icefloe.config.fields import ConfigPart, Number, Part, Simple, config_part, declare_setting

_MIB = 1024 * 1024


@config_part
class StorageConcurrencySettings(ConfigPart):
    """Settings for reading one large object in parallel.

    Parameters
    ----------
    max_concurrent_requests_for_object
        The maximum number of concurrent requests. Default: 18.
    ideal_concurrent_request_size
        The size of each request, in bytes. Default: 12 MiB.
    """

    module: ClassVar[str] = "storage"

    max_concurrent_requests_for_object: int | None = declare_setting(Number(16, minimum=1), default=18)
    ideal_concurrent_request_size: int | None = declare_setting(Number(64, minimum=1), default=12 * _MIB)


@config_part
class StorageRetriesSettings(ConfigPart):
    """Settings for request retries: the number of attempts, and the exponential backoff between them.

    Parameters
    ----------
    max_tries
        The number of attempts. Default: 10.
    initial_backoff_ms
        The first backoff. Default: 100.
    max_backoff_ms
        The maximum backoff. Default: 180,000.
    """

    module: ClassVar[str] = "storage"

    max_tries: int | None = declare_setting(Number(16, minimum=1), default=10)
    initial_backoff_ms: int | None = declare_setting(Number(32), default=100)
    max_backoff_ms: int | None = declare_setting(Number(32), default=180_000)


@config_part
class StorageTimeoutSettings(ConfigPart):
    """Request timeouts. None stands for the default of the client.

    Parameters
    ----------
    connect_timeout_ms
        The maximum time to open a connection.
    read_timeout_ms
        The maximum time without receiving any data.
    operation_timeout_ms
        The maximum time for an operation, including all attempts.
    operation_attempt_timeout_ms
        The maximum time for one attempt.
    """

    module: ClassVar[str] = "storage"

    connect_timeout_ms: int | None = declare_setting(Number(32), default=None)
    read_timeout_ms: int | None = declare_setting(Number(32), default=None)
    operation_timeout_ms: int | None = declare_setting(Number(32), default=None)
    operation_attempt_timeout_ms: int | None = declare_setting(Number(32), default=None)


@config_part
class StorageSettings(ConfigPart):
    """The settings of a storage, which override the defaults of its back end.

    The `unsafe_*` flags disable features that an object store lacks. Commits can then be lost when two
    writers commit at the same time. `local_filesystem_storage` ignores them:
    it always compares before it replaces a file.

    Parameters
    ----------
    concurrency
        The parallel reading of large objects.
    retries
        The retries of failed requests.
    unsafe_use_conditional_create
        Create objects only if they do not exist yet. Default: True.
    unsafe_use_conditional_update
        Replace objects only if they have not changed. Default: True.
    unsafe_use_metadata
        Store metadata with objects. Default: True.
    storage_class
        The storage class of all objects.
    metadata_storage_class
        The storage class of metadata files.
    chunks_storage_class
        The storage class of chunks.
    minimum_size_for_multipart_upload
        The size in bytes from which objects are uploaded in parts. Default: 100 MiB.
    timeouts
        The timeouts of requests.
    """

    module: ClassVar[str] = "storage"
    on_disk: ClassVar[tuple[str, ...]] = (
        "concurrency",
        "retries",
        "timeouts",
        "unsafe_use_conditional_update",
        "unsafe_use_conditional_create",
        "unsafe_use_metadata",
        "storage_class",
        "metadata_storage_class",
        "chunks_storage_class",
        "minimum_size_for_multipart_upload",
    )

    concurrency: StorageConcurrencySettings | None = declare_setting(
        Part(StorageConcurrencySettings), default=None, shown_when_unset=StorageConcurrencySettings
    )
    retries: StorageRetriesSettings | None = declare_setting(
        Part(StorageRetriesSettings), default=None, shown_when_unset=StorageRetriesSettings
    )
    unsafe_use_conditional_create: bool | None = declare_setting(Simple(bool), default=True)
    unsafe_use_conditional_update: bool | None = declare_setting(Simple(bool), default=True)
    unsafe_use_metadata: bool | None = declare_setting(Simple(bool), default=True)
    storage_class: str | None = declare_setting(Simple(str), default=None)
    metadata_storage_class: str | None = declare_setting(Simple(str), default=None)
    chunks_storage_class: str | None = declare_setting(Simple(str), default=None)
    minimum_size_for_multipart_upload: int | None = declare_setting(Number(64), default=100 * _MIB)
    timeouts: StorageTimeoutSettings | None = declare_setting(Part(StorageTimeoutSettings), default=None)

    def effective(self) -> EffectiveStorageSettings:
        """Return the storage settings with all defaults filled in.

        Returns
        -------
        EffectiveStorageSettings
            The settings that the storage uses.
        """
        full = self.resolved()
        concurrency = full.concurrency or StorageConcurrencySettings().resolved()
        retries = full.retries or StorageRetriesSettings().resolved()
        timeouts = full.timeouts or StorageTimeoutSettings()
        return EffectiveStorageSettings(
            max_concurrent_requests_for_object=concurrency.max_concurrent_requests_for_object or 1,
            ideal_concurrent_request_size=concurrency.ideal_concurrent_request_size or 1,
            max_tries=retries.max_tries or 1,
            initial_backoff_ms=retries.initial_backoff_ms or 0,
            max_backoff_ms=retries.max_backoff_ms or 0,
            connect_timeout_ms=timeouts.connect_timeout_ms,
            read_timeout_ms=timeouts.read_timeout_ms,
            operation_timeout_ms=timeouts.operation_timeout_ms,
            operation_attempt_timeout_ms=timeouts.operation_attempt_timeout_ms,
            use_conditional_create=bool(full.unsafe_use_conditional_create),
            use_conditional_update=bool(full.unsafe_use_conditional_update),
            use_metadata=bool(full.unsafe_use_metadata),
            metadata_storage_class=full.metadata_storage_class or full.storage_class,
            chunks_storage_class=full.chunks_storage_class or full.storage_class,
            minimum_size_for_multipart_upload=full.minimum_size_for_multipart_upload or 0,
        )


@dataclass(frozen=True, slots=True)
class EffectiveStorageSettings:
    """`StorageSettings` with all defaults filled in, for use by the storage."""

    max_concurrent_requests_for_object: int
    ideal_concurrent_request_size: int
    max_tries: int
    initial_backoff_ms: int
    max_backoff_ms: int
    connect_timeout_ms: int | None
    read_timeout_ms: int | None
    operation_timeout_ms: int | None
    operation_attempt_timeout_ms: int | None
    use_conditional_create: bool
    use_conditional_update: bool
    use_metadata: bool
    metadata_storage_class: str | None
    chunks_storage_class: str | None
    minimum_size_for_multipart_upload: int
