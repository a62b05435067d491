"""Read and write the immutable objects of a repository. Decoded objects are cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar

from icefloe._internal.concurrency import fork_safe_lock, release_freed_memory
from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, ChunkId, ManifestId, SnapshotId
from icefloe.config import EffectiveConfig
from icefloe.core.cache import WeightedCache
from icefloe.core.virtual_chunks.authorized_reads import VirtualReader
from icefloe.encoding.envelope import IMPLEMENTATION
from icefloe.errors import ErrorKind, SnapshotNotFoundError
from icefloe.format.files import (
    CHUNKS,
    LARGE_LOG_BYTES,
    MANIFESTS,
    SNAPSHOTS,
    TRANSACTIONS,
    SealedLog,
    is_write_once,
    pack_manifest,
    read_manifest,
    read_snapshot,
    read_transaction_log,
    seal_manifest,
    write_snapshot,
    write_transaction_log,
)
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import Manifest, NativeRef
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.snapshot import ManifestFileInfo, Snapshot
from icefloe.format.spec import Spec
from icefloe.format.transaction_log import LISTS, TransactionLog
from icefloe.storage.base import ObjectKind, ObjectNotFoundError, Storage
from icefloe.storage.disk_cache import CachedLocation

Value = TypeVar("Value")

_ZSTD_NAME: Final = "zstd"
_decoding_large_log = fork_safe_lock()
_FIRST_SNAPSHOT: Final = f"{SNAPSHOTS}/{INITIAL_SNAPSHOT_ID}"


def decode_log(data: bytes, id: SnapshotId) -> TransactionLog:
    """Decode a transaction log file. Large logs are decoded one at a time, even when several logs are read in
    parallel.
    """
    if len(data) < LARGE_LOG_BYTES:
        return read_transaction_log(data, id)
    with _decoding_large_log:
        log = read_transaction_log(data, id)
        release_freed_memory()  # otherwise each thread would use memory for one log
        return log


class AssetStore:
    """Reads and writes the snapshots, manifests, transaction logs and chunks of one repository, and caches
    them.
    """

    def __init__(
        self, storage: Storage, spec: Spec, config: EffectiveConfig, virtual: VirtualReader | None = None
    ) -> None:
        self.storage = storage
        self.spec = spec
        self.config = config
        self.virtual = virtual or VirtualReader()
        self.disk: CachedLocation | None = None
        """This repository's entries in the disk cache."""
        self._snapshots: WeightedCache[SnapshotId, Snapshot] = WeightedCache(
            config.num_snapshot_nodes,
            lambda snapshot: max(len(snapshot.nodes), 1),
            lambda nodes: (
                f"a snapshot with {nodes} nodes is read again each time, because the cache can keep "
                f"{config.num_snapshot_nodes} nodes; increase CachingConfig.num_snapshot_nodes"
            ),
        )
        self._manifests: WeightedCache[ManifestId, PackedManifest] = WeightedCache(
            config.num_chunk_refs,
            lambda manifest: max(sum(map(manifest.count, manifest.nodes)), 1),
            lambda refs: (
                f"a manifest with {refs} chunk references is read again each time, because the cache can "
                f"keep {config.num_chunk_refs} references; increase CachingConfig.num_chunk_refs, or split "
                "manifests"
            ),
        )
        self._logs: WeightedCache[SnapshotId, TransactionLog] = WeightedCache(
            config.num_transaction_changes, _changes
        )
        self._chunks: WeightedCache[tuple[ChunkId, int, int], bytes] = WeightedCache(
            config.num_bytes_chunks, len
        )

    # Reading

    def snapshot(self, id: SnapshotId) -> Snapshot:
        """Return a snapshot from the cache, or read its file."""

        def load() -> Snapshot:
            try:
                return self._load(f"{SNAPSHOTS}/{id}", lambda data: read_snapshot(data, id))
            except ObjectNotFoundError:
                raise SnapshotNotFoundError(
                    f"snapshot not found: {id}", kind=ErrorKind.SNAPSHOT_NOT_FOUND
                ) from None

        return self._snapshots.get(id, load)

    def forget_snapshots(self) -> None:
        """Remove all snapshots from the cache."""
        self._snapshots.clear()

    def manifest(self, id: ManifestId, size_bytes: int = 0) -> PackedManifest:
        """Return a manifest from the cache, or read its file. Large files of known size are read in
        parallel.
        """

        def load() -> PackedManifest:
            return self._load(f"{MANIFESTS}/{id}", lambda data: read_manifest(data, id), size_bytes)

        return self._manifests.get(id, load)

    def transaction_log(self, id: SnapshotId) -> TransactionLog:
        """Return the transaction log of a snapshot from the cache, or read its file."""

        def load() -> TransactionLog:
            return self._load(f"{TRANSACTIONS}/{id}", lambda data: decode_log(data, id))

        return self._logs.get(id, load)

    def read_sealed_log(self, id: SnapshotId) -> SealedLog:
        """Read a transaction log file without decoding it.

        The file is not added to the disk cache, because its content has not been validated.
        """
        path = f"{TRANSACTIONS}/{id}"
        found = self.disk.read(path) if self.disk is not None else None
        return SealedLog(self.storage.get(path)[0] if found is None else found, id)

    def chunk(self, ref: NativeRef, start: int, stop: int) -> bytes:
        """Read bytes `start` to `stop` of a native chunk object. Chunks are not cached."""
        first, last = ref.offset + start, ref.offset + stop
        path = f"{CHUNKS}/{ref.chunk_id}"
        if not self._chunks.capacity:  # the default
            return self._read_chunk(path, first, last)
        return self._chunks.get((ref.chunk_id, first, last), lambda: self._read_chunk(path, first, last))

    def _read_chunk(self, path: str, first: int, last: int) -> bytes:
        if self.disk is None:
            return self.storage.get_range(path, first, last)
        return self.disk.get((path, first, last), lambda: self.storage.get_range(path, first, last))

    def _load(self, path: str, decode: Callable[[bytes], Value], size_bytes: int = 0) -> Value:
        """Read and decode a metadata file, from the disk cache if possible."""
        # The first snapshots of all repositories have the same id.
        disk = None if path == _FIRST_SNAPSHOT else self.disk
        found = disk.read(path) if disk is not None else None
        if found is not None:
            return decode(found)
        data = self.storage.get_range(path, 0, size_bytes) if size_bytes else self.storage.get(path)[0]
        value = decode(data)  # a damaged file is not cached, because it may be restored later
        if disk is not None and is_write_once(data, path):
            disk.write(data, path)
        return value

    # Writing

    def write_chunk(self, data: bytes | bytearray | memoryview) -> NativeRef:
        """Write a new chunk object. Unlike metadata files, chunks are not cached."""
        id = ChunkId.random()
        self.storage.put(f"{CHUNKS}/{id}", data, kind=ObjectKind.CHUNK)
        return NativeRef(id, 0, len(data))

    def write_manifest(self, manifest: Manifest) -> ManifestFileInfo:
        """Write a new manifest file."""
        return self.write_packed(self.pack(manifest))

    def pack(self, manifest: Manifest) -> PackedManifest:
        """Encode a new manifest as the payload of its file."""
        return pack_manifest(manifest, self.spec, self._location_compression())

    def write_packed(self, manifest: PackedManifest) -> ManifestFileInfo:
        """Write an encoded manifest as a new manifest file."""
        upload = self.seal_packed(manifest)
        upload.run()
        return upload.info

    def seal_packed(self, manifest: PackedManifest) -> ManifestUpload:
        """Wrap an encoded manifest in its envelope, and return the complete file without writing it."""
        data = seal_manifest(manifest, self.spec, self.config.compression_level)
        count = sum(map(manifest.count, manifest.nodes))
        return ManifestUpload(self, manifest, data, ManifestFileInfo(manifest.id, len(data), count))

    def put_manifest(self, manifest: PackedManifest, data: bytes) -> None:
        """Write a manifest file that is already encoded, including its envelope."""
        self._put(f"{MANIFESTS}/{manifest.id}", data, "manifest")
        self._manifests.put(manifest.id, manifest)

    def _location_compression(self) -> LocationCompression | None:
        """Return the settings for compressing virtual locations; None unless the configuration asks for it.

        By default, locations are stored as shared strings. Compressed together with the file, they take less
        space than one dictionary frame each, and both reading and writing are faster.
        """
        config = self.config
        if not config.compress_locations:
            return None
        return LocationCompression(
            config.location_compression_min_num_chunks,
            config.location_dictionary_max_training_samples,
            config.location_dictionary_max_size_bytes,
            config.location_compression_level,
        )

    def write_snapshot(self, snapshot: Snapshot) -> None:
        """Write a new snapshot file."""
        self.put_snapshot(snapshot, write_snapshot(snapshot, self.spec, self.config.compression_level))

    def put_snapshot(self, snapshot: Snapshot, data: bytes) -> None:
        """Write a snapshot file that is already encoded, including its envelope."""
        self._put(f"{SNAPSHOTS}/{snapshot.id}", data, "snapshot")
        self._snapshots.put(snapshot.id, snapshot)

    def write_transaction_log(self, log: TransactionLog) -> None:
        """Write a new transaction log file."""
        self.put_transaction_log(log, write_transaction_log(log, self.spec, self.config.compression_level))

    def write_sealed_log(self, log: SealedLog, id: SnapshotId) -> None:
        """Write a copy of an encoded transaction log under the id of another snapshot."""
        data = log.with_id(id, self.config.compression_level)
        self._put(f"{TRANSACTIONS}/{id}", data, "transaction-log")

    def put_transaction_log(self, log: TransactionLog, data: bytes) -> None:
        """Write a transaction log file that is already encoded, including its envelope."""
        self._put(f"{TRANSACTIONS}/{log.id}", data, "transaction-log")
        self._logs.put(log.id, log)

    def _put(self, path: str, data: bytes, file_type: str) -> None:
        self.storage.put(path, data, metadata=make_object_metadata(self.spec, file_type))


@dataclass(frozen=True, slots=True)
class ManifestUpload:
    """A manifest file that is encoded but not yet written."""

    assets: AssetStore
    manifest: PackedManifest
    data: bytes
    info: ManifestFileInfo

    def run(self) -> None:
        """Write the manifest file."""
        self.assets.put_manifest(self.manifest, self.data)


def _changes(log: TransactionLog) -> int:
    nodes = sum(len(getattr(log, name)) for name in LISTS) + len(log.moved_nodes)
    chunks: int = sum(log.updated_chunks.counts.tolist())
    return max(chunks + nodes, 1)


@cache
def make_object_metadata(spec: Spec, file_type: str) -> Mapping[str, str]:
    """Return the object metadata that official writers attach to snapshots, manifests and transaction
    logs.
    """
    return {
        "icspecver": str(spec.number),
        "icclient": IMPLEMENTATION,
        "icfiletype": file_type,
        "iccompalg": _ZSTD_NAME,
    }
