"""Hypothesis strategies for every value that a metadata file can hold, biased towards the borders.

Each gives values that survive writing and reading: those of a strategy that takes a `Spec` do so in a file of
that version of the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from icefloe._internal.ids import ChunkId, ManifestId, NodeId, ObjectId, SnapshotId
from icefloe.encoding.columns import Blobs
from icefloe.format.coordinates import Coords
from icefloe.format.id_columns import sort_ids
from icefloe.format.manifest import (
    ArrayManifest,
    ChunkRef,
    ETag,
    InlineRef,
    LastModified,
    Manifest,
    NativeRef,
    VirtualRef,
)
from icefloe.format.metadata import Metadata
from icefloe.format.repo_info import MAIN, RepoInfo, SnapshotInfo, SnapshotInfos
from icefloe.format.snapshot import (
    ArrayNodeData,
    DimensionShape,
    GroupNodeData,
    ManifestFileInfo,
    ManifestFiles,
    ManifestRef,
    Nodes,
    NodeSnapshot,
    Snapshot,
    list_used_manifests,
)
from icefloe.format.spec import Spec
from icefloe.format.transaction_log import (
    LISTS,
    MoveOperation,
    NodeType,
    TransactionLog,
    UpdatedChunks,
    sort_moves,
)
from icefloe.format.updates import (
    RepoAvailability,
    RepoStatus,
    RepoStatusChanged,
    StoredUpdate,
    Update,
    Updates,
)
from icefloe.ops import UpdateType

Id = TypeVar("Id", bound=ObjectId)

MAX_RANK: Final = 5
_U32: Final = 2**32 - 1
_U64: Final = 2**64 - 1


@cache
def sizes(limit: int = _U64) -> SearchStrategy[int]:
    """Unsigned numbers up to `limit`, small ones and the largest among them."""
    return st.integers(0, 9) | st.integers(0, limit) | st.just(limit)


@cache
def texts(min_size: int = 0) -> SearchStrategy[str]:
    """Return a strategy for texts that can be encoded as UTF-8."""
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=min_size, max_size=12)


@cache
def extras() -> SearchStrategy[bytes | None]:
    """Return the opaque bytes of a later version."""
    return st.none() | st.binary(max_size=9)


def ids(kind: type[Id]) -> SearchStrategy[Id]:
    """Object ids, also such as differ in their last byte alone or end in zeros."""
    return _id_bytes(kind.SIZE).map(kind)


@cache
def _id_bytes(size: int) -> SearchStrategy[bytes]:
    near = st.integers(0, 2).map(lambda last: bytes(size - 1) + bytes([last]))
    zeros = st.binary(min_size=2, max_size=2).map(lambda head: head.ljust(size, b"\0"))
    return st.binary(min_size=size, max_size=size) | near | zeros


@cache
def json_values() -> SearchStrategy[Any]:
    """Values that both metadata encodings keep as they are."""
    keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
    numbers = st.integers(-(2**63), _U64) | st.floats(allow_nan=False, allow_infinity=False)
    leaves = st.none() | st.booleans() | numbers | texts()
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=5,
    )


@cache
def metadata() -> SearchStrategy[Metadata]:
    """User metadata of a snapshot or a repository."""
    return st.dictionaries(texts(), json_values(), max_size=3)


# Manifests


@cache
def checksums() -> SearchStrategy[ETag | LastModified | None]:
    """Return a strategy for checksums of virtual references."""
    return st.none() | texts().map(ETag) | st.integers(1, _U32).map(LastModified)


@cache
def chunk_refs() -> SearchStrategy[ChunkRef]:
    """Return a strategy for references of all three kinds."""
    locations = st.sampled_from(["s3://bucket/a.nc", "s3://bucket/b.nc"]) | texts()
    long = st.integers(1020, 1030).map(lambda length: "file:///".ljust(length, "x"))
    return st.one_of(
        st.binary(max_size=9).map(InlineRef),
        st.builds(NativeRef, ids(ChunkId), sizes(), sizes()),
        st.builds(VirtualRef, locations | long, sizes(), sizes(), checksums()),
    )


@cache
def chunk_indices(rank: int) -> SearchStrategy[tuple[int, ...]]:
    """Coordinates of a chunk."""
    return st.tuples(*[sizes(_U32)] * rank)


@st.composite
def array_manifests(draw: st.DrawFn, rank: int | None = None, min_size: int = 1) -> ArrayManifest:
    """Return the references of one array, of mixed kinds."""
    rank = draw(st.integers(0, MAX_RANK)) if rank is None else rank
    refs = draw(st.dictionaries(chunk_indices(rank), chunk_refs(), min_size=min_size, max_size=6))
    manifest = ArrayManifest.from_refs(refs, rank)
    if draw(st.booleans()):
        opaque = draw(st.lists(st.binary(max_size=3), min_size=len(refs), max_size=len(refs)))
        manifest = replace(manifest, extras=Blobs.from_list(opaque))
    return manifest


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Manifests of no, one or several arrays."""
    arrays = draw(st.dictionaries(ids(NodeId), array_manifests(), max_size=3))
    with_extra = draw(st.lists(st.sampled_from(sorted(arrays)), unique=True)) if arrays else []
    opaque = {node: draw(st.binary(max_size=5)) for node in with_extra}
    return Manifest(draw(ids(ManifestId)), arrays, draw(extras()), opaque or None)


