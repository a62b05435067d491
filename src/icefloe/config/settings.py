"""How a storage behaves: parallel requests, retries, timeouts, conditional writes, storage classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from icefloe.config.fields import ConfigPart, Number, Part, Simple, config_part, setting

_MIB = 1024 * 1024


@config_part
class StorageConcurrencySettings(ConfigPart):
    """How one large object is read in parallel: at most so many requests of about so many bytes."""

    module: ClassVar[str] = "storage"

    max_concurrent_requests_for_object: int | None = setting(Number(16, minimum=1), default=18)
    ideal_concurrent_request_size: int | None = setting(Number(64, minimum=1), default=12 * _MIB)


@config_part
class StorageRetriesSettings(ConfigPart):
    """How often a request is tried in all, and the pause between tries, which doubles up to a maximum."""

    module: ClassVar[str] = "storage"

    max_tries: int | None = setting(Number(16, minimum=1), default=10)
    initial_backoff_ms: int | None = setting(Number(32), default=100)
    max_backoff_ms: int | None = setting(Number(32), default=180_000)


@config_part
class StorageTimeoutSettings(ConfigPart):
    """How long to wait for a connection, for bytes, for one try and for all tries; None: the client's own."""

    module: ClassVar[str] = "storage"

    connect_timeout_ms: int | None = setting(Number(32), default=None)
    read_timeout_ms: int | None = setting(Number(32), default=None)
    operation_timeout_ms: int | None = setting(Number(32), default=None)
    operation_attempt_timeout_ms: int | None = setting(Number(32), default=None)


@config_part
class StorageSettings(ConfigPart):
    """How a storage behaves. Each backend has defaults of its own; these go over them.

    The `unsafe_*` flags switch off what an object store cannot do, at the price of lost commits when two
    writers meet. The folder of `local_filesystem_storage` keeps its compare-and-swap whatever they say.
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

    concurrency: StorageConcurrencySettings | None = setting(
        Part(StorageConcurrencySettings), default=None, shown_when_unset=StorageConcurrencySettings
    )
    retries: StorageRetriesSettings | None = setting(
        Part(StorageRetriesSettings), default=None, shown_when_unset=StorageRetriesSettings
    )
    unsafe_use_conditional_create: bool | None = setting(Simple(bool), default=True)
    unsafe_use_conditional_update: bool | None = setting(Simple(bool), default=True)
    unsafe_use_metadata: bool | None = setting(Simple(bool), default=True)
    storage_class: str | None = setting(Simple(str), default=None)
    metadata_storage_class: str | None = setting(Simple(str), default=None)
    chunks_storage_class: str | None = setting(Simple(str), default=None)
    minimum_size_for_multipart_upload: int | None = setting(Number(64), default=100 * _MIB)
    timeouts: StorageTimeoutSettings | None = setting(Part(StorageTimeoutSettings), default=None)

    def effective(self) -> EffectiveStorageSettings:
        """The settings with every default filled in."""
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
    """`StorageSettings` with every default filled in, for the storage that works by them."""

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
