"""Merge the changes of many forks into their session.

A fork knows the state from which it was forked. Its changes to nodes are compared with that state, and with
the changes of the session and of previously merged forks. If metadata changed on both sides, if a node was
deleted on one side and changed on the other, or if two nodes were created at the same path, an error is
raised and nothing is merged. Chunks are not compared: if two forks write the same chunk, the fork that is
merged later wins, as in official releases.

References are only concatenated here. They are sorted once, when all of them are needed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NoReturn

from icefloe._internal.ids import SnapshotId
from icefloe._internal.paths import list_ancestors
from icefloe.core.changeset import ChangeSet, count_dimensions
from icefloe.core.changeset_codec import decode_changes, encode_changes
from icefloe.core.early_manifests import ReadManifest
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
    """The receipt of a fork: its changes, and the snapshot that they are based on."""

    origin: SnapshotId
    """The base snapshot of the original session. It stays the same for forks of forks."""
    base: SnapshotId
    """The base of the fork: the origin, or a snapshot that also contains the session's uncommitted changes.
    """
    place: bytes
    """The identity of the repository, from `identify_repository`."""
    copy: bytes
    """The `copy_id` of the storage to which the fork wrote chunks."""
    since: int
    """The mark of `RefStore.now`, taken before the first write. A later garbage collection may have deleted
    chunks.
    """
    changes: ChangeSet

    def to_bytes(self) -> bytes:
        """Encode the receipt as bytes. They contain neither credentials nor the location of the
        repository.
        """
        head = _HEAD.pack(bytes(self.origin), bytes(self.base), self.place, self.copy, self.since)
        return head + encode_changes(self.changes)

    @staticmethod
    def from_bytes(data: bytes, read: ReadManifest) -> Receipt:
        """Decode a receipt; raise FormatError if it is damaged. `read` is the function that reads early
        manifests.
        """
        if len(data) < _HEAD.size:
            raise FormatError(
                f"the receipt is truncated: it has only {len(data)} bytes", kind=ErrorKind.DESERIALIZATION
            )
        origin, base, place, copy, since = _HEAD.unpack_from(data)
        changes = decode_changes(memoryview(data)[_HEAD.size :], "the receipt of a fork", read)
        return Receipt(SnapshotId(origin), SnapshotId(base), place, copy, since, changes)

    def has_chunk_objects(self) -> bool:
        """Return True if the receipt refers to chunk objects or manifests in the storage of the
        repository.
        """
        deltas = self.changes.chunks.values()
        if any(delta.early for delta in deltas):
            return True
        written = (delta.resolve()[0] for delta in deltas)
        return any(refs is not None and bool((refs.kind == NATIVE).any()) for refs in written)


def merge_receipts(workspace: Workspace, origin: SnapshotId, receipts: Iterable[Receipt]) -> None:
    """Merge the receipts of forks into the workspace of their session, in the given order. Either all
    receipts are merged or none.
    """
    receipts = list(receipts)
    place, copy = identify_repository(workspace.assets.storage)
    for receipt in receipts:
        if receipt.place != place:
            refuse(f"the fork does not belong to the repository {workspace.assets.storage.place}")
        if receipt.copy != copy and receipt.has_chunk_objects():
            refuse(
                "the chunks of the fork are in a copy of an in-memory storage, which was pickled with it; use"
                " threads, or a storage that other processes can access"
            )
        if receipt.origin != origin:
            refuse(
                f"the fork is based on snapshot {receipt.origin}, and the session on {origin}; merge forks"
                " into the session that created them, and then rebase the session"
            )

    with workspace.editing():
        scratch = Workspace(workspace.base, workspace.assets, workspace.changes.copy())
        for receipt in receipts:
            _Merge(scratch, receipt).run()
        workspace.changes = scratch.changes


def identify_repository(storage: Storage) -> tuple[bytes, bytes]:
    """Return digests that identify the repository and its storage, to check if a receipt belongs to them."""
    place, copy = (
        hashlib.blake2b(text.encode(), digest_size=_DIGEST_SIZE).digest()
        for text in (storage.identity, storage.copy_id)
    )
    return place, copy


def refuse(problem: str) -> NoReturn:
    """Raise the error for a receipt that cannot be merged."""
    raise SessionStateError(f"merge failed: {problem}", kind=ErrorKind.MERGE_FAILED)


class _Merge:
    """The merge of one fork into a workspace."""

    def __init__(self, target: Workspace, receipt: Receipt) -> None:
        self.target = target
        self.base = receipt.base
        self.theirs = receipt.changes

    def run(self) -> None:
        if self.theirs.moved:
            refuse("the fork moved nodes, which only a rearrange session can commit")
        self._delete()
        self._create()
        self._update()
        self._write_chunks()

    @cached_property
    def _forked_state(self) -> Workspace:
        """The state from which the fork was created."""
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
                refuse(f"{path} was deleted in a fork and created again outside it")
            if self._has_changed(current) or self._has_changed_chunks(current):
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
                    continue  # the fork was already merged
                refuse(f"{path} was created in a fork and also outside it")
            for above in list_ancestors(path):
                if above in changes.deleted and self.target.node(above) is None:
                    refuse(f"{path} was created in a fork, and {above} was deleted outside it")
                if _is_array(self.target.node(above)):
                    refuse(f"{path} was created in a fork, and {above} is an array outside it")
            if _is_array(node) and self.target.has_nodes_below(path):
                refuse(f"{path} became an array in a fork, and nodes were created below it outside the fork")
            self.target.create_node(node)

    def _update(self) -> None:
        changes = self.target.changes
        for path, node in self.theirs.updated.items():
            current = self.target.node(path)
            if current is None or current.id != node.id:
                refuse(f"the metadata of {path} was changed in a fork, and it was deleted outside it")
            if current.user_data == node.user_data:
                continue
            if self._has_changed(current):
                refuse(f"the metadata of {path} was changed in a fork and, differently, outside it")
            kept = changes.created if path in changes.created else changes.updated
            kept[path] = replace(
                current, user_data=node.user_data, node_data=self._update_node_data(current, node)
            )

    def _update_node_data(self, current: NodeSnapshot, node: NodeSnapshot) -> NodeData:
        """Return node data with the fork's shape and the session's manifests, because the fork's manifests
        may be outdated.
        """
        if not isinstance(node.node_data, ArrayNodeData) or not isinstance(current.node_data, ArrayNodeData):
            return node.node_data
        if count_dimensions(node) == count_dimensions(current):
            return replace(node.node_data, manifests=current.node_data.manifests)
        if self._has_changed_chunks(current):
            refuse(f"{node.path} has a different number of dimensions in a fork, and new chunks outside it")
        self.target.changes.chunks.pop(current.id, None)
        return replace(node.node_data, manifests=())

    def _write_chunks(self) -> None:
        for id, delta in self.theirs.chunks.items():
            node = self.target.node(delta.path)
            if node is None or node.id != id:
                refuse(f"chunks of {delta.path} were written in a fork, and the array was deleted outside it")
            rank = count_dimensions(node)
            if rank != delta.rank:
                refuse(f"{delta.path} has {delta.rank} dimensions in a fork and {rank} outside it")
            self.target.changes.delta(node).extend(delta)

    def _has_changed(self, current: NodeSnapshot) -> bool:
        """Return True if the metadata of a node has changed since the fork was created."""
        seen = self._forked_state.node(current.path)
        return seen is None or seen.id != current.id or seen.user_data != current.user_data

    def _has_changed_chunks(self, current: NodeSnapshot) -> bool:
        """Return True if the session has changed chunks of an array since the fork was created."""
        delta = self.target.changes.chunks.get(current.id)
        seen = self._forked_state.node(current.path)
        if delta is None:
            return False
        if seen is None:
            return True
        written, gone = delta.resolve()
        refs = self._forked_state.refs(seen)
        if coordinates.contains(refs.coords, gone).any():
            return True
        return written is not None and not _contains_all(refs, written)


def _contains_all(refs: ArrayManifest, part: ArrayManifest) -> bool:
    return refs.take(coordinates.contains(refs.coords, part.coords)) == part


def _is_array(node: NodeSnapshot | None) -> bool:
    return node is not None and isinstance(node.node_data, ArrayNodeData)
