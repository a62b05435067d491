"""Repo info files to values and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from icefloe.encoding.columns import U8, Blobs, Ragged, splits_of
from icefloe.encoding.flatbuffers.builder import build
from icefloe.encoding.flatbuffers.reader import Payload, read_root
from icefloe.encoding.flatbuffers.tables import PRESENT, Tables, Union, from_rows, to_rows
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.metadata import metadata_items, one_list, read_metadata
from icefloe.format.repo_info import MAIN, RepoInfo, SnapshotInfos
from icefloe.format.schema import REPO, REPO_STATUS
from icefloe.format.spec import Spec, spec_of
from icefloe.format.updates import Updates, read_status, status_row
from icefloe.ids import SnapshotId


def decode_repo_info(payload: Payload) -> RepoInfo:
    """The value behind a repo info file."""
    place = payload.place
    root = read_root(payload, REPO)
    spec = spec_of(int(root["spec_version"][0]), place)
    if not spec.refs_in_repo_info:
        payload.fail(f"Repo.spec_version is {spec.number}, which has no repo info file")
    snapshots = SnapshotInfos(root["snapshots"].items, place)
    status = to_rows(REPO_STATUS, root["status"].tables[PRESENT], place)[0]
    metadata = root["metadata"].items if "metadata" in root.columns else Tables(0, {}, {})
    info = RepoInfo(
        snapshots=snapshots,
        branches=_refs(root["branches"].items, snapshots, payload, "branches"),
        tags=_refs(root["tags"].items, snapshots, payload, "tags"),
        deleted_tags=frozenset(_ascending(_texts(root, "deleted_tags", place), payload, "deleted_tags")),
        status=read_status(status),
        latest_updates=Updates(root["latest_updates"].items, place),
        repo_before_updates=_text(root, "repo_before_updates", place),
        metadata=read_metadata(metadata, spec, place),
        config=root["config"][0] if "config" in root.columns else None,
        enabled_feature_flags=_flags(root, "enabled_feature_flags", payload),
        disabled_feature_flags=_flags(root, "disabled_feature_flags", payload),
        extra=root["extra"][0] if "extra" in root.columns else None,
    )
    _check(info, place, ErrorKind.INVALID_FILE_FORMAT)
    return info


def encode_repo_info(info: RepoInfo, spec: Spec, place: str) -> U8:
    """The payload of a repo info file."""
    if not spec.refs_in_repo_info:
        raise FormatError(
            f"{place}: version {spec.number} of the format has no repo info file",
            kind=ErrorKind.SERIALIZATION,
        )
    _check(info, place, ErrorKind.SERIALIZATION)
    _check_ops_log(info, place)
    status = from_rows(REPO_STATUS, [status_row(info.status)])
    columns: dict[str, Any] = {
        "spec_version": np.array([spec.number], np.uint8),
        "tags": one_list(_ref_tables(info.tags, info.snapshots, place)),
        "branches": one_list(_ref_tables(info.branches, info.snapshots, place)),
        "deleted_tags": _text_list(info.deleted_tags),
        "snapshots": one_list(info.snapshots.columns),
        "status": Union(np.array([PRESENT], np.uint8), {PRESENT: status}),
        "metadata": one_list(metadata_items(info.metadata, spec)),
        "latest_updates": one_list(info.latest_updates.columns),
    }
    optional = {"repo_before_updates": info.repo_before_updates, "config": info.config, "extra": info.extra}
    for name, value in optional.items():
        if value is not None:
            columns[name] = Blobs.from_list([value.encode() if isinstance(value, str) else value])
    flags = {
        "enabled_feature_flags": info.enabled_feature_flags,
        "disabled_feature_flags": info.disabled_feature_flags,
    }
    for name, numbers in flags.items():
        if numbers is not None:
            columns[name] = one_list(np.array(sorted(set(numbers)), np.uint16))
    return build(REPO, Tables(1, columns, {}), place)


def _check(info: RepoInfo, place: str, kind: ErrorKind) -> None:
    """Refuse what no official reader could live with, and what the specification forbids."""

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
    """Refuse an ops log on which the next update by an official writer would stumble."""
    updates = info.latest_updates.columns
    what = None
    if not len(updates):
        what = "the ops log is empty"
    elif (updates["updated_at"][1:] >= updates["updated_at"][:-1]).any():
        what = "the ops log is not in order, newest first"
    elif updates.has("backup_path")[0]:
        what = "the newest entry of the ops log already has a backup"
    if what is not None:
        raise FormatError(f"{place}: {what}", kind=ErrorKind.SERIALIZATION)


def _refs(tables: Tables, snapshots: SnapshotInfos, payload: Payload, what: str) -> dict[str, SnapshotId]:
    if not len(tables):
        return {}
    names = _ascending(tables["name"].texts(f"{payload.place}: {what}"), payload, what)
    rows = tables["snapshot_index"]
    if int(rows.max()) >= len(snapshots):
        payload.fail(f"{what}: {names[int(rows.argmax())]} points to a snapshot that is not in the list")
    return {name: snapshots.id_at(row) for name, row in zip(names, rows.tolist(), strict=True)}


def _ref_tables(refs: Mapping[str, SnapshotId], snapshots: SnapshotInfos, place: str) -> Tables:
    names = sorted(refs)
    rows = [snapshots.row(refs[name]) for name in names]
    if None in rows:
        lost = names[rows.index(None)]
        raise FormatError(
            f"{place}: {lost} points to {refs[lost]}, which is not listed", kind=ErrorKind.SERIALIZATION
        )
    return Tables(
        len(names), {"name": Blobs.from_texts(names), "snapshot_index": np.array(rows, dtype=np.uint32)}, {}
    )


def _ascending(names: list[str], payload: Payload, what: str) -> list[str]:
    for before, after in pairwise(names):
        if before >= after:  # code points, which is the order of the UTF-8 bytes too
            payload.fail(f"Repo.{what} is not in ascending order at {after!r}")
    return names


def _texts(root: Tables, name: str, place: str) -> list[str]:
    found: list[str] = root[name].items.texts(f"{place}: Repo.{name}")
    return found


def _text(root: Tables, name: str, place: str) -> str | None:
    return root[name].texts(f"{place}: Repo.{name}")[0] if name in root.columns else None


def _text_list(names: Iterable[str]) -> Ragged:
    blobs = Blobs.from_texts(sorted(names))
    return Ragged(blobs, splits_of(np.array([len(blobs)])))


def _flags(root: Tables, name: str, payload: Payload) -> tuple[int, ...] | None:
    if name not in root.columns:
        return None
    flags = root[name].items
    if (flags[1:] <= flags[:-1]).any():
        payload.fail(f"Repo.{name} is not in ascending order")
    return tuple(flags.tolist())
