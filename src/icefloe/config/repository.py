"""`RepositoryConfig` and its parts, except for storage settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, EnumType
from functools import cache
from typing import Any, ClassVar, Self, TypeAlias

from icefloe.config.conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.config.fields import Choice, ConfigPart, Number, Part, Simple, config_part, declare_setting
from icefloe.config.settings import StorageRetriesSettings, StorageSettings
from icefloe.config.stores import VirtualChunkContainer

_COORDINATE_NAMES = (
    r"^(t|(time|min|hour|day|week|month|year)[0-9]*)$",
    r"^(z|lev|olev|depth|height|hght|altitude|pres|sigma|isobaric|isotherm|bottom_top|nav_lev|gdep|lv_)"
    r"[a-z_]*[0-9]*$",
    r"^(y|j|nj|nlat|rlat)$",
    r"^y?(lat|nav_lat|gphi)[a-z0-9]*$",
    r"^x?(lon|nav_lon|glam)[a-z0-9]*$",
    r"^(x|i|ni|nlon|rlon)$",
)

_UNLIMITED = 2**32 - 1

SplitSizes: TypeAlias = tuple[
    tuple[ManifestSplitCondition, tuple[tuple[ManifestSplitDimCondition, int], ...]], ...
]
ManifestSplitValues: TypeAlias = dict[ManifestSplitDimCondition, int]
SplitSizesDict: TypeAlias = dict[ManifestSplitCondition, ManifestSplitValues]


class _WithDefault(EnumType):
    """An enum metaclass whose classes return their first member when they are called without arguments."""

    def __call__(cls, value: Any = 0, *names: Any, **options: Any) -> Any:
        return super().__call__(value, *names, **options)


class CompressionAlgorithm(Enum, metaclass=_WithDefault):
    """The compression algorithm for metadata files."""

    Zstd = 0

    @staticmethod
    def default() -> CompressionAlgorithm:
        """Return the default compression algorithm.

        Returns
        -------
        CompressionAlgorithm
            Zstd, the only algorithm.
        """
        return CompressionAlgorithm.Zstd

    def __int__(self) -> int:
        return int(self.value)


@config_part
class CompressionConfig(ConfigPart):
    """How metadata files are compressed.

    Chunks are not affected: they are stored as zarr encodes them.

    Parameters
    ----------
    algorithm
        The compression algorithm. Default: Zstd.
    level
        The compression level. Default: 3.
    """

    algorithm: CompressionAlgorithm | None = declare_setting(
        Choice(CompressionAlgorithm, {CompressionAlgorithm.Zstd: "zstd"}), default=CompressionAlgorithm.Zstd
    )
    level: int | None = declare_setting(Number(8), default=3)

    @staticmethod
    def default() -> CompressionConfig:
        """Return a compression configuration in which every field is unset.

        Returns
        -------
        CompressionConfig
            The configuration.
        """
        return CompressionConfig()


@config_part
class CachingConfig(ConfigPart):
    """The sizes of the caches for snapshots, manifests, transaction logs and chunks.

    Parameters
    ----------
    num_snapshot_nodes
        The number of nodes in cached snapshots. Default: 500,000.
    num_chunk_refs
        The number of chunk references in cached manifests. Default: 15,000,000.
    num_transaction_changes
        The number of changes in cached transaction logs. Default: 0.
    num_bytes_attributes
        Not used.
    num_bytes_chunks
        The number of bytes of cached chunks. Default: 0.
    """

    num_snapshot_nodes: int | None = declare_setting(Number(), default=500_000)
    num_chunk_refs: int | None = declare_setting(Number(), default=15_000_000)
    num_transaction_changes: int | None = declare_setting(Number(), default=0)
    num_bytes_attributes: int | None = declare_setting(Number(), default=0)
    num_bytes_chunks: int | None = declare_setting(Number(), default=0)

    @staticmethod
    def default() -> CachingConfig:
        """Return a cache configuration in which every field is unset.

        Returns
        -------
        CachingConfig
            The configuration.
        """
        return CachingConfig()


def make_default_preload_condition() -> ManifestPreloadCondition:
    """Create the default preload condition, which selects small manifests of arrays that look like
    coordinates.
    """
    names = map(ManifestPreloadCondition.name_matches, _COORDINATE_NAMES)
    return ManifestPreloadCondition.or_conditions(names) & ManifestPreloadCondition.num_refs(None, 1001)


@config_part
class ManifestPreloadConfig(ConfigPart):
    """The selection of manifests that are read in the background when a session opens.

    Parameters
    ----------
    max_total_refs
        The maximum number of chunk references to preload. Default: 10,000.
    preload_if
        The condition that selects manifests. Default: small manifests of coordinate arrays.
    max_arrays_to_scan
        The maximum number of arrays to check. Default: 50.
    """

    max_total_refs: int | None = declare_setting(Number(32), default=10_000)
    preload_if: ManifestPreloadCondition | None = declare_setting(
        Part(ManifestPreloadCondition), default=make_default_preload_condition
    )
    max_arrays_to_scan: int | None = declare_setting(Number(32), default=50)


class _SplitSizesCodec:
    """The codec of split sizes: accepted as nested sequences, kept as nested tuples, and stored as lists and
    maps with one key.
    """

    def check(self, value: Any) -> SplitSizes:
        return tuple(
            (_split_condition(c), tuple(_make_dim_size(*pair) for pair in sizes)) for c, sizes in value
        )

    def to_plain(self, value: SplitSizes) -> Any:
        return [
            [condition.to_plain(), [{"condition": d.to_plain(), "num_chunks": n} for d, n in sizes]]
            for condition, sizes in value
        ]

    def from_plain(self, plain: Any) -> SplitSizes:
        return self.check(
            (
                ManifestSplitCondition.from_plain(condition),
                [(ManifestSplitDimCondition.from_plain(s["condition"]), s["num_chunks"]) for s in sizes],
            )
            for condition, sizes in plain
        )


_NO_SPLIT: SplitSizes = (
    (ManifestSplitCondition.AnyArray(), ((ManifestSplitDimCondition.Any(), _UNLIMITED),)),
)


@config_part
class ManifestSplittingConfig(ConfigPart):
    """How the references of large arrays are split into several manifests, by number of chunks along each
    dimension.

    The first matching rule applies.

    Parameters
    ----------
    split_sizes
        Pairs of a condition on arrays and a sequence of sizes. Each size is a pair of a condition on
        dimensions and a number of chunks.
    """

    split_sizes: SplitSizes | None = declare_setting(_SplitSizesCodec(), default=lambda: _NO_SPLIT)

    @staticmethod
    def from_dict(split_sizes: SplitSizesDict) -> ManifestSplittingConfig:
        """Create a manifest splitting configuration from nested dicts, keeping their order.

        Parameters
        ----------
        split_sizes
            For each condition on arrays, the number of chunks by condition on dimensions.

        Returns
        -------
        ManifestSplittingConfig
            The configuration.
        """
        return from_dict(split_sizes)

    def to_dict(self) -> SplitSizesDict:
        """Convert the manifest splitting configuration to nested dicts, keeping their order.

        Returns
        -------
        dict
            For each condition on arrays, the number of chunks by condition on dimensions.
        """
        return to_dict(self)


def from_dict(split_sizes: SplitSizesDict) -> ManifestSplittingConfig:
    """Create a manifest splitting configuration from nested dicts, keeping their order."""
    return ManifestSplittingConfig(tuple((rule, tuple(sizes.items())) for rule, sizes in split_sizes.items()))


def to_dict(config: ManifestSplittingConfig) -> SplitSizesDict:
    """Convert the manifest splitting configuration to nested dicts, keeping their order."""
    return {rule: dict(sizes) for rule, sizes in config.split_sizes or ()}


@config_part
class ManifestVirtualChunkLocationCompressionConfig(ConfigPart):
    """How virtual chunk locations are compressed with a zstd dictionary.

    Parameters
    ----------
    min_num_chunks
        The minimum number of virtual chunks in a manifest for its locations to be compressed. Default: 1000.
    dictionary_max_training_samples
        The maximum number of locations to train the dictionary with. Default: 100.
    dictionary_max_size_bytes
        The size of the dictionary. Default: 2048.
    compression_level
        The zstd level. Default: 3.
    """

    min_num_chunks: int | None = declare_setting(Number(16), default=1000)
    dictionary_max_training_samples: int | None = declare_setting(Number(16), default=100, kw_only=True)
    dictionary_max_size_bytes: int | None = declare_setting(Number(32), default=2048, kw_only=True)
    compression_level: int | None = declare_setting(Number(32, signed=True), default=3, kw_only=True)


@config_part
class ManifestConfig(ConfigPart):
    """How manifests are preloaded, split, compressed and fetched.

    Parameters
    ----------
    preload
        The manifests to read when a session opens.
    splitting
        How the references of an array are split into manifests.
    virtual_chunk_location_compression
        How virtual chunk locations are compressed.
    max_concurrent_manifest_fetches_during_commit
        The number of manifests that a commit reads at a time. Default: 1.
    pack_small_arrays
        Store the references of several small arrays in one manifest. The official class does not have this
        setting. Default: False.
    """

    preload: ManifestPreloadConfig | None = declare_setting(
        Part(ManifestPreloadConfig), default=None, shown_when_unset=ManifestPreloadConfig, replaced_whole=True
    )
    splitting: ManifestSplittingConfig | None = declare_setting(
        Part(ManifestSplittingConfig),
        default=None,
        shown_when_unset=ManifestSplittingConfig,
        replaced_whole=True,
    )
    virtual_chunk_location_compression: ManifestVirtualChunkLocationCompressionConfig | None = (
        declare_setting(
            Part(ManifestVirtualChunkLocationCompressionConfig),
            default=None,
            shown_when_unset=ManifestVirtualChunkLocationCompressionConfig,
        )
    )
    max_concurrent_manifest_fetches_during_commit: int | None = declare_setting(Number(16), default=1)
    pack_small_arrays: bool | None = declare_setting(Simple(bool), default=None, kw_only=True, own=True)


def _update_retries() -> StorageRetriesSettings:
    return StorageRetriesSettings(max_tries=100, initial_backoff_ms=50, max_backoff_ms=30_000)


@config_part
class RepoUpdateRetryConfig(ConfigPart):
    """How changes to branches, tags and configuration are retried when they conflict with other changes.

    Parameters
    ----------
    default
        The number of attempts, and the backoff between them. Default: 100 attempts with a backoff of 50 ms to
        30 s.
    """

    default: StorageRetriesSettings | None = declare_setting(
        Part(StorageRetriesSettings), default=None, shown_when_unset=_update_retries
    )


class _ContainersCodec:
    """The codec of the virtual chunk containers, a mapping by URL prefix."""

    def check(self, value: Any) -> dict[str, VirtualChunkContainer]:
        if not isinstance(value, Mapping):
            raise TypeError("virtual_chunk_containers must be a dict")
        if not all(isinstance(container, VirtualChunkContainer) for container in value.values()):
            raise TypeError("virtual_chunk_containers must hold VirtualChunkContainer values")
        return dict(value)

    def to_plain(self, value: dict[str, VirtualChunkContainer]) -> Any:
        return {prefix: container.to_plain() for prefix, container in value.items()}

    def from_plain(self, plain: Any) -> dict[str, VirtualChunkContainer]:
        if not isinstance(plain, Mapping):
            raise TypeError(f"expected a map, not {type(plain).__name__}")
        return {prefix: VirtualChunkContainer.from_plain(item) for prefix, item in plain.items()}


@cache
def _count_cores() -> int:
    return os.cpu_count() or 1


@config_part
class RepositoryConfig(ConfigPart):
    """The configuration of a repository. Fields that are None have their default values.

    A configuration is stored in the repository. A configuration that is passed when the repository is opened
    overrides the stored one.

    Parameters
    ----------
    inline_chunk_threshold_bytes
        Chunks up to this size are stored inline, in manifests. Default: 512.
    get_partial_values_concurrency
        The number of concurrent reads in `get_partial_values`. Default: 10.
    compression
        The compression of metadata files.
    max_concurrent_requests
        The number of concurrent requests to the storage. Default: 256.
    caching
        The sizes of the caches.
    storage
        The settings of the storage.
    virtual_chunk_containers
        The virtual chunk containers, by URL prefix.
    manifest
        The preloading, splitting and compression of manifests.
    repo_update_retries
        The retries for changes that conflict with other writers.
    num_updates_per_repo_info_file
        The number of entries in the ops log after which it continues in a backup file. Default: 1000.
    max_concurrent_decodes
        The number of chunks that are decoded at a time. Default: the number of cores.
    """

    on_disk: ClassVar[tuple[str, ...]] = (
        "inline_chunk_threshold_bytes",
        "get_partial_values_concurrency",
        "compression",
        "max_concurrent_requests",
        "max_concurrent_decodes",
        "caching",
        "storage",
        "virtual_chunk_containers",
        "manifest",
        "previous_file",
        "repo_update_retries",
        "num_updates_per_repo_info_file",
    )
    reserved: ClassVar[tuple[str, ...]] = ("previous_file",)

    inline_chunk_threshold_bytes: int | None = declare_setting(Number(16), default=512)
    get_partial_values_concurrency: int | None = declare_setting(Number(16), default=10)
    compression: CompressionConfig | None = declare_setting(
        Part(CompressionConfig), default=None, shown_when_unset=CompressionConfig
    )
    max_concurrent_requests: int | None = declare_setting(Number(16), default=256)
    caching: CachingConfig | None = declare_setting(
        Part(CachingConfig), default=None, shown_when_unset=CachingConfig
    )
    storage: StorageSettings | None = declare_setting(Part(StorageSettings), default=None)
    virtual_chunk_containers: dict[str, VirtualChunkContainer] | None = declare_setting(
        _ContainersCodec(), default=None
    )
    manifest: ManifestConfig | None = declare_setting(
        Part(ManifestConfig), default=None, shown_when_unset=ManifestConfig
    )
    repo_update_retries: RepoUpdateRetryConfig | None = declare_setting(
        Part(RepoUpdateRetryConfig), default=None, shown_when_unset=RepoUpdateRetryConfig
    )
    num_updates_per_repo_info_file: int | None = declare_setting(Number(16), default=1000)
    max_concurrent_decodes: int | None = declare_setting(Number(16), default=_count_cores)

    @staticmethod
    def default() -> RepositoryConfig:
        """Return a repository configuration in which every field is unset.

        Returns
        -------
        RepositoryConfig
            The configuration.
        """
        return RepositoryConfig()

    @property
    def previous_file(self) -> None:
        """Always None. This attribute exists because the official class has it."""
        return

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """Return the virtual chunk container with the given URL prefix.

        Parameters
        ----------
        name
            The URL prefix.

        Returns
        -------
        VirtualChunkContainer or None
            The container, if there is one.
        """
        return (self.virtual_chunk_containers or {}).get(name)

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Add a virtual chunk container.

        It replaces a container with the same URL prefix or name.

        Parameters
        ----------
        cont
            The container.

        Raises
        ------
        ValueError
            If the prefix, name and store of the container are inconsistent.
        """
        cont.check()
        kept = {
            prefix: other
            for prefix, other in (self.virtual_chunk_containers or {}).items()
            if cont.name is None or other.name != cont.name
        }
        self.virtual_chunk_containers = {**kept, cont.url_prefix: cont}

    def clear_virtual_chunk_containers(self) -> None:
        """Remove all virtual chunk containers.

        When this configuration is merged into a stored one, the stored containers are removed as well.
        """
        self.virtual_chunk_containers = {}

    def merge(self, other: Self) -> Self:
        """Merge two repository configurations. Values that are set in `other` win.

        Parts are merged field by field, except for `preload`, `splitting` and the virtual chunk containers,
        which are replaced.

        Parameters
        ----------
        other
            The configuration whose values win.

        Returns
        -------
        RepositoryConfig
            The merged configuration.
        """
        return super().merge(other)

    def effective(self) -> EffectiveConfig:
        """Return the configuration with all defaults filled in, except for storage settings, which depend on
        the storage.

        Returns
        -------
        EffectiveConfig
            The flat configuration that the engine uses.
        """
        full = self.resolved()
        caching = full.caching or CachingConfig().resolved()
        manifest = full.manifest or ManifestConfig().resolved()
        preload = manifest.preload or ManifestPreloadConfig().resolved()
        splitting = manifest.splitting or ManifestSplittingConfig()
        locations = (
            manifest.virtual_chunk_location_compression or ManifestVirtualChunkLocationCompressionConfig()
        ).resolved()
        retries = (
            (full.repo_update_retries and full.repo_update_retries.default) or _update_retries()
        ).resolved()
        return EffectiveConfig(
            inline_chunk_threshold_bytes=full.inline_chunk_threshold_bytes or 0,
            get_partial_values_concurrency=max(full.get_partial_values_concurrency or 1, 1),
            compression_level=((full.compression or CompressionConfig()).resolved()).level or 0,
            max_concurrent_requests=max(full.max_concurrent_requests or 1, 1),
            max_concurrent_decodes=max(full.max_concurrent_decodes or 1, 1),
            num_snapshot_nodes=caching.num_snapshot_nodes or 0,
            num_chunk_refs=caching.num_chunk_refs or 0,
            num_transaction_changes=caching.num_transaction_changes or 0,
            num_bytes_chunks=caching.num_bytes_chunks or 0,
            preload_max_total_refs=preload.max_total_refs or 0,
            preload_if=preload.preload_if or make_default_preload_condition(),
            preload_max_arrays_to_scan=preload.max_arrays_to_scan or 0,
            split_sizes=_replace_zeros(splitting.split_sizes or ()),
            pack_small_arrays=bool(manifest.pack_small_arrays),
            compress_locations=(
                self.manifest is not None and self.manifest.virtual_chunk_location_compression is not None
            ),
            location_compression_min_num_chunks=locations.min_num_chunks or 0,
            location_dictionary_max_training_samples=locations.dictionary_max_training_samples or 0,
            location_dictionary_max_size_bytes=locations.dictionary_max_size_bytes or 0,
            location_compression_level=locations.compression_level or 0,
            max_concurrent_manifest_fetches=max(
                manifest.max_concurrent_manifest_fetches_during_commit or 1, 1
            ),
            update_max_tries=retries.max_tries or 1,
            update_initial_backoff_ms=retries.initial_backoff_ms or 0,
            update_max_backoff_ms=retries.max_backoff_ms or 0,
            num_updates_per_repo_info_file=full.num_updates_per_repo_info_file or 0,
        )


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """A flat `RepositoryConfig` for the engine, with all defaults filled in."""

    inline_chunk_threshold_bytes: int
    get_partial_values_concurrency: int
    compression_level: int
    max_concurrent_requests: int
    max_concurrent_decodes: int
    num_snapshot_nodes: int
    num_chunk_refs: int
    num_transaction_changes: int
    num_bytes_chunks: int
    preload_max_total_refs: int
    preload_if: ManifestPreloadCondition
    preload_max_arrays_to_scan: int
    split_sizes: SplitSizes
    pack_small_arrays: bool
    compress_locations: bool
    """True if the configuration asks for compressed locations."""
    location_compression_min_num_chunks: int
    location_dictionary_max_training_samples: int
    location_dictionary_max_size_bytes: int
    location_compression_level: int
    max_concurrent_manifest_fetches: int
    update_max_tries: int
    update_initial_backoff_ms: int
    update_max_backoff_ms: int
    num_updates_per_repo_info_file: int


def _split_condition(value: object) -> ManifestSplitCondition:
    if not isinstance(value, ManifestSplitCondition):
        raise TypeError(f"'{type(value).__name__}' object is not a ManifestSplitCondition")
    return value


def _make_dim_size(condition: object, num_chunks: object) -> tuple[ManifestSplitDimCondition, int]:
    if not isinstance(condition, ManifestSplitDimCondition):
        raise TypeError(f"'{type(condition).__name__}' object is not a ManifestSplitDimCondition")
    return condition, Number(32).check(num_chunks)


def _replace_zeros(split_sizes: SplitSizes) -> SplitSizes:
    """Replace split sizes of 0, which the official library accepts, with unlimited sizes."""
    return tuple((c, tuple((d, n or _UNLIMITED) for d, n in sizes)) for c, sizes in split_sizes)
