"""Encode and decode repo info files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NoReturn

from icefloe._internal.ids import SnapshotId
from icefloe.encoding.flatbuffers.reader import Payload
from icefloe.encoding.flatbuffers.row_builder import Row, build_row
from icefloe.encoding.flatbuffers.row_reader import read_row
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.metadata import make_metadata_rows, read_metadata
from icefloe.format.repo_info import MAIN, RepoInfo, SnapshotInfos
from icefloe.format.schema import REPO
from icefloe.format.spec import Spec, get_spec
from icefloe.format.updates import Updates, make_status_row, read_status

_MANY: Final = ("snapshots", "latest_updates")
"""Fields that may have thousands of entries."""
_LOG: Final = ("spec_version", "latest_updates", "repo_before_updates")


def decode_repo_info(payload: Payload) -> RepoInfo:
    """Decode the payload of a repo info file."""
    place = payload.place
    root = read_row(payload, REPO, _MANY)
    spec = get_spec(root["spec_version"], place)
    if not spec.refs_in_repo_info:
        payload.fail(f"Repo.spec_version is {spec.number}, which has no repo info file")
    snapshots = SnapshotInfos(root["snapshots"])
    info = RepoInfo(
        snapshots=snapshots,
        branches=_refs(root["branches"], snapshots, payload, "branches"),
        tags=_refs(root["tags"], snapshots, payload, "tags"),
        deleted_tags=frozenset(_check_ascending(root["deleted_tags"], payload, "deleted_tags")),
        status=read_status(root["status"]),
        latest_updates=Updates(root["latest_updates"]),
        repo_before_updates=root["repo_before_updates"],
        metadata=read_metadata(root["metadata"] or (), spec, place),
        config=root["config"],
        enabled_feature_flags=_read_flags(root["enabled_feature_flags"], payload, "enabled_feature_flags"),
        disabled_feature_flags=_read_flags(root["disabled_feature_flags"], payload, "disabled_feature_flags"),
        extra=root["extra"],
    )
    _check(info, place, ErrorKind.INVALID_FILE_FORMAT)
    return info


def decode_ops_log(payload: Payload) -> tuple[Updates, str | None]:
    """Decode only the ops log of a repo info payload, and the path of the backup with older entries."""
    root = read_row(payload, REPO, ("latest_updates",), REPO.fields.keys() - set(_LOG))
    return Updates(root["latest_updates"]), root["repo_before_updates"]


def encode_repo_info(info: RepoInfo, spec: Spec, place: str) -> bytes:
    """Encode the payload of a repo info file."""
    if not spec.refs_in_repo_info:
        raise FormatError(
            f"{place}: version {spec.number} of the format has no repo info file",
            kind=ErrorKind.SERIALIZATION,
        )
    _check(info, place, ErrorKind.SERIALIZATION)
    _check_ops_log(info, place)
    enabled, disabled = info.enabled_feature_flags, info.disabled_feature_flags
    root = {
        "spec_version": spec.number,
        "tags": _make_ref_rows(info.tags, info.snapshots, place),
        "branches": _make_ref_rows(info.branches, info.snapshots, place),
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": info.snapshots.blocks,
        "status": make_status_row(info.status),
        "metadata": make_metadata_rows(info.metadata, spec),
        "latest_updates": info.latest_updates.blocks,
        "repo_before_updates": info.repo_before_updates,
        "config": info.config,
        "enabled_feature_flags": None if enabled is None else sorted(set(enabled)),
        "disabled_feature_flags": None if disabled is None else sorted(set(disabled)),
        "extra": info.extra,
    }
    return build_row(REPO, root, place)


def _check(info: RepoInfo, place: str, kind: ErrorKind) -> None:
    """Raise FormatError for a repo info that violates the specification or that official readers reject."""

    def refuse(what: str) -> NoReturn:
        raise FormatError(f"{place}: {what}", kind=kind)

    if MAIN not in info.branches:
        refuse("there is no branch main")
    reborn = info.deleted_tags & set(info.tags)
    if reborn:
        refuse(f"tag {min(reborn)} exists although it was deleted")
    both = set(info.enabled_feature_flags or ()) & set(info.disabled_feature_flags or ())
    if both:
        refuse(f"feature flag {min(both)} is both enabled and disabled")


def _check_ops_log(info: RepoInfo, place: str) -> None:
    """Raise FormatError for an ops log to which official writers could not append."""
    log = info.latest_updates
    what = None
    if not len(log):
        what = "the ops log is empty"
    elif not log.in_order():
        what = "the ops log is not in order, newest first"
    elif log[0].backup_path is not None:
        what = "the newest entry of the ops log already has a backup"
    if what is not None:
        raise FormatError(f"{place}: {what}", kind=ErrorKind.SERIALIZATION)


def _refs(
    rows: Sequence[Row], snapshots: SnapshotInfos, payload: Payload, what: str
) -> dict[str, SnapshotId]:
    _check_ascending([row["name"] for row in rows], payload, what)
    lost = next((row["name"] for row in rows if row["snapshot_index"] >= len(snapshots)), None)
    if lost is not None:
        payload.fail(f"{what}: {lost} points to a snapshot that is not in the list")
    return {row["name"]: snapshots.id_at(row["snapshot_index"]) for row in rows}


def _make_ref_rows(refs: Mapping[str, SnapshotId], snapshots: SnapshotInfos, place: str) -> list[Row]:
    names = sorted(refs)
    rows = snapshots.rows([refs[name] for name in names])
    lost = next((name for name, row in zip(names, rows, strict=True) if row is None), None)
    if lost is not None:
        raise FormatError(
            f"{place}: {lost} points to {refs[lost]}, which is not listed", kind=ErrorKind.SERIALIZATION
        )
    return [{"name": name, "snapshot_index": row} for name, row in zip(names, rows, strict=True)]


def _check_ascending(names: list[str], payload: Payload, what: str) -> list[str]:
    for before, after in pairwise(names):
        if before >= after:  # code points sort like their UTF-8 bytes
            payload.fail(f"Repo.{what} is not in ascending order at {after!r}")
    return names


def _read_flags(flags: list[int] | None, payload: Payload, name: str) -> tuple[int, ...] | None:
    if flags is None:
        return None
    if any(before >= after for before, after in pairwise(flags)):
        payload.fail(f"Repo.{name} is not in ascending order")
    return tuple(flags)
