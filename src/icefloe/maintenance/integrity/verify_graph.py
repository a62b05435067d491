"""Verify metadata files and chunk objects: find missing, damaged and inconsistent objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.concurrency import fork_safe_lock, release_freed_memory
from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import ManifestId, NodeId, SnapshotId, encode_column
from icefloe.core.assets import AssetStore, decode_log
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.encoding.columns import Ragged, expand_ranges
from icefloe.errors import IcechunkError
from icefloe.format import coordinates
from icefloe.format.files import (
    CHUNKS,
    MANIFESTS,
    REPO_PATH,
    SNAPSHOTS,
    TRANSACTIONS,
    read_manifest,
    read_snapshot,
)
from icefloe.format.id_columns import is_member, sort_ids, to_id_bytes
from icefloe.format.manifest import NATIVE, ArrayManifest
from icefloe.format.pruning import get_inherited_logs
from icefloe.format.repo_info import NO_PARENT, SnapshotInfo, SnapshotInfos
from icefloe.format.schema import ARRAY_NODE
from icefloe.format.snapshot import Snapshot
from icefloe.maintenance.integrity.checksums import check_checksums
from icefloe.maintenance.integrity.findings import Finding, Findings, Level
from icefloe.maintenance.integrity.verify_sources import Sources, check_sources, find_sources, merge_sources
from icefloe.maintenance.listings import NO_IDS, Ids, ObjectListing, iterate_ids, list_folder, to_column
from icefloe.maintenance.reachable import DistinctItems, list_reachable_snapshots
from icefloe.maintenance.statistics.lifecycle import find_damaged
from icefloe.storage.base import Storage

_ENDS: Final = np.dtype([("id", "S12"), ("end", "<u8")])
_KEY: Final = np.dtype([("node", "S8"), ("manifest", "S12"), ("digest", "<u8")])
_FACTOR: Final = 0x9E3779B97F4A7C15
_MANY_REFS: Final = 100_000
"""The number of references above which only two manifests are checked at the same time. Half a million
references use up to 300 MB.
"""
_checking_large = tuple(fork_safe_lock() for _ in range(2))


def verify_graph(
    refs: RefStore,
    assets: AssetStore,
    executor: Executor,
    level: Level = Level.GRAPH,
    snapshots: Ids | None = None,
    *,
    settled: Ids = NO_IDS,
    checksums: bool = False,
) -> Findings:
    """Verify the metadata files and chunk objects of the given snapshots, or of all reachable snapshots.

    The content of `settled` snapshots has already been verified and is not checked again. With `checksums`,
    all objects with a recorded checksum are read.
    """
    storage, report = assets.storage, Findings(level)
    wanted = list_reachable_snapshots(refs) if snapshots is None else snapshots
    listed = {folder: list_folder(storage, folder) for folder in (SNAPSHOTS, TRANSACTIONS, MANIFESTS)}
    infos = refs.load().snapshots if isinstance(refs, RefStoreV2) else None
    files, by_manifest = _check_snapshots(
        storage, wanted, settled, listed[SNAPSHOTS], infos, executor, report
    )
    logs = _logs(refs, storage, wanted, listed[TRANSACTIONS], executor, report)
    ends, sources = _check_manifests(storage, files, by_manifest, listed[MANIFESTS], executor, report)
    if level.includes(Level.OBJECTS) or checksums:
        listed[CHUNKS] = list_folder(storage, CHUNKS)
    if level.includes(Level.OBJECTS):
        _check_chunks(ends, listed[CHUNKS], report)
        _check_statistics(storage, files, executor, report)
    if level.includes(Level.SOURCES):
        check_sources(sources, assets.virtual, executor, report)
    if checksums:
        manifests = to_column(files)
        chunks = sort_ids(to_id_bytes(np.ascontiguousarray(ends["id"])))
        used = {SNAPSHOTS: wanted, TRANSACTIONS: logs, MANIFESTS: manifests, CHUNKS: chunks}
        check_checksums(storage, listed, used, executor, report)
    return report


def _check_statistics(
    storage: Storage, files: Iterable[ManifestId], executor: Executor, report: Findings
) -> None:
    """Report damaged statistics files. Queries ignore them and read chunks instead."""
    for path, damage in find_damaged(storage, list(files), executor):
        report.counts["statistics"] += 1
        if damage is not None:
            report.findings.append(Finding("unreadable", path, "statistics", damage))


# Snapshots


@dataclass(slots=True)
class _ManifestInfo:
    """The size of a manifest file according to a snapshot."""

    size_bytes: int
    num_chunk_refs: int
    snapshot: SnapshotId


def _check_snapshots(
    storage: Storage,
    wanted: Ids,
    settled: Ids,
    listed: ObjectListing,
    infos: SnapshotInfos | None,
    executor: Executor,
    report: Findings,
) -> tuple[dict[ManifestId, _ManifestInfo], dict[ManifestId, list[Claim]]]:
    files: dict[ManifestId, _ManifestInfo] = {}
    by_manifest: dict[ManifestId, list[Claim]] = defaultdict(list)
    claims = Claims()
    known: set[ManifestId] = set()
    for snapshot in executor.map(Task(partial(_read_snapshot, storage), "snapshots"), iterate_ids(settled)):
        if not isinstance(snapshot, Finding):  # the file may have been damaged since then
            known.update(file.id for file in snapshot.value.manifest_files)
            for _ in claims.new_in(snapshot.value):
                pass
    there = _find_existing(SNAPSHOTS, wanted, listed, "the history", report)
    for id, snapshot in zip(
        iterate_ids(there),
        executor.map(Task(partial(_read_snapshot, storage), "snapshots"), iterate_ids(there)),
        strict=True,
    ):
        if isinstance(snapshot, Finding):
            report.findings.append(snapshot)
            continue
        report.counts["snapshots"] += 1
        value = snapshot.value
        report.findings += _compare_with_repo_info(value, None if infos is None else infos.find(value.id))
        for file in value.manifest_files:
            files.setdefault(file.id, _ManifestInfo(file.size_bytes, file.num_chunk_refs, SnapshotId(id)))
        try:
            for claim in claims.new_in(value):
                by_manifest[claim.manifest].append(claim)
        except IcechunkError as damage:  # nodes are decoded only when they are read
            report.findings.append(_report_unreadable_snapshot(value.id, damage))
    return {id: info for id, info in files.items() if id not in known or id in by_manifest}, by_manifest


def _compare_with_repo_info(snapshot: Snapshot, info: SnapshotInfo | None) -> Iterator[Finding]:
    """Report differences between a snapshot file and its entry in the repo info file."""
    if info is None:
        return
    pairs = {
        "time": (snapshot.flushed_at_us, info.flushed_at_us),
        "message": (snapshot.message, info.message),
        "metadata": (snapshot.metadata, info.metadata),
    }
    # Also compare reprs, because NaN is not equal to itself.
    other = [name for name, (one, two) in pairs.items() if one != two and repr(one) != repr(two)]
    if other:
        message = f"{' and '.join(other)} differ from the repo info file"
        yield Finding("disagrees", f"{SNAPSHOTS}/{snapshot.id}", REPO_PATH, message)


class _SnapshotFile:
    """A decoded snapshot file. It is pickled as its bytes, which are smaller, and decoded again on
    unpickling.
    """

    __slots__ = ("_data", "_id", "value")

    def __init__(self, data: bytes, id: SnapshotId) -> None:
        self._data, self._id = data, id
        self.value = read_snapshot(data, id)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._data, self._id))


def _read_snapshot(storage: Storage, snapshot: bytes) -> _SnapshotFile | Finding:
    id = SnapshotId(snapshot)
    try:
        return _SnapshotFile(storage.get(f"{SNAPSHOTS}/{id}")[0], id)
    except IcechunkError as damage:
        return _report_unreadable_snapshot(id, damage)


def _report_unreadable_snapshot(id: SnapshotId, damage: IcechunkError) -> Finding:
    return Finding("unreadable", f"{SNAPSHOTS}/{id}", "the history", str(damage))


def _find_existing(folder: str, wanted: Ids, listed: ObjectListing, where: str, report: Findings) -> Ids:
    """Return the ids of existing objects, and report the missing ones."""
    there = is_member(wanted, listed.ids)
    for name in encode_column(wanted[~there]):
        report.findings.append(Finding("missing", f"{folder}/{name}", where, "the file does not exist"))
    return wanted[there]


# Claims that snapshots make about which parts of an array a manifest contains


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a snapshot about a manifest: the part of an array that the manifest covers."""

    manifest: ManifestId
    node: NodeId
    path: str
    extents: tuple[range, ...]
    """The extents of the manifest; empty if the writer omitted them."""
    grid: tuple[int, ...]
    """The number of chunks along each dimension."""


