"""Bringing the changes of forks into the session they came from: many of them, as one change.

A fork knows the state it was forked from. What it did to nodes is compared with that state and with what the
session, or forks merged before it, did since: metadata changed on both sides, a node deleted on one side and
changed on the other, two nodes created at one path are refused, and then nothing is merged at all. Chunks are
not compared: of two writes of one chunk that of the fork merged later stays, as in official releases.

References are only put behind each other here. They are sorted once, when somebody asks for them all.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NoReturn

from icefloe._internal.ids import SnapshotId
from icefloe._internal.paths import ancestors
from icefloe.core.changeset import ChangeSet, rank_of
from icefloe.core.changeset_codec import decode_changes, encode_changes
from icefloe.core.commit.early_manifests import ReadManifest
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, FormatError, SessionStateError
from icefloe.format import coordinates
from icefloe.format.manifest import NATIVE, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeData, NodeSnapshot
from icefloe.storage.base import Storage

_DIGEST_SIZE: Final = 16
_HEAD: Final = struct.Struct(f"<{SnapshotId.SIZE}s{SnapshotId.SIZE}s{_DIGEST_SIZE}s{_DIGEST_SIZE}sQ")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a fork changed, and upon what."""

    origin: SnapshotId
    """The snapshot that the session was based on from which it was forked, at first or second hand."""
    base: SnapshotId
    """What the fork is based on: the origin, or a snapshot that also has what was not yet committed."""
    place: bytes
    """The repository, as `place_of` gives it."""
    copy: bytes
    """And which copy of it the fork wrote chunks to."""
    since: int
    """The mark of `RefStore.now` before the first write: a later collection may have deleted chunks."""
    changes: ChangeSet

    def to_bytes(self) -> bytes:
        """A small form of it. There are no credentials in it, nor where the repository is."""
        head = _HEAD.pack(bytes(self.origin), bytes(self.base), self.place, self.copy, self.since)
        return head + encode_changes(self.changes)

    @staticmethod
    def from_bytes(data: bytes, read: ReadManifest) -> Receipt:
        """What `to_bytes` made; FormatError where it was damaged. `read` is for early manifests."""
        if len(data) < _HEAD.size:
            raise FormatError(f"a receipt of {len(data)} bytes is cut off", kind=ErrorKind.DESERIALIZATION)
        origin, base, place, copy, since = _HEAD.unpack_from(data)
        changes = decode_changes(memoryview(data)[_HEAD.size :], "the receipt of a fork", read)
        return Receipt(SnapshotId(origin), SnapshotId(base), place, copy, since, changes)

    def has_chunk_objects(self) -> bool:
        """Whether chunks or manifests were written into the repository's storage."""
        deltas = self.changes.chunks.values()
        if any(delta.early for delta in deltas):
            return True
        written = (delta.resolve()[0] for delta in deltas)
        return any(refs is not None and bool((refs.kind == NATIVE).any()) for refs in written)


def merge_receipts(workspace: Workspace, origin: SnapshotId, receipts: Iterable[Receipt]) -> None:
    """Add what forks changed to the changes of a workspace, in the order given: all of them or none."""
    receipts = list(receipts)
    place, copy = place_of(workspace.assets.storage)
    for receipt in receipts:
        if receipt.place != place:
            refuse(f"the fork is one of another repository than that in {workspace.assets.storage.place}")
        if receipt.copy != copy and receipt.has_chunk_objects():
            refuse(
                "the fork's chunks are in a copy of an in-memory storage, made when the fork was pickled; use"
                " a storage that other processes reach, or threads"
            )
        if receipt.origin != origin:
            refuse(
                f"a fork based on snapshot {receipt.origin} is none of a session based on {origin}: what"
                " was committed in between was never compared with it; merge forks into the session they came"
                " from, and then rebase that"
            )

    with workspace.editing():
        scratch = Workspace(workspace.base, workspace.assets, workspace.changes.copy())
        for receipt in receipts:
            _Merge(scratch, receipt).run()
        workspace.changes = scratch.changes


def place_of(storage: Storage) -> tuple[bytes, bytes]:
    """Which repository it holds, and which copy of that: short, and telling nothing to anybody else."""
    place, copy = (
        hashlib.blake2b(text.encode(), digest_size=_DIGEST_SIZE).digest()
        for text in (storage.identity, storage.copy_id)
    )
    return place, copy


def refuse(problem: str) -> NoReturn:
    """The error of a merge that cannot be made."""
    raise SessionStateError(f"merge failed: {problem}", kind=ErrorKind.MERGE_FAILED)


