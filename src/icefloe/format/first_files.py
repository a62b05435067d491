"""The files of a new V2 repository. They differ only in their time, so they are encoded once and then
patched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID
from icefloe.encoding.envelope import FileType
from icefloe.encoding.flatbuffers.records import Records, Row
from icefloe.format.files import seal_payload
from icefloe.format.repo_info import MAIN, NO_PARENT, RepoInfo, SnapshotInfo, SnapshotInfos, make_info_row
from icefloe.format.repo_info_codec import encode_repo_info
from icefloe.format.schema import SNAPSHOT_INFO
from icefloe.format.snapshot import ManifestFiles, Nodes, Snapshot
from icefloe.format.snapshot_codec import encode_snapshot
from icefloe.format.spec import V2
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.transaction_log_codec import encode_transaction_log
from icefloe.format.updates import RepoStatus, Update, Updates
from icefloe.ops import UpdateType

INITIAL_SNAPSHOT: Final = Snapshot(
    id=INITIAL_SNAPSHOT_ID,
    parent_id=None,
    flushed_at_us=0,
    message="Repository initialized",
    metadata={"__icechunk": {"is_root": True}},
    manifest_files=ManifestFiles.of([]),
    nodes=Nodes.of([]),
)
"""The initial snapshot of every repository, without its time."""

_MARK_US: Final = 0x3AC5_96E1_7B2D_840F
"""A placeholder for the time in the encoded files. No other field has this value."""
_MARK: Final = _MARK_US.to_bytes(8, "little")


@dataclass(frozen=True, slots=True)
class FirstFiles:
    """The files of a new V2 repository: initial snapshot, transaction log and repo info, both decoded and
    encoded.
    """

    snapshot: Snapshot
    snapshot_file: bytes
    log: TransactionLog
    log_file: bytes
    info: RepoInfo
    info_file: bytes


def make_first_files(now_us: int, config: bytes | None, level: int) -> FirstFiles:
    """Create the files of a new V2 repository from the current time and an encoded configuration."""
    snapshot = replace(INITIAL_SNAPSHOT, flushed_at_us=now_us)
    info = _make_first_info(now_us, config)
    log, log_file = _encode_first_log(level)
    snapshot_payload, info_payload = (_set_time(payload, now_us) for payload in _encode_undated())
    if config is not None:
        info_payload = encode_repo_info(info, V2, "repo")
    return FirstFiles(
        snapshot,
        seal_payload(snapshot_payload, FileType.SNAPSHOT, V2, level),
        log,
        log_file,
        info,
        seal_payload(info_payload, FileType.REPO_INFO, V2, level),
    )


def _make_first_info(now_us: int, config: bytes | None) -> RepoInfo:
    first = INITIAL_SNAPSHOT
    row = {**_make_snapshot_row(), "flushed_at": now_us}
    return RepoInfo(
        snapshots=SnapshotInfos(Records(SNAPSHOT_INFO, "repo", rows=[row])),
        branches={MAIN: first.id},
        tags={},
        deleted_tags=frozenset(),
        status=RepoStatus(set_at_us=now_us),
        latest_updates=Updates.of([Update(UpdateType.RepoInitialized(), now_us)]),
        config=config,
    )


@cache
def _make_snapshot_row() -> Row:
    first = INITIAL_SNAPSHOT
    return make_info_row(SnapshotInfo(first.id, None, 0, first.message, first.metadata), NO_PARENT)


@cache
def _encode_first_log(level: int) -> tuple[TransactionLog, bytes]:
    log = TransactionLog.of(INITIAL_SNAPSHOT_ID)
    payload = encode_transaction_log(log, V2, "the first transaction log")
    return log, seal_payload(payload, FileType.TRANSACTION_LOG, V2, level)


@cache
def _encode_undated() -> tuple[bytes, bytes]:
    snapshot = replace(INITIAL_SNAPSHOT, flushed_at_us=_MARK_US)
    return (
        encode_snapshot(snapshot, V2, "the first snapshot"),
        encode_repo_info(_make_first_info(_MARK_US, None), V2, "repo"),
    )


def _set_time(payload: bytes, now_us: int) -> bytes:
    return payload.replace(_MARK, now_us.to_bytes(8, "little"))