class Claims:
    """The distinct claims that many snapshots make about the contents of their manifests.

    Most snapshots repeat their parent's claims.
    """

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def new_in(self, snapshot: Snapshot) -> Iterator[Claim]:
        """Yield a snapshot's claims about its manifests that no earlier snapshot made."""
        columns = snapshot.nodes.columns
        arrays = columns["node_data"].tables.get(ARRAY_NODE) if len(columns) else None
        if arrays is None or not len(arrays["manifests"].items):
            return
        parts: Ragged = arrays["manifests"]
        owner = np.repeat(np.arange(len(arrays)), parts.lengths)
        rows = np.flatnonzero(columns["node_data"].kinds == ARRAY_NODE)[owner]
        counts: Ragged = arrays["shape_v2"]
        keys = _make_keys(columns["id"][rows], parts.items, counts, owner)
        for at, key in enumerate(_read_items(keys)):
            if key not in self._known:
                self._known.add(key)
                yield _claim(columns, rows[at], parts.items, at, counts, owner[at])


def _make_keys(
    nodes: NDArray[np.uint8], parts: Any, counts: Ragged, owner: NDArray[np.int64]
) -> NDArray[np.void]:
    keys = np.zeros(len(nodes), _KEY)
    keys["node"] = np.ascontiguousarray(nodes).view("S8").reshape(-1)
    keys["manifest"] = np.ascontiguousarray(parts["object_id"]).view("S12").reshape(-1)
    extents: Ragged = parts["extents"]
    bounds = np.ascontiguousarray(extents.items).view("<u4")
    grid = counts.items["num_chunks"].astype(np.uint64)
    keys["digest"] = _digest(bounds, extents.splits * 2) * np.uint64(3) + _digest(grid, counts.splits)[owner]
    return keys


