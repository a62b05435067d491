"""Decode snapshots of old formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from icefloe._internal.ids import ManifestId, SnapshotId
from icefloe.encoding.envelope import FileType
from icefloe.encoding.json_values import canonicalize
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.snapshot import (
    GroupNodeData,
    ManifestFileInfo,
    ManifestFiles,
    ManifestRef,
    Nodes,
    NodeSnapshot,
    Snapshot,
)
from icefloe.legacy.codec.files import open_file
from icefloe.legacy.codec.ids import make_node_id, make_object_id
from icefloe.legacy.codec.structures import (
    LegacyFindings,
    Structure,
    make_damage_error,
    to_items,
    to_number,
    to_pairs,
    to_text,
    to_time_us,
    to_variant,
)
from icefloe.legacy.codec.zarr_json import get_attributes, make_array_document, make_group_document

_DEVELOPMENT: Final = (
    "total_parents",
    "short_term_parents",
    "short_term_history",
    "metadata",
    "started_at",
    "properties",
    "nodes",
)
_WITHOUT_VERSION: Final = ("manifest_files", "attribute_files", *_DEVELOPMENT)
_BY_PARENT: Final = (
    "id",
    "parent_id",
    "flushed_at",
    "message",
    "metadata",
    "manifest_files",
    "attribute_files",
    "nodes",
)
SNAPSHOT: Final = Structure(
    "a snapshot",
    (
        ("icechunk_snapshot_format_version", "icechunk_snapshot_format_flags", *_WITHOUT_VERSION),
        _WITHOUT_VERSION,
        _BY_PARENT,
        _DEVELOPMENT,
    ),
    frozenset({"total_parents", "short_term_parents", "started_at", "attribute_files", "parent_id"}),
)
METADATA: Final = Structure("metadata of a snapshot", (("id", "written_at", "message"),))
NODE: Final = Structure(
    "a node", (("id", "path", "user_attributes", "node_data"),), frozenset({"user_attributes", "path"})
)
MANIFEST_REF: Final = Structure(
    "a manifest reference",
    (("object_id", "extents"), ("object_id", "flags", "extents"), ("object_id",)),
    frozenset({"flags", "extents"}),
)
_FILE: Final = Structure(
    "a manifest file",
    (
        ("id", "format_version"),
        ("id", "format_version", "size"),
        ("id", "format_version", "size", "num_rows"),
    ),
    frozenset({"format_version", "size", "num_rows"}),
)
_FILE_BY_PARENT: Final = Structure(_FILE.name, (("id", "size", "num_rows"), *_FILE.orders), _FILE.optional)


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A legacy snapshot, with additional information from its file."""

    snapshot: Snapshot
    """The snapshot, under the id in its file name, which branches and tags use."""
    inner_id: SnapshotId
    """The id inside the file. Early writers gave the first snapshot two different ids."""
    history: tuple[SnapshotInfo, ...]
    """The ancestors that are listed in the file, starting with the parent; empty if only the parent is
    recorded.
    """


def read_snapshot(data: bytes, id: SnapshotId, place: str, findings: LegacyFindings) -> StoredSnapshot:
    """Decode a legacy snapshot file."""
    fields = SNAPSHOT.read(open_file(data, FileType.SNAPSHOT, place), place, findings)
    by_parent = "short_term_history" not in fields
    inner, history = (
        _parse_by_parent(fields, place, findings) if by_parent else _parse_by_history(fields, place, findings)
    )
    if inner.id != id:
        findings.note(f"{place}: contains the id {inner.id}, which does not match the file name")
    snapshot = Snapshot(
        id,
        inner.parent_id,
        inner.flushed_at_us,
        inner.message,
        inner.metadata,
        _parse_manifest_files(fields, _FILE_BY_PARENT if by_parent else _FILE, place, findings),
        _parse_nodes(fields["nodes"], place, findings),
    )
    return StoredSnapshot(snapshot, inner.id, history)


def _parse_by_parent(
    fields: Mapping[str, Any], place: str, findings: LegacyFindings
) -> tuple[SnapshotInfo, tuple[SnapshotInfo, ...]]:
    parent = fields.get("parent_id")
    return SnapshotInfo(
        make_object_id(SnapshotId, fields["id"], f"{place}: id", findings),
        None if parent is None else make_object_id(SnapshotId, parent, f"{place}: parent_id", findings),
        to_time_us(fields["flushed_at"], f"{place}: flushed_at"),
        to_text(fields["message"], f"{place}: message"),
        _parse_properties(fields["metadata"], f"{place}: metadata"),
    ), ()


