"""Read a repository file by file with the format package, without the engine.

Every reference is followed to its end, from refs over snapshots and manifests to chunk objects; what is
missing or contradicts itself is a `Violation`. Contents are those of `tests.support.simulation.model`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId, encode_column
from icefloe._internal.times import to_microseconds
from icefloe.errors import FormatError
from icefloe.format.files import (
    CHUNKS,
    MANIFESTS,
    REPO_PATH,
    SNAPSHOTS,
    TRANSACTIONS,
    read_manifest,
    read_repo_info,
    read_snapshot,
    read_transaction_log,
)
from icefloe.format.manifest import ChunkRef, InlineRef, NativeRef
from icefloe.format.refs_v1 import REFS, RefFile, RefKind, decode_ref
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot, Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.updates import StoredUpdate
from icefloe.storage.base import ObjectNotFoundError, Storage
from tests.support.simulation.model import Changes, PlainTree, Refs, Tree


class Violation(AssertionError):  # noqa: N818 - it is the word of those who check histories
    """A violated invariant of a repository."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The refs of a repository, with its snapshots and status."""

    refs: Refs
    parents: Mapping[str, str | None] = field(default_factory=dict)
    """Of all snapshots in the repo info file; empty where there is none."""
    inherited: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The logs that each of them has of ancestors that expired, oldest first."""
    updates: tuple[StoredUpdate, ...] = ()
    """The ops log in the repo info file, newest first."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Audit:
    """A reader of a repository that remembers which immutable files are intact."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._trees: dict[str, PlainTree] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._manifests: dict[tuple[ManifestId, NodeId], tuple[int, list[tuple[int, int]]]] = {}
        self._chunks: dict[str, list[str]] = {}

    def stored(self) -> Stored:
        """Return the current refs. The decoder checks every MUST for the repo info file."""
        try:
            data, _ = self.storage.get(REPO_PATH)
        except ObjectNotFoundError:
            return self._stored_in_files()
        info = read_repo_info(data)
        refs = Refs(
            {name: str(id) for name, id in info.branches.items()},
            {name: str(id) for name, id in info.tags.items()},
            frozenset(info.deleted_tags),
        )
        times = [update.updated_at_us for update in info.latest_updates]
        if times != sorted(set(times), reverse=True):
            raise Violation(f"the ops log is out of order: {times}")
        parents = {
            str(each.id): None if each.parent_id is None else str(each.parent_id) for each in info.snapshots
        }
        return Stored(
            refs,
            parents,
            {str(each.id): tuple(map(str, each.pruned_ancestor_tx_logs)) for each in info.snapshots},
            tuple(each.update_type for each in info.latest_updates),
            dict(info.metadata),
        )

    def _stored_in_files(self) -> Stored:
        found: dict[RefKind, dict[str, str]] = {RefKind.BRANCH: {}, RefKind.TAG: {}}
        deleted = set()
        for info in self.storage.list_prefix(REFS):
            file = RefFile.parse(info.key)
            if file is not None and file.deleted:
                deleted.add(file.name)
            elif file is not None:
                found[file.kind][file.name] = str(decode_ref(self.storage.get(info.key)[0], info.key))
        tags = {name: id for name, id in found[RefKind.TAG].items() if name not in deleted}
        return Stored(Refs(found[RefKind.BRANCH], tags, frozenset(deleted)))

    def parent(self, id: str, stored: Stored) -> str | None:
        """Return the parent of a snapshot."""
        if stored.parents:
            if id not in stored.parents:
                raise Violation(f"snapshot {id} is not in the repo info file")
            return stored.parents[id]
        parent = self.snapshot(id).parent_id
        return None if parent is None else str(parent)

    def history(self, id: str, stored: Stored) -> list[str]:
        """Return a snapshot and its ancestors, newest first."""
        found: list[str] = []
        at: str | None = id
        while at is not None:
            if at in found:
                raise Violation(f"snapshot {at} is its own ancestor")
            found.append(at)
            at = self.parent(at, stored)
        return found

    def everything(self) -> Stored:
        """Return the current refs after checking everything that they lead to."""
        stored = self.stored()
        if "main" not in stored.refs.branches:
            raise Violation("there is no branch main")
        for tip in {*stored.refs.branches.values(), *stored.refs.tags.values(), *stored.parents}:
            for id in self.history(tip, stored):
                self.tree(id)
        return stored

    def needed(self, stored: Stored) -> set[str]:
        """Return the paths of all objects that snapshots in the history use."""
        ids = set(stored.parents)
        for tip in {*stored.refs.branches.values(), *stored.refs.tags.values()}:
            ids.update(self.history(tip, stored))
        logs = ids | {log for id in ids for log in stored.inherited.get(id, ())}
        manifests = {str(each.id) for id in ids for each in self.snapshot(id).manifest_files}
        chunks = {chunk for each in manifests for chunk in self._chunks_of(each)}
        return {
            f"{folder}/{id}"
            for folder, kept in (
                (SNAPSHOTS, ids),
                (TRANSACTIONS, logs),
                (MANIFESTS, manifests),
                (CHUNKS, chunks),
            )
            for id in kept
        }

    def _chunks_of(self, manifest: str) -> list[str]:
        if manifest not in self._chunks:
            packed = read_manifest(self._get(f"{MANIFESTS}/{manifest}"), ManifestId.parse(manifest))
            self._chunks[manifest] = encode_column(packed.chunk_ids())
        return self._chunks[manifest]

    def written_at_us(self, path: str) -> int | None:
        """Return the time of an object by the clock of the storage; None if it does not exist."""
        try:
            return to_microseconds(self.storage.head(path)[0].created_at)
        except ObjectNotFoundError:
            return None

    def snapshot(self, id: str) -> Snapshot:
        """Read a snapshot file."""
        if id not in self._snapshots:
            self._snapshots[id] = read_snapshot(self._get(f"{SNAPSHOTS}/{id}"), SnapshotId.parse(id))
        return self._snapshots[id]

    def tree(self, id: str) -> PlainTree:
        """Return the content of a snapshot after reading every file that it uses."""
        if id not in self._trees:
            snapshot = self.snapshot(id)
            self._check_log(snapshot)
            self._trees[id] = {node.path: self._node(snapshot, node) for node in snapshot.nodes}
        return self._trees[id]

    def log(self, id: str) -> TransactionLog:
        """Read the transaction log of a snapshot."""
        return read_transaction_log(self._get(f"{TRANSACTIONS}/{id}"), SnapshotId.parse(id))

    def logged_changes(self, id: str, base: str, tree: Tree, base_tree: Tree) -> Changes:
        """Return the changes in the log of a snapshot as changes of the model."""
        log = self.log(id)
        paths = [{node.id: node.path for node in self.snapshot(each).nodes} for each in (id, base)]
        keys = [
            {node: side.nodes[path].key for node, path in found.items()}
            for side, found in zip((tree, base_tree), paths, strict=True)
        ]
        made = Changes()
        for row in (*log.new_groups, *log.new_arrays):
            path = paths[0][NodeId(row.tobytes())]
            made.created[path] = tree.nodes[path]
        for row in (*log.updated_groups, *log.updated_arrays):
            node = NodeId(row.tobytes())
            made.updated[keys[0][node]] = tree.nodes[paths[0][node]]
        for row in (*log.deleted_groups, *log.deleted_arrays):
            node = NodeId(row.tobytes())
            if node in keys[1]:
                made.deleted[keys[1][node]] = paths[1][node]
        for node, coords in log.updated_chunks:
            if (key := keys[0].get(node, keys[1].get(node))) is not None:
                made.cells |= {(key, index): tree.cells.get((key, index)) for (index,) in coords.tolist()}
        for move in log.moved_nodes:
            made.moved[keys[0][move.node_id]] = move.to_path
        return made

    def _check_log(self, snapshot: Snapshot) -> None:
        if snapshot.id == INITIAL_SNAPSHOT_ID:
            return  # it has none in a V1 repository
        log = self.log(str(snapshot.id))
        present = {bytes(node.id) for node in snapshot.nodes}
        for new in (*log.new_arrays, *log.new_groups):
            if new.tobytes() not in present:
                raise Violation(f"snapshot {snapshot.id} created a node that it does not hold")

    def _node(self, snapshot: Snapshot, node: NodeSnapshot) -> tuple[int | None, int, dict[int, int]]:
        label = int(json.loads(node.user_data)["attributes"].get("label", 0))
        data = node.node_data
        if not isinstance(data, ArrayNodeData):
            return None, label, {}
        rows = data.shape[0].num_chunks
        values: dict[int, int] = {}
        for ref in data.manifests:
            listed = snapshot.manifest_files.find(ref.id)
            if listed is None:
                raise Violation(f"snapshot {snapshot.id}: manifest {ref.id} of {node.path} is not listed")
            size_bytes, found = self._manifest(ref.id, node.id, len(data.shape))
            if (listed.size_bytes, listed.num_chunk_refs) != (size_bytes, len(found)):
                raise Violation(f"snapshot {snapshot.id}: what it says of manifest {ref.id} is wrong")
            for index, value in found:
                if index in values or index not in ref.extents[0] or index >= rows:
                    raise Violation(f"snapshot {snapshot.id}: chunk {index} of {node.path} is misplaced")
                values[index] = value
        return rows, label, values

    def _manifest(self, id: ManifestId, node: NodeId, rank: int) -> tuple[int, list[tuple[int, int]]]:
        """Return the size of a manifest, and the numbers in the chunks of one array."""
        if (id, node) not in self._manifests:
            packed = self._get(f"{MANIFESTS}/{id}")
            refs = read_manifest(packed, id).array(node, rank)
            indices = refs.coords[:, 0].tolist()
            # Row by row: arrays of a model have few chunks.
            found = [(index, self._value(refs.ref(row))) for row, index in enumerate(indices)]
            self._manifests[id, node] = len(packed), found
        return self._manifests[id, node]

    def _value(self, ref: ChunkRef) -> int:
        match ref:
            case InlineRef(data):
                return number(data)
            case NativeRef(id, offset, length):
                path = f"{CHUNKS}/{id}"
                try:
                    return number(self.storage.get_range(path, offset, offset + length))
                except ObjectNotFoundError:
                    raise Violation(f"{path} is missing") from None
        raise Violation(f"a virtual chunk {ref} that nobody wrote")

    def _get(self, path: str) -> bytes:
        try:
            return self.storage.get(path)[0]
        except ObjectNotFoundError:
            raise Violation(f"{path} is missing") from None
        except FormatError as error:
            raise Violation(f"{path} is damaged: {error}") from None


def chunk_bytes(value: int) -> bytes:
    """Encode a number as a chunk."""
    return np.int64(value).tobytes()


def number(data: bytes) -> int:
    """Decode the number in a chunk."""
    return int(np.frombuffer(data, np.int64)[0])