def _digest(values: NDArray[Any], splits: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash each row of numbers to 64 bits, as a sum of products with an odd factor per position."""
    lengths = np.diff(splits)
    places = expand_ranges(np.zeros(len(lengths), np.int64), lengths).astype(np.uint64)
    mixed = (values.astype(np.uint64) + np.uint64(1)) * (
        places * np.uint64(2 * _FACTOR % 2**64) + np.uint64(_FACTOR)
    )
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    found: NDArray[np.uint64] = sums[splits[1:]] - sums[splits[:-1]]
    return found


def _read_items(keys: NDArray[np.void]) -> Iterator[bytes]:
    data, size = keys.tobytes(), keys.itemsize
    return (data[start : start + size] for start in range(0, len(data), size))


def _claim(columns: Any, row: int, parts: Any, at: int, counts: Ragged, array: int) -> Claim:
    extents = parts["extents"].take([at]).items
    return Claim(
        ManifestId(parts["object_id"][at].tobytes()),
        NodeId(columns["id"][row].tobytes()),
        columns["path"][int(row)].decode("utf-8", "replace"),
        tuple(range(int(each["from"]), int(each["to"])) for each in extents),
        tuple(counts.take([array]).items["num_chunks"].tolist()),
    )


# Transaction logs


def _logs(
    refs: RefStore, storage: Storage, wanted: Ids, listed: ObjectListing, executor: Executor, report: Findings
) -> Ids:
    """Check the transaction logs, and return their ids.

    First snapshots require no log. Snapshots inherit the logs of expired ancestors.
    """
    if isinstance(refs, RefStoreV2):
        infos = refs.load().snapshots
        rows = np.flatnonzero(is_member(infos.ids, wanted) & (infos.parents != NO_PARENT))
        needed = sort_ids(np.concatenate([infos.ids[rows], get_inherited_logs(infos, rows)]))
    else:
        needed = wanted[np.array([_has_parent(refs, id) for id in iterate_ids(wanted)], np.bool_)]
    own = wanted[is_member(wanted, listed.ids)]
    there = sort_ids(
        np.concatenate([_find_existing(TRANSACTIONS, needed, listed, "the history", report), own])
    )
    for damage in executor.map(Task(partial(_read_log, storage), "transaction logs"), iterate_ids(there)):
        if damage is None:
            report.counts["transaction_logs"] += 1
        else:
            report.findings.append(damage)
    return sort_ids(np.concatenate([needed, wanted]))


def _has_parent(refs: RefStore, snapshot: bytes) -> bool:
    try:
        return refs.snapshot(SnapshotId(snapshot)).parent_id is not None
    except IcechunkError:  # this is reported as a separate finding
        return False


def _read_log(storage: Storage, snapshot: bytes) -> Finding | None:
    id = SnapshotId(snapshot)
    path = f"{TRANSACTIONS}/{id}"
    try:
        decode_log(storage.get(path)[0], id)
    except IcechunkError as damage:
        return Finding("unreadable", path, f"snapshot {id}", str(damage))
    return None


# Manifests


@dataclass(frozen=True, slots=True)
class _CheckedManifest:
    """The result of checking one manifest."""

    references: int
    ends: NDArray[np.void]
    """The end of the last referenced range of each chunk object."""
    sources: Sources
    findings: tuple[Finding, ...]


def _check_manifests(
    storage: Storage,
    files: Mapping[ManifestId, _ManifestInfo],
    by_manifest: Mapping[ManifestId, Sequence[Claim]],
    listed: ObjectListing,
    executor: Executor,
    report: Findings,
) -> tuple[NDArray[np.void], Sources]:
    wanted = to_column(files)
    there = map(ManifestId, iterate_ids(_find_existing(MANIFESTS, wanted, listed, "a snapshot", report)))
    tasks = [(id, files[id], by_manifest.get(id, ())) for id in there]
    ends, sources = DistinctItems(_ENDS), Sources()
    follow = report.level.includes(Level.SOURCES)
    for seen in executor.map(Task(partial(_check_manifest, storage, follow), "manifests"), tasks):
        report.counts["manifests"] += 1
        report.counts["references"] += seen.references
        report.findings += seen.findings
        ends.add(seen.ends)
        sources = merge_sources([sources, seen.sources]) if seen.sources else sources
    return ends.result(), sources


def _check_manifest(
    storage: Storage, follow: bool, task: tuple[ManifestId, _ManifestInfo, Sequence[Claim]]
) -> _CheckedManifest:
    id, expected, _ = task
    if expected.num_chunk_refs <= _MANY_REFS:
        return _check_manifest_content(storage, follow, task)
    with _checking_large[bytes(id)[-1] % len(_checking_large)]:
        try:
            return _check_manifest_content(storage, follow, task)
        finally:
            release_freed_memory()  # otherwise each thread keeps one manifest in memory


def _check_manifest_content(
    storage: Storage, follow: bool, task: tuple[ManifestId, _ManifestInfo, Sequence[Claim]]
) -> _CheckedManifest:
    id, expected, claims = task
    path = f"{MANIFESTS}/{id}"
    none = np.zeros(0, _ENDS)
    try:
        data, _ = storage.get(path)
        packed = read_manifest(data, id)
        arrays = {node: packed.array(node, None) for node in packed.nodes}
    except IcechunkError as damage:
        where = f"snapshot {expected.snapshot}"
        return _CheckedManifest(0, none, {}, (Finding("unreadable", path, where, str(damage)),))
    findings = []
    count = sum(map(len, arrays.values()))
    where = f"snapshot {expected.snapshot}"
    if expected.size_bytes and expected.size_bytes != len(data):
        findings.append(
            Finding(
                "size", path, where, f"{len(data)} bytes, but {expected.size_bytes} according to the snapshot"
            )
        )
    if expected.num_chunk_refs != count:
        message = f"{count} references, but the snapshot says {expected.num_chunk_refs}"
        findings.append(Finding("count", path, where, message))
    for claim in claims:
        findings += _check_extents_and_grid(path, claim, arrays.get(claim.node))
    ends = [none, *map(_find_ends, arrays.values())]
    sources = merge_sources(map(find_sources, arrays.values())) if follow else {}
    return _CheckedManifest(count, np.unique(np.concatenate(ends)), sources, tuple(findings))


def _check_extents_and_grid(path: str, claim: Claim, refs: ArrayManifest | None) -> Iterator[Finding]:
    """Check that the references of an array lie within its extents and its chunk grid."""
    if refs is None or not len(refs):
        if any(claim.extents):
            yield Finding("count", path, claim.path, "no references, although the extents are not empty")
        return
    if len(claim.extents) == refs.rank:
        yield from _report_outside("extents", path, claim, refs, claim.extents)
    if len(claim.grid) == refs.rank:
        yield from _report_outside("grid", path, claim, refs, [range(max(size, 1)) for size in claim.grid])


def _report_outside(
    kind: str, path: str, claim: Claim, refs: ArrayManifest, window: Sequence[range]
) -> Iterator[Finding]:
    out = ~coordinates.are_inside(refs.coords, window)
    if out.any():
        first = refs.coords[int(out.argmax())].tolist()
        bounds = ", ".join(f"{each.start}..{each.stop}" for each in window)
        message = f"{int(out.sum())} references outside {bounds}, the first for chunk {first}"
        yield Finding(kind, path, claim.path, message)


def _find_ends(refs: ArrayManifest) -> NDArray[np.void]:
    rows = refs.kind == NATIVE
    found = np.zeros(int(rows.sum()), _ENDS)
    found["id"] = np.ascontiguousarray(refs.chunk_ids[rows]).view("S12").reshape(-1)
    found["end"] = refs.offsets[rows] + refs.lengths[rows]
    return found


# Chunk objects


def _check_chunks(ends: NDArray[np.void], listed: ObjectListing, report: Findings) -> None:
    last = np.ones(len(ends), np.bool_)
    last[:-1] = ends["id"][1:] != ends["id"][:-1]
    ends = ends[last]
    wanted = to_id_bytes(np.ascontiguousarray(ends["id"]))
    report.counts["chunk_objects"] = len(wanted)
    there, sizes = listed.find(wanted)
    for name in encode_column(wanted[~there]):
        report.findings.append(
            Finding("missing", f"{CHUNKS}/{name}", "a manifest", "the file does not exist")
        )
    short = sizes < ends["end"][there]
    for name, size, end in zip(
        encode_column(wanted[there][short]),
        sizes[short].tolist(),
        ends["end"][there][short].tolist(),
        strict=True,
    ):
        message = f"{size} bytes, but a reference ends at byte {end}"
        report.findings.append(Finding("short", f"{CHUNKS}/{name}", "a manifest", message))