def _parse_by_history(
    fields: Mapping[str, Any], place: str, findings: LegacyFindings
) -> tuple[SnapshotInfo, tuple[SnapshotInfo, ...]]:
    own = _parse_info(fields["metadata"], f"{place}: metadata", findings)
    entries = [
        _parse_info(entry, f"{place}: history", findings)
        for entry in to_items(fields["short_term_history"], f"{place}: history")
    ]
    chain = _chain([own, *_sort_newest_first(entries)])
    properties = _parse_properties(fields["properties"], f"{place}: properties")
    return replace(chain[0], metadata=properties), tuple(chain[1:])


def _sort_newest_first(entries: list[SnapshotInfo]) -> list[SnapshotInfo]:
    """Sort a history by time, newest entry first. The stored order is not documented."""
    times = [entry.flushed_at_us for entry in entries]
    ascending = len(times) > 1 and all(a < b for a, b in pairwise(times))
    return entries[::-1] if ascending else entries


def _chain(newest_first: Sequence[SnapshotInfo]) -> list[SnapshotInfo]:
    parents = [*(info.id for info in newest_first[1:]), None]
    return [replace(info, parent_id=id) for info, id in zip(newest_first, parents, strict=True)]


def _parse_info(stored: Any, place: str, findings: LegacyFindings) -> SnapshotInfo:
    fields = METADATA.read(stored, place, findings)
    return SnapshotInfo(
        make_object_id(SnapshotId, fields["id"], f"{place}: id", findings),
        None,
        to_time_us(fields["written_at"], f"{place}: written_at"),
        to_text(fields["message"], f"{place}: message"),
    )


def _parse_properties(stored: Any, place: str) -> dict[str, Any]:
    try:
        value = canonicalize(to_pairs(stored, place))
    except (TypeError, InvalidInputError) as error:
        raise make_damage_error(f"{place}: {error}") from None
    if not isinstance(value, dict):
        raise make_damage_error(f"{place}: not a map")
    return value


def _parse_manifest_files(
    fields: Mapping[str, Any], structure: Structure, place: str, findings: LegacyFindings
) -> ManifestFiles:
    found = []
    for stored in to_items(fields.get("manifest_files"), f"{place}: manifest_files"):
        entry = structure.read(stored, f"{place}: manifest_files", findings)
        found.append(
            ManifestFileInfo(
                make_object_id(ManifestId, entry["id"], f"{place}: manifest_files", findings),
                to_number(entry.get("size") or 0, f"{place}: size of a manifest"),
                to_number(entry.get("num_rows") or 0, f"{place}: rows of a manifest", 32),
            )
        )
    return ManifestFiles.of(found)


def _parse_nodes(stored: Any, place: str, findings: LegacyFindings) -> Nodes:
    nodes = []
    for path, entry in to_pairs(stored, f"{place}: nodes").items():
        path = to_text(path, f"{place}: path of a node")
        nodes.append(_parse_node(path, entry, f"{place}: node {path}", findings))
    try:
        found = Nodes.of(nodes, place)
    except InvalidInputError as error:
        raise FormatError(f"{place}: {error.message}", kind=error.kind) from None
    ids = {node.id for node in nodes}
    if len(ids) != len(nodes):
        raise make_damage_error(f"{place}: two nodes have the same id")
    return found


def _parse_node(path: str, stored: Any, place: str, findings: LegacyFindings) -> NodeSnapshot:
    fields = NODE.read(stored, place, findings)
    own = fields.get("path", path)
    if own != path:
        raise make_damage_error(f"{place}: contains the path {own!r}")
    id = make_node_id(fields["id"], f"{place}: id")
    path = path if path.startswith("/") else f"/{path}"
    attributes = get_attributes(fields.get("user_attributes"), place)
    kind, content = to_variant(fields["node_data"], f"{place}: node_data")
    if kind == "Group" and not content:
        return NodeSnapshot(id, path, make_group_document(attributes, place), GroupNodeData())
    if kind != "Array" or len(to_items(content, place)) != 2:
        raise make_damage_error(f"{place}: node_data is neither a group nor an array")
    metadata, manifests = content
    document, data = make_array_document(metadata, attributes, place, findings)
    refs = tuple(
        _parse_manifest_ref(ref, f"{place}: manifests", findings)
        for ref in to_items(manifests, f"{place}: manifests")
    )
    return NodeSnapshot(id, path, document, replace(data, manifests=tuple(dict.fromkeys(refs))))


def _parse_manifest_ref(stored: Any, place: str, findings: LegacyFindings) -> ManifestRef:
    """Decode a manifest reference without its extents. Early releases wrote no extents or wrong ones, which
    would hide chunks.
    """
    fields = MANIFEST_REF.read(stored, place, findings)
    return ManifestRef(make_object_id(ManifestId, fields["object_id"], place, findings), ())