class _Merge:
    """One fork's changes on their way into a workspace."""

    def __init__(self, target: Workspace, receipt: Receipt) -> None:
        self.target = target
        self.base = receipt.base
        self.theirs = receipt.changes

    def run(self) -> None:
        if self.theirs.moved:
            refuse("moved nodes are committed by the rearrange session that moved them")
        self._delete()
        self._create()
        self._update()
        self._write_chunks()

    @cached_property
    def _seen(self) -> Workspace:
        """What the fork saw when it began."""
        target = self.target
        same = self.base == target.base.id
        return Workspace(target.base if same else target.assets.snapshot(self.base), target.assets)

    def _delete(self) -> None:
        changes = self.target.changes
        for path, node in self.theirs.deleted.items():
            current = self.target.node(path)
            again = self.theirs.created.get(path)
            if current is None or (again is not None and current.id == again.id):
                continue
            if current.id != node.id:
                refuse(f"{path} was deleted in a fork and created anew outside it")
            if self._changed_since(current) or self._chunks_changed_since(current):
                refuse(f"{path} was deleted in a fork and changed outside it")
            changes.chunks.pop(current.id, None)
            changes.updated.pop(path, None)
            if changes.created.pop(path, None) is None:
                changes.deleted[path] = current
        for path in self.theirs.deleted:
            if path not in self.theirs.created and self.target.has_nodes_below(path):
                refuse(f"{path} was deleted in a fork, and nodes were created below it outside the fork")

    def _create(self) -> None:
        changes = self.target.changes
        for path, node in sorted(self.theirs.created.items()):
            current = self.target.node(path)
            if current is not None:
                if current.id == node.id and current.user_data == node.user_data:
                    continue  # merged before
                refuse(f"{path} was created in a fork and also outside it")
            for above in ancestors(path):
                if above in changes.deleted and self.target.node(above) is None:
                    refuse(f"{path} was created in a fork, and {above} was deleted outside it")
                if _is_array(self.target.node(above)):
                    refuse(f"{path} was created in a fork, and {above} is an array outside it")
            if _is_array(node) and self.target.has_nodes_below(path):
                refuse(f"{path} became an array in a fork, and nodes were created below it outside the fork")
            changes.created[path] = node

    def _update(self) -> None:
        changes = self.target.changes
        for path, node in self.theirs.updated.items():
            current = self.target.node(path)
            if current is None or current.id != node.id:
                refuse(f"the metadata of {path} was changed in a fork, and it was deleted outside it")
            if current.user_data == node.user_data:
                continue
            if self._changed_since(current):
                refuse(f"the metadata of {path} was changed in a fork and also, otherwise, outside it")
            kept = changes.created if path in changes.created else changes.updated
            kept[path] = replace(current, user_data=node.user_data, node_data=self._node_data(current, node))

    def _node_data(self, current: NodeSnapshot, node: NodeSnapshot) -> NodeData:
        """The fork's shape over the session's manifests: the fork's may be those of its own base."""
        if not isinstance(node.node_data, ArrayNodeData) or not isinstance(current.node_data, ArrayNodeData):
            return node.node_data
        if rank_of(node) == rank_of(current):
            return replace(node.node_data, manifests=current.node_data.manifests)
        if self._chunks_changed_since(current):
            refuse(f"{node.path} has another number of dimensions in a fork, and new chunks outside it")
        self.target.changes.chunks.pop(current.id, None)
        return replace(node.node_data, manifests=())

    def _write_chunks(self) -> None:
        for id, delta in self.theirs.chunks.items():
            node = self.target.node(delta.path)
            if node is None or node.id != id:
                refuse(
                    f"chunks of {delta.path} were written in a fork, and outside it there is no such array"
                )
            if rank_of(node) != delta.rank:
                refuse(f"{delta.path} has {delta.rank} dimensions in a fork and {rank_of(node)} outside it")
            self.target.changes.delta(node).extend(delta)

    def _changed_since(self, current: NodeSnapshot) -> bool:
        """Whether the metadata of a node is not what the fork saw."""
        seen = self._seen.node(current.path)
        return seen is None or seen.id != current.id or seen.user_data != current.user_data

    def _chunks_changed_since(self, current: NodeSnapshot) -> bool:
        """Whether there are changed chunks of an array that the fork did not see."""
        delta = self.target.changes.chunks.get(current.id)
        seen = self._seen.node(current.path)
        if delta is None:
            return False
        if seen is None:
            return True
        written, gone = delta.resolve()
        refs = self._seen.refs(seen)
        if coordinates.contains(refs.coords, gone).any():
            return True
        return written is not None and not _holds(refs, written)


def _holds(refs: ArrayManifest, part: ArrayManifest) -> bool:
    return refs.take(coordinates.contains(refs.coords, part.coords)) == part


def _is_array(node: NodeSnapshot | None) -> bool:
    return node is not None and isinstance(node.node_data, ArrayNodeData)
