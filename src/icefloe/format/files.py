"""Reading and writing of whole metadata files, including their envelope."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, TypeVar

import numpy as np

from icefloe._internal.ids import ManifestId, NodeId, ObjectId, SnapshotId
from icefloe.encoding.columns import U8
from icefloe.encoding.envelope import (
    DEFAULT_LEVEL,
    IMPLEMENTATION,
    FileType,
    Header,
    open_header,
    open_payload,
    seal,
    seal_parts,
    stream_payload,
)
from icefloe.encoding.flatbuffers.builder import PayloadParts
from icefloe.encoding.flatbuffers.reader import Payload
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.manifest_blocks import RefBlocks
from icefloe.format.manifest_codec import PackedManifest, encode_manifest, encode_numbered_refs
from icefloe.format.repo_info import RepoInfo, SnapshotInfo
from icefloe.format.repo_info_codec import decode_ops_log, decode_repo_info, encode_repo_info
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_codec import decode_snapshot, decode_snapshot_info, encode_snapshot
from icefloe.format.spec import Spec, get_spec
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.transaction_log_codec import (
    decode_transaction_log,
    encode_transaction_log,
    has_moves,
    rename_transaction_log,
)
from icefloe.format.updates import Updates

Value = TypeVar("Value", Snapshot, SnapshotInfo, PackedManifest, TransactionLog)

LARGE_LOG_BYTES: Final = 4 << 20
"""Transaction logs of at least this size are decoded one at a time and copied in parts. A log of 14 million
chunks has 60 MB and needs 400 MB of memory while it is decoded.
"""

REPO_PATH: Final = "repo"
SNAPSHOTS: Final = "snapshots"
MANIFESTS: Final = "manifests"
TRANSACTIONS: Final = "transactions"
CHUNKS: Final = "chunks"
OVERWRITTEN: Final = "overwritten"
CONFIG_PATH: Final = "config.yaml"

OWN_FOLDERS: Final = (SNAPSHOTS, MANIFESTS, TRANSACTIONS, CHUNKS, OVERWRITTEN, "refs", "icefloe")
"""All folders of a repository to which icefloe writes objects."""
_ID: Final = "[0-9A-HJKMNP-TV-Z]{20}"
_OWN_PATH: Final = re.compile(
    rf"repo|config\.yaml|(?:{SNAPSHOTS}|{MANIFESTS}|{TRANSACTIONS}|{CHUNKS})/{_ID}"
    rf"|{OVERWRITTEN}/(?:(?:repo|config\.yaml)\.\d{{14}}\.{_ID}|collected\.icefloe)"
    r"|refs/(?:branch|tag)\.[^/]+/ref\.json(?:\.deleted)?"
    rf"|icefloe/(?:reachable|checksums/\d{{6}}-{_ID}|verified/[a-z]+\.json|statistics/{_ID}/[0-9a-f]{{32}})"
)


def is_own_path(path: str) -> bool:
    """Return True if icefloe or the official library could have written a repository file at this path."""
    return _OWN_PATH.fullmatch(path) is not None


def is_write_once(data: bytes, place: str) -> bool:
    """Return True if a metadata file is never rewritten, judging from its header. Expiration rewrites
    snapshots that contain the id of their parent.
    """
    header = open_header(data, place)
    return header.file_type is FileType.MANIFEST or not get_spec(header.spec, place).parent_in_snapshot


def read_repo_info(data: bytes, place: str = REPO_PATH) -> RepoInfo:
    """Decode the repo info file of a V2 repository, or a backup of it, including the envelope."""
    return decode_repo_info(_open_repo_info(data, place))


def read_ops_log(data: bytes, place: str = REPO_PATH) -> tuple[Updates, str | None]:
    """Decode only the ops log (newest entry first) of a repo info file, and the path of the backup that holds
    its older entries.
    """
    return decode_ops_log(_open_repo_info(data, place))


def _open_repo_info(data: bytes, place: str) -> Payload:
    spec, payload = _open(data, FileType.REPO_INFO, place)
    if not spec.refs_in_repo_info:
        payload.fail(f"a repo info file of version {spec.number}, which should not have one")
    return payload


def write_repo_info(info: RepoInfo, spec: Spec, level: int = DEFAULT_LEVEL) -> bytes:
    """Encode the repo info file of a V2 repository, including the envelope."""
    return seal_payload(encode_repo_info(info, spec, REPO_PATH), FileType.REPO_INFO, spec, level)


def read_snapshot(data: bytes, id: SnapshotId) -> Snapshot:
    """Decode a snapshot file, including the envelope, and check its id."""
    spec, payload = _open(data, FileType.SNAPSHOT, f"{SNAPSHOTS}/{id}")
    return _check_id(decode_snapshot(payload, spec), id, payload)


def read_snapshot_info(data: bytes, id: SnapshotId) -> SnapshotInfo:
    """Decode only the metadata of a snapshot (id, parent, time, message) from its file, without nodes and
    manifests.
    """
    spec, payload = _open(data, FileType.SNAPSHOT, f"{SNAPSHOTS}/{id}")
    return _check_id(decode_snapshot_info(payload, spec), id, payload)


def split_snapshot_parent(data: bytes, id: SnapshotId) -> tuple[bytes, SnapshotId | None] | None:
    """Split a snapshot file into its content without the parent id, and the parent id.

    Returns None if the format does not store parents in snapshots. Where it does, expiration rewrites the
    file with another parent, and every writer produces the same remaining content.
    """
    place = f"{SNAPSHOTS}/{id}"
    spec, payload = _open(data, FileType.SNAPSHOT, place)
    if not spec.parent_in_snapshot:
        return None
    snapshot = _check_id(decode_snapshot(payload, spec), id, payload)
    return encode_snapshot(replace(snapshot, parent_id=None), spec, place), snapshot.parent_id


def write_snapshot(snapshot: Snapshot, spec: Spec, level: int = DEFAULT_LEVEL) -> bytes:
    """Encode a snapshot file, including the envelope."""
    payload = encode_snapshot(snapshot, spec, f"{SNAPSHOTS}/{snapshot.id}")
    return seal_payload(payload, FileType.SNAPSHOT, spec, level)


def read_manifest(data: bytes, id: ManifestId) -> PackedManifest:
    """Decode a manifest file, including the envelope, and check its id."""
    _, payload = _open(data, FileType.MANIFEST, f"{MANIFESTS}/{id}")
    return _check_id(PackedManifest(payload), id, payload)


def write_manifest(
    manifest: Manifest,
    spec: Spec,
    level: int = DEFAULT_LEVEL,
    compression: LocationCompression | None = None,
) -> bytes:
    """Encode a manifest file, including the envelope."""
    return seal_manifest(pack_manifest(manifest, spec, compression), spec, level)


def pack_manifest(
    manifest: Manifest, spec: Spec, compression: LocationCompression | None = None
) -> PackedManifest:
    """Encode the payload of a manifest file without the envelope, so that it can be cached and written
    later.
    """
    place = f"{MANIFESTS}/{manifest.id}"
    return PackedManifest(Payload(encode_manifest(manifest, spec, place, compression), place))


def pack_numbered_refs(
    id: ManifestId, nodes: Sequence[NodeId], parts: Sequence[ArrayManifest]
) -> PackedManifest:
    """Encode a manifest of several arrays without the envelope. See `encode_numbered_refs`."""
    place = f"{MANIFESTS}/{id}"
    return PackedManifest(Payload(encode_numbered_refs(id, nodes, parts, place), place))


def pack_blocks(id: ManifestId, node: NodeId, refs: RefBlocks) -> PackedManifest:
    """Encode the payload of a manifest file, without the envelope, from one array's encoded reference
    tables.
    """
    place = f"{MANIFESTS}/{id}"
    return PackedManifest(Payload(refs.payload(id, node, place), place), refs)


def seal_manifest(manifest: PackedManifest, spec: Spec, level: int = DEFAULT_LEVEL) -> bytes:
    """Wrap an encoded manifest in its envelope, and return the complete file."""
    return seal_payload(manifest.payload, FileType.MANIFEST, spec, level)


def read_transaction_log(data: bytes, id: SnapshotId) -> TransactionLog:
    """Decode the transaction log file of a snapshot, including the envelope."""
    _, payload = _open(data, FileType.TRANSACTION_LOG, f"{TRANSACTIONS}/{id}")
    return _check_id(decode_transaction_log(payload), id, payload)


def write_transaction_log(log: TransactionLog, spec: Spec, level: int = DEFAULT_LEVEL) -> bytes:
    """Encode a transaction log file, including the envelope."""
    payload = encode_transaction_log(log, spec, f"{TRANSACTIONS}/{log.id}")
    return seal_payload(payload, FileType.TRANSACTION_LOG, spec, level)


class SealedLog:
    """A complete transaction log file that can be reused for another snapshot without decoding its
    changes.
    """

    def __init__(self, data: bytes, id: SnapshotId) -> None:
        self._data, self._place = data, f"{TRANSACTIONS}/{id}"
        self._spec = _check_header(data, FileType.TRANSACTION_LOG, self._place)

    @property
    def has_moves(self) -> bool:
        """True if the transaction log contains moved nodes."""
        return has_moves(self._open())

    def _open(self) -> Payload:
        return Payload(open_payload(self._data, self._place), self._place)

    def with_id(self, id: SnapshotId, level: int = DEFAULT_LEVEL) -> bytes:
        """Return a complete transaction log file with the same changes for another snapshot id."""
        if len(self._data) >= LARGE_LOG_BYTES and (parts := self._rename_parts(id)) is not None:
            return seal_payload(parts, FileType.TRANSACTION_LOG, self._spec, level)
        payload = self._open()
        rename_transaction_log(payload, id)
        return seal_payload(payload.data, FileType.TRANSACTION_LOG, self._spec, level)

    def _rename_parts(self, id: SnapshotId) -> PayloadParts | None:
        """Return the payload for another snapshot id in parts; None if the id is not in the first part, where
        all known writers put it.
        """
        found = stream_payload(self._data, self._place)
        if found is None:
            return None
        size, parts = found
        first = np.frombuffer(next(parts), np.uint8)
        payload = Payload(np.zeros(size, np.uint8), self._place)  # untouched pages take no memory
        payload.data[: len(first)] = first
        try:
            end = rename_transaction_log(payload, id)
        except FormatError:  # also if the root table is in a later part
            return None
        if end > len(first):
            return None
        return PayloadParts(size, chain([payload.data[: len(first)].data], parts))


def _open(data: bytes, file_type: FileType, place: str) -> tuple[Spec, Payload]:
    spec = _check_header(data, file_type, place)
    return spec, Payload(open_payload(data, place), place)


def _check_header(data: bytes, file_type: FileType, place: str) -> Spec:
    header = open_header(data, place)
    spec = get_spec(header.spec, place)
    if header.file_type is not file_type:
        raise FormatError(
            f"{place}: file type {header.file_type.name.lower()}, expected {file_type.name.lower()}",
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    return spec


def _check_id(value: Value, id: ObjectId, payload: Payload) -> Value:
    if value.id != id:
        payload.fail(f"contains {value.id}, which does not match the file name")
    return value


def seal_payload(payload: bytes | U8 | PayloadParts, file_type: FileType, spec: Spec, level: int) -> bytes:
    """Wrap an encoded payload in the envelope of its file type."""
    header = Header(IMPLEMENTATION, spec.number, file_type)
    if isinstance(payload, PayloadParts):
        return seal_parts(payload.size, payload.parts, header, level)
    return seal(payload, header, level)