# Snapshots


@cache
def paths() -> SearchStrategy[str]:
    """Canonical node paths, many of them close in either order."""
    segment = st.sampled_from(["a", "b", "a-b", "a.b", "ab", "é", "水"]) | texts(1).map(
        lambda text: text.replace("/", "_")
    )
    segments = st.lists(segment.filter(lambda text: text not in (".", "..")), max_size=3)
    return segments.map(lambda parts: "/" + "/".join(parts))


@st.composite
def dimension_shapes(draw: st.DrawFn, spec: Spec) -> DimensionShape:
    """Return the length of a dimension and its number of chunks."""
    length = draw(sizes())
    if spec.counts_chunks:
        return DimensionShape(length, draw(sizes(_U32)))
    # The file holds the length of a chunk, from which not every number of chunks can come.
    chunk = draw(st.integers(max(1, length >> 31), max(1, length)))
    return DimensionShape(length, -(-length // chunk))


@st.composite
def manifest_refs(draw: st.DrawFn, rank: int) -> tuple[ManifestRef, ...]:
    """Draw references to manifests with disjoint extents: slabs along one dimension."""
    if not rank:
        return tuple(ManifestRef(id, ()) for id in draw(st.lists(ids(ManifestId), max_size=1)))
    axis = draw(st.integers(0, rank - 1))
    borders = sorted(draw(st.sets(sizes(_U32), max_size=4)))
    bounds = st.tuples(sizes(_U32), sizes(_U32)).map(sorted)
    rest = [range(*draw(bounds)) for _ in range(rank)]
    return tuple(
        ManifestRef(draw(ids(ManifestId)), (*rest[:axis], range(start, stop), *rest[axis + 1 :]))
        for start, stop in pairwise(borders)
    )


@st.composite
def array_node_data(draw: st.DrawFn, spec: Spec) -> ArrayNodeData:
    """Arrays of up to five dimensions."""
    shape = draw(st.lists(dimension_shapes(spec), max_size=MAX_RANK))
    names = st.lists(st.none() | texts(1), min_size=len(shape), max_size=len(shape)).map(tuple)
    return ArrayNodeData(tuple(shape), draw(manifest_refs(len(shape))), draw(st.none() | names))


@cache
def node_snapshots(spec: Spec) -> SearchStrategy[NodeSnapshot]:
    """Single nodes."""
    data = st.just(GroupNodeData()) | array_node_data(spec)
    return st.builds(NodeSnapshot, ids(NodeId), paths(), st.binary(max_size=20), data, extras())


def nodes(spec: Spec) -> SearchStrategy[Nodes]:
    """Return the nodes of a snapshot."""
    unique = st.lists(node_snapshots(spec), max_size=5, unique_by=lambda node: node.path)
    return unique.map(Nodes.of)


@st.composite
def snapshots(draw: st.DrawFn, spec: Spec) -> Snapshot:
    """Snapshots, with an entry for every manifest that their arrays use and perhaps for others."""
    held = draw(nodes(spec))
    listed = {*list_used_manifests(held), *draw(st.lists(ids(ManifestId), max_size=2))}
    later = extras() if spec.extras else st.none()
    files = [ManifestFileInfo(id, draw(sizes()), draw(sizes(_U32)), draw(later)) for id in sorted(listed)]
    return Snapshot(
        id=draw(ids(SnapshotId)),
        parent_id=draw(st.none() | ids(SnapshotId)) if spec.parent_in_snapshot else None,
        flushed_at_us=draw(sizes()),
        message=draw(texts()),
        metadata=draw(metadata()),
        manifest_files=ManifestFiles.of(files),
        nodes=held,
        extra=draw(later),
    )


# Transaction logs


@st.composite
def coordinate_columns(draw: st.DrawFn, rank: int | None = None) -> Coords:
    """Coordinates in any order, some perhaps twice."""
    rank = draw(st.integers(0, MAX_RANK)) if rank is None else rank
    rows = draw(st.lists(chunk_indices(rank), max_size=6))
    return np.array(rows, np.uint32).reshape(len(rows), rank)


@cache
def updated_chunks() -> SearchStrategy[UpdatedChunks]:
    """Return the chunks a commit wrote, of several arrays."""
    return st.dictionaries(ids(NodeId), coordinate_columns(), max_size=3).map(UpdatedChunks.of)


@st.composite
def moves(draw: st.DrawFn) -> tuple[MoveOperation, ...]:
    """Moved nodes: no two from or to one place, none to where it was."""
    places = draw(st.lists(paths(), unique=True, max_size=6))
    count = len(places) // 2
    nodes = draw(st.lists(ids(NodeId), unique=True, min_size=count, max_size=count))
    kinds = draw(st.lists(st.sampled_from(NodeType), min_size=count, max_size=count))
    pairs = zip(places[:count], places[count : 2 * count], strict=True)
    return sort_moves(
        MoveOperation(start, end, node, kind)
        for (start, end), node, kind in zip(pairs, nodes, kinds, strict=True)
    )


@st.composite
def transaction_logs(draw: st.DrawFn, spec: Spec) -> TransactionLog:
    """Transaction logs; as in those of amended commits, a node may be in several lists."""
    known = draw(st.lists(ids(NodeId), max_size=5))
    lists: dict[str, Any] = {name: _id_column(draw(_some(known))) for name in LISTS}
    return TransactionLog(
        draw(ids(SnapshotId)),
        updated_chunks=draw(updated_chunks()),
        moved_nodes=draw(moves()) if spec.moves else (),
        extra=draw(extras()) if spec.extras else None,
        **lists,
    )


def _some(known: Sequence[NodeId]) -> SearchStrategy[list[NodeId]]:
    return st.lists(st.sampled_from(known), unique=True) if known else st.just([])


def _id_column(ids: Sequence[NodeId]) -> Any:
    return sort_ids(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, NodeId.SIZE))


# Repo info


@cache
def repo_statuses() -> SearchStrategy[RepoStatus]:
    """Return a strategy for the status of a repository."""
    return st.builds(RepoStatus, st.sampled_from(RepoAvailability), sizes(), st.none() | texts())


@cache
def update_types() -> SearchStrategy[StoredUpdate]:
    """Return all sixteen things that an ops log can record."""
    snapshot, byte = ids(SnapshotId).map(str), st.integers(0, 255)
    flags = st.builds(UpdateType.FeatureFlagChanged, st.integers(0, 2**16 - 1), st.none() | st.booleans())
    return st.one_of(
        st.just(UpdateType.RepoInitialized()),
        st.builds(UpdateType.RepoMigrated, byte, byte),
        st.just(UpdateType.ConfigChanged()),
        st.just(UpdateType.MetadataChanged()),
        st.builds(UpdateType.TagCreated, texts()),
        st.builds(UpdateType.TagDeleted, texts(), snapshot),
        st.builds(UpdateType.BranchCreated, texts()),
        st.builds(UpdateType.BranchDeleted, texts(), snapshot),
        st.builds(UpdateType.BranchReset, texts(), snapshot),
        st.builds(UpdateType.NewCommit, texts(), snapshot),
        st.builds(UpdateType.CommitAmended, texts(), snapshot, snapshot),
        st.builds(UpdateType.NewDetachedSnapshot, snapshot),
        st.just(UpdateType.GCRan()),
        st.just(UpdateType.ExpirationRan()),
        flags,
        st.builds(RepoStatusChanged, st.none() | repo_statuses()),
    )


@st.composite
def updates(draw: st.DrawFn, min_size: int = 1) -> Updates:
    """Ops logs: newest first, the newest without a backup."""
    times = sorted(draw(st.sets(sizes(), min_size=min_size, max_size=6)), reverse=True)
    paths = [None, *(draw(st.none() | texts()) for _ in times[1:])]
    return Updates.of(
        [Update(draw(update_types()), time, path) for time, path in zip(times, paths, strict=False)]
    )


@st.composite
def snapshot_infos(draw: st.DrawFn) -> SnapshotInfos:
    """At least one snapshot, each with a parent among the others or with none."""
    known = draw(st.lists(ids(SnapshotId), unique=True, min_size=1, max_size=5))
    pruned = st.lists(ids(SnapshotId), max_size=2).map(tuple)
    return SnapshotInfos.of(
        SnapshotInfo(
            id=id,
            parent_id=draw(st.none() | st.sampled_from(known[:place])) if place else None,
            flushed_at_us=draw(sizes()),
            message=draw(texts()),
            metadata=draw(metadata()),
            pruned_ancestor_tx_logs=draw(pruned),
        )
        for place, id in enumerate(known)
    )


@st.composite
def repo_infos(draw: st.DrawFn) -> RepoInfo:
    """Repo info files of version 2."""
    listed = draw(snapshot_infos())
    target = st.sampled_from([info.id for info in listed])
    branches = draw(st.dictionaries(texts(), target, max_size=3))
    names = draw(st.lists(texts(), unique=True, max_size=4))
    flags = draw(st.lists(st.integers(0, 2**16 - 1), unique=True, max_size=4))
    some, others = tuple(sorted(flags[::2])), tuple(sorted(flags[1::2]))
    return RepoInfo(
        snapshots=listed,
        branches={**branches, MAIN: draw(target)},
        tags={name: draw(target) for name in names[::2]},
        deleted_tags=frozenset(names[1::2]),
        status=draw(repo_statuses()),
        latest_updates=draw(updates()),
        repo_before_updates=draw(st.none() | texts()),
        metadata=draw(metadata()),
        config=draw(st.none() | st.binary(max_size=20)),
        enabled_feature_flags=some or draw(st.sampled_from([None, ()])),
        disabled_feature_flags=others or draw(st.sampled_from([None, ()])),
        extra=draw(extras()),
    )
