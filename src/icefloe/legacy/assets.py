"""Read snapshots, manifests, transaction logs and chunks of the formats before version 1. Nothing is
written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final, NoReturn, TypeVar

from icefloe._internal.concurrency import fork_safe_lock
from icefloe._internal.ids import ChunkId, ManifestId, NodeId, ObjectId, SnapshotId
from icefloe._internal.printable import escape_control
from icefloe.config import EffectiveConfig
from icefloe.core.assets import AssetStore
from icefloe.core.cache import WeightedCache
from icefloe.core.commit.computed_log import compute_log
from icefloe.core.refs.base import read_only_format
from icefloe.core.virtual_chunks.authorized_reads import VirtualReader
from icefloe.errors import ErrorKind, FormatError, SnapshotNotFoundError
from icefloe.format.files import pack_manifest
from icefloe.format.manifest import ArrayManifest, Manifest, NativeRef
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot, Snapshot
from icefloe.format.spec import V2
from icefloe.format.transaction_log import TransactionLog
from icefloe.legacy.codec.files import ALPHA, DRAFT, SPEC, Folders, is_newer
from icefloe.legacy.codec.ids import SUFFIXES, LongId, parse_file_name
from icefloe.legacy.codec.manifest import ArraysByRank, read_manifest
from icefloe.legacy.codec.refs import is_ref, list_first_files
from icefloe.legacy.codec.snapshot import StoredSnapshot, read_snapshot
from icefloe.legacy.codec.structures import LONG_ID, LegacyFindings
from icefloe.legacy.codec.transaction_log import read_transaction_log
from icefloe.storage.base import Buffer, ObjectNotFoundError, Storage

_logger = logging.getLogger(__name__)
Result = TypeVar("Result")

MIGRATION: Final = "icefloe-migration"
"""The folder for the files of an upgrade in progress."""
BACKUP: Final = f"{MIGRATION}/replaced"
"""The folder in which an upgrade in place keeps the files that it replaces."""


def find_folders(storage: Storage, *, by_name: bool = False) -> Folders | None:
    """Find the folders in which a legacy repository stores its assets; raise FormatError if there are two
    layouts.

    The layout is recognized by the first ref file of main, whose name is known. Files are listed only if it
    is missing, because web servers cannot list files, and never with `by_name`.
    """
    found = [folders for folders in (ALPHA, DRAFT) if any(map(storage.exists, list_first_files(folders)))]
    if not found and not by_name and not storage.read_only:
        found = [
            folders
            for folders in (ALPHA, DRAFT)
            if any(is_ref(info.key) for info in storage.list_prefix(f"{folders.refs}/"))
        ]
    if len(found) > 1:
        raise FormatError(
            "the location contains repositories of two old formats, with branches below refs/ and below r/; "
            "move one of them",
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    return found[0] if found else None


class LegacyAssets(AssetStore):
    """The assets of a legacy repository, in a format before version 1.

    Tolerated problems are logged and kept in `findings`.
    """

    def __init__(
        self, storage: Storage, config: EffectiveConfig, virtual: VirtualReader | None = None
    ) -> None:
        super().__init__(storage, SPEC, config, virtual)
        self.findings = LegacyFindings(lambda text: _logger.warning("%s", escape_control(text)))
        self._suffixes: dict[str, str] = {}
        self._listings: dict[str, dict[bytes, str]] = {}
        self._aliases: dict[SnapshotId, SnapshotId] | None = None
        self._ranks: dict[NodeId, frozenset[int]] = {}
        self._rank_lock = fork_safe_lock()
        self._stored = WeightedCache[SnapshotId, StoredSnapshot](
            config.num_snapshot_nodes, lambda stored: max(len(stored.snapshot.nodes), len(stored.history), 1)
        )

    @cached_property
    def folders(self) -> Folders:
        """The names of the folders that contain the assets."""
        return find_folders(self.storage) or ALPHA

    # Files

    def listing(self, folder: str) -> dict[bytes, str]:
        """List the files in a folder, by the id in their name.

        Each folder is listed only once.
        """
        if folder not in self._listings:
            found: dict[bytes, str] = {}
            for info in self.storage.list_prefix(f"{folder}/"):
                raw = parse_file_name(info.key.removeprefix(f"{folder}/"))
                if raw is not None and len(raw) == LONG_ID:
                    raw = self.findings.shorten(raw)
                if raw is not None and found.setdefault(raw, info.key) != info.key:
                    raise FormatError(
                        f"{found[raw]} and {info.key} have the same id",
                        kind=ErrorKind.INVALID_FILE_FORMAT,
                    )
            self._listings[folder] = found
        return self._listings[folder]

    def at(self, folder: str, id: ObjectId, read: Callable[[str], Result]) -> Result:
        """Read the file with an id, whatever its suffix; raise ObjectNotFoundError if there is none."""
        long = self.findings.long_ids.get(bytes(id))
        name = str(id) if long is None else str(LongId(long))
        usual = self._suffixes.get(folder, SUFFIXES[0])
        for suffix in (usual, *(suffix for suffix in SUFFIXES if suffix != usual)):
            try:
                found = read(f"{folder}/{name}{suffix}")
            except ObjectNotFoundError:
                continue
            self._suffixes[folder] = suffix
            return found
        path = self.listing(folder).get(bytes(id))
        if path is None:
            raise ObjectNotFoundError(f"{folder}/{name}")
        return read(path)

    def get(self, folder: str, id: ObjectId) -> tuple[bytes, str]:
        """Return the content and path of the file with an id, or of its backup if an upgrade has replaced
        it.
        """

        def read(path: str) -> tuple[bytes, str]:
            data, _ = self.storage.get(path)
            return (self.storage.get(f"{BACKUP}/{path}")[0] if is_newer(data, path) else data), path

        return self.at(folder, id, read)

    # Reading

    def stored(self, id: SnapshotId) -> StoredSnapshot:
        """Read a legacy snapshot with all information in its file; raise SnapshotNotFoundError if there is
        none.
        """

        def load() -> StoredSnapshot:
            try:
                data, path = self.get(self.folders.snapshots, id)
            except ObjectNotFoundError:
                own = self._find_file_of(id)
                if own == id:
                    raise SnapshotNotFoundError(
                        f"snapshot not found: {id}", kind=ErrorKind.SNAPSHOT_NOT_FOUND
                    ) from None
                return self.stored(own)
            found = read_snapshot(data, id, path, self.findings)
            self._note_ranks(found.snapshot)
            parent = found.snapshot.parent_id
            if parent is None or bytes(parent) in self.listing(self.folders.snapshots):
                return found
            return replace(found, snapshot=replace(found.snapshot, parent_id=self._find_file_of(parent)))

        return self._stored.get(id, load)

    def _find_file_of(self, id: SnapshotId) -> SnapshotId:
        """Return the snapshot whose file contains the given id, for ids that are not used as a file name."""
        if self._aliases is None:
            self._aliases = {}
            for raw, path in self.listing(self.folders.snapshots).items():
                try:
                    data, _ = self.get(self.folders.snapshots, SnapshotId(raw))
                    found = read_snapshot(data, SnapshotId(raw), path, self.findings)
                except (FormatError, ObjectNotFoundError):
                    continue  # reading that snapshot raises the error
                if found.inner_id != SnapshotId(raw):
                    self._aliases[found.inner_id] = SnapshotId(raw)
        return self._aliases.get(id, id)

    def snapshot(self, id: SnapshotId) -> Snapshot:
        # docstring inherited
        return self.stored(id).snapshot

    def _note_ranks(self, snapshot: Snapshot) -> None:
        """Remember the ranks of arrays, because legacy manifests may contain references of other arrays under
        their ids.
        """
        with self._rank_lock:
            for node in snapshot.nodes:
                if isinstance(node.node_data, ArrayNodeData) and node.node_data.manifests:
                    known = self._ranks.get(node.id, frozenset())
                    rank = len(node.node_data.shape)
                    if known and rank not in known:
                        self._manifests.clear()
                    self._ranks[node.id] = known | {rank}

    def manifest(self, id: ManifestId, size_bytes: int = 0) -> PackedManifest:
        # docstring inherited
        def load() -> PackedManifest:
            arrays = self.arrays(id)
            chosen = {node: self._read_of_rank(id, node, by_rank) for node, by_rank in arrays.items()}
            return pack_manifest(Manifest(id, chosen), V2)

        return self._manifests.get(id, load)

    def arrays(self, id: ManifestId) -> ArraysByRank:
        """Return all references in a legacy manifest by array, including references of the wrong rank."""
        try:
            data, path = self.get(self.folders.manifests, id)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(error.path) from None
        return read_manifest(data, id, path, self.findings)

    def _read_of_rank(
        self, id: ManifestId, node: NodeId, by_rank: Mapping[int, ArrayManifest]
    ) -> ArrayManifest:
        known = self._ranks.get(node, frozenset())
        fitting = [rank for rank in by_rank if rank in known] or list(by_rank)
        if len(fitting) > 1:
            raise FormatError(
                f"{self.folders.manifests}/{id}: references of {node} have {fitting[0]} and {fitting[1]} "
                "coordinates, so the rank of the array is ambiguous",
                kind=ErrorKind.INVALID_FILE_FORMAT,
            )
        if len(by_rank) > 1:
            stray = sum(len(refs) for rank, refs in by_rank.items() if rank != fitting[0])
            self.findings.note(
                f"{self.folders.manifests}/{id}: ignored {stray} references of another rank under {node}"
            )
        return by_rank[fitting[0]]

    def transaction_log(self, id: SnapshotId) -> TransactionLog:
        """Return the transaction log of a legacy snapshot.

        If its writer did not store a log, the log is reconstructed.
        """

        def load() -> TransactionLog:
            try:
                data, path = self.get(self.folders.transactions, id)
            except ObjectNotFoundError:
                return self._compute_log(id)
            nodes = self._index_nodes_by_id(id)

            def rank_of(node: NodeId) -> int | None:
                found = nodes.get(node)
                return (
                    len(found.node_data.shape)
                    if found and isinstance(found.node_data, ArrayNodeData)
                    else None
                )

            return read_transaction_log(data, id, rank_of, path, self.findings)

        return self._logs.get(id, load)

    def _index_nodes_by_id(self, id: SnapshotId) -> dict[NodeId, NodeSnapshot]:
        """Return the nodes of a snapshot by id, together with those of its parent, which still contains
        deleted nodes.
        """
        snapshot = self.snapshot(id)
        nodes = {node.id: node for node in snapshot.nodes}
        if snapshot.parent_id is None:
            return nodes
        try:
            return {node.id: node for node in self.snapshot(snapshot.parent_id).nodes} | nodes
        except SnapshotNotFoundError:
            return nodes

    def _compute_log(self, id: SnapshotId) -> TransactionLog:
        snapshot = self.snapshot(id)
        if snapshot.parent_id is None:
            return TransactionLog.of(id)
        return compute_log(self.snapshot(snapshot.parent_id), snapshot, self)

    def chunk(self, ref: NativeRef, start: int, stop: int) -> bytes:
        # docstring inherited
        first, last = ref.offset + start, ref.offset + stop

        def load() -> bytes:
            return self.at(
                self.folders.chunks, ref.chunk_id, lambda path: self.storage.get_range(path, first, last)
            )

        return self._chunks.get((ref.chunk_id, first, last), load)

    def chunk_path(self, id: ChunkId) -> str | None:
        """Return the path of a chunk object; None if it does not exist."""
        return self.listing(self.folders.chunks).get(bytes(id))

    def write_chunk(self, data: Buffer) -> NoReturn:
        # docstring inherited
        raise read_only_format("writing chunks")

    def _put(self, path: str, data: bytes, file_type: str) -> NoReturn:
        raise read_only_format(f"writing {path}")
