"""Take the inventory of a repository in an old format: the objects to upgrade, and missing objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe.errors import ErrorKind, FormatError, SessionStateError, SnapshotNotFoundError
from icefloe.format.repo_info import MAIN, SnapshotInfo
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot, Snapshot
from icefloe.legacy.assets import LegacyAssets
from icefloe.legacy.refs import RefStoreLegacy

_MAIN_IS_MISSING: Final = "the repository has no readable branch main, which version 2 of the format requires"


@dataclass(frozen=True, slots=True)
class ManifestUse:
    """The manifests of an array in a legacy snapshot, in the order in which they are searched for chunks."""

    manifests: tuple[ManifestId, ...]
    node: NodeId
    rank: int

    @staticmethod
    def of(node: NodeSnapshot) -> ManifestUse | None:
        """Return the manifests of a node; None if it has none."""
        data = node.node_data
        if not isinstance(data, ArrayNodeData) or not data.manifests:
            return None
        return ManifestUse(tuple(ref.id for ref in data.manifests), node.id, len(data.shape))


@dataclass(slots=True)
class Inventory:
    """The inventory of a legacy repository: the snapshots, refs and manifests to upgrade."""

    snapshots: dict[SnapshotId, SnapshotInfo] = field(default_factory=dict)
    """Readable snapshots, each with a readable parent."""
    branches: dict[str, SnapshotId] = field(default_factory=dict)
    tags: dict[str, SnapshotId] = field(default_factory=dict)
    deleted_tags: dict[str, SnapshotId | None] = field(default_factory=dict)
    """Deleted tags and their snapshots, if known."""
    properties: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    """The additional properties stored in branch and tag files."""
    uses: set[ManifestUse] = field(default_factory=set)
    gaps: list[str] = field(default_factory=list)
    """Objects that can be reached from branches or tags but do not exist."""


def take_inventory(refs: RefStoreLegacy, assets: LegacyAssets) -> Inventory:
    """Take the inventory of a legacy repository by reading every snapshot and every ref."""
    found = Inventory()
    listed: dict[SnapshotId, SnapshotInfo] = {}
    damage: dict[SnapshotId, str] = {}
    for raw in sorted(assets.listing(assets.folders.snapshots)):
        id = SnapshotId(raw)
        try:
            one = assets.stored(id)
        except (FormatError, SnapshotNotFoundError) as error:
            damage[id] = error.message
            continue
        listed[id] = refs.snapshot(id)
        _note_uses(found, one.snapshot)
    _take_refs(found, refs, listed.keys())
    _take_snapshots(found, listed, damage, assets)
    if MAIN not in found.branches:
        raise SessionStateError(_MAIN_IS_MISSING, kind=ErrorKind.INVALID_REPOSITORY_MIGRATION)
    return found


def _note_uses(found: Inventory, snapshot: Snapshot) -> None:
    found.uses.update(use for node in snapshot.nodes if (use := ManifestUse.of(node)) is not None)


def _take_refs(found: Inventory, refs: RefStoreLegacy, readable: Any) -> None:
    files = refs.files()
    paths = [("branches", name, files.tip(name)) for name in sorted(files.branches)]
    paths += [("tags", name, path) for name, path in sorted(files.tags.items())]
    for kind, name, path in paths:
        target = refs.target(path)
        known = target in readable
        if name in files.deleted_tags and kind == "tags":
            found.deleted_tags[name] = target if known else None
            continue
        if not known:
            found.gaps.append(f"{kind} {name} refers to snapshot {target}, which cannot be read")
            continue
        getattr(found, kind)[name] = target
        properties = refs.properties(path)
        if properties:
            found.properties.setdefault(kind, {})[name] = properties
    for name in files.deleted_tags - files.tags.keys():
        found.deleted_tags[name] = None


def _take_snapshots(
    found: Inventory,
    listed: Mapping[SnapshotId, SnapshotInfo],
    damage: Mapping[SnapshotId, str],
    assets: LegacyAssets,
) -> None:
    needed = _find_reachable(found, listed)
    for id, info in listed.items():
        parent = info.parent_id
        if parent is not None and parent not in listed:
            reason = damage.get(parent, "its file is missing")
            text = f"snapshot {id} has the parent {parent}, which cannot be read: {reason}"
            if id in needed:
                found.gaps.append(text)
            else:
                assets.findings.note(text)
            parent = next((one.id for one in assets.stored(id).history if one.id in listed), None)
        found.snapshots[id] = replace(info, parent_id=parent)
    for id, message in damage.items():
        assets.findings.note(f"ignored snapshot {id}: {message}")


def _find_reachable(found: Inventory, listed: Mapping[SnapshotId, SnapshotInfo]) -> set[SnapshotId]:
    seen: set[SnapshotId] = set()
    for tip in [*found.branches.values(), *found.tags.values()]:
        at: SnapshotId | None = tip
        while at is not None and at in listed and at not in seen:
            seen.add(at)
            at = listed[at].parent_id
    return seen
