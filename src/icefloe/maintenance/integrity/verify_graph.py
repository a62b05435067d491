"""Verification: walks all that refs lead to, and reports what is missing, damaged or not as it is said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import ManifestId, NodeId, SnapshotId, encode_column
from icefloe.core.assets import AssetStore
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
    read_transaction_log,
)
from icefloe.format.id_columns import id_keys, is_member, key_bytes, sorted_ids
from icefloe.format.manifest import NATIVE, ArrayManifest
from icefloe.format.pruning import inherited_logs
from icefloe.format.repo_info import NO_PARENT, SnapshotInfo, SnapshotInfos
from icefloe.format.schema import ARRAY_NODE
from icefloe.format.snapshot import Snapshot
from icefloe.maintenance.integrity.checksums import check_checksums
from icefloe.maintenance.integrity.findings import Finding, Findings, Level
from icefloe.maintenance.integrity.verify_sources import Sources, check_sources, merged, sources_of
from icefloe.maintenance.listings import OBJECT_ID, Listing, list_folder
from icefloe.maintenance.reachable import NO_IDS, Gathered, Ids, each_id, reachable_snapshots
from icefloe.storage.base import Storage

_ENDS: Final = np.dtype([("id", "S12"), ("end", "<u8")])
_KEY: Final = np.dtype([("node", "S8"), ("manifest", "S12"), ("digest", "<u8")])
_FACTOR: Final = 0x9E3779B97F4A7C15


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
    """Check some snapshots, or all that branches and tags lead to. Damage is reported, not raised.

    The content of `settled` snapshots was verified before and is not checked again. With `checksums`, all
    objects with a recorded checksum are read.
    """
    storage, report = assets.storage, Findings(level)
    wanted = reachable_snapshots(refs) if snapshots is None else snapshots
    listed = {folder: list_folder(storage, folder) for folder in (SNAPSHOTS, TRANSACTIONS, MANIFESTS)}
    told = refs.load().snapshots if isinstance(refs, RefStoreV2) else None
    files, by_manifest = _snapshots(storage, wanted, settled, listed[SNAPSHOTS], told, executor, report)
    logs = _logs(refs, storage, wanted, listed[TRANSACTIONS], executor, report)
    ends, sources = _manifests(storage, files, by_manifest, listed[MANIFESTS], executor, report)
    if level.includes(Level.OBJECTS) or checksums:
        listed[CHUNKS] = list_folder(storage, CHUNKS)
    if level.includes(Level.OBJECTS):
        _chunks(ends, listed[CHUNKS], report)
    if level.includes(Level.SOURCES):
        check_sources(sources, assets.virtual, executor, report)
    if checksums:
        manifests = sorted_ids(np.frombuffer(b"".join(files), np.uint8).reshape(-1, OBJECT_ID))
        chunks = sorted_ids(key_bytes(np.ascontiguousarray(ends["id"])))
        used = {SNAPSHOTS: wanted, TRANSACTIONS: logs, MANIFESTS: manifests, CHUNKS: chunks}
        check_checksums(storage, listed, used, executor, report)
    return report


# Snapshots


@dataclass(slots=True)
class _FileSaid:
    """What snapshots say of a manifest file."""

    size_bytes: int
    num_chunk_refs: int
    snapshot: SnapshotId


def _snapshots(
    storage: Storage,
    wanted: Ids,
    settled: Ids,
    listed: Listing,
    told: SnapshotInfos | None,
    executor: Executor,
    report: Findings,
) -> tuple[dict[ManifestId, _FileSaid], dict[ManifestId, list[Claim]]]:
    files: dict[ManifestId, _FileSaid] = {}
    by_manifest: dict[ManifestId, list[Claim]] = defaultdict(list)
    claims = Claims()
    known: set[ManifestId] = set()
    for snapshot in executor.map(Task(partial(_read_snapshot, storage), "snapshots"), each_id(settled)):
        if not isinstance(snapshot, Finding):  # of one that is damaged now, nothing is taken as verified
            known.update(file.id for file in snapshot.value.manifest_files)
            for _ in claims.new_in(snapshot.value):
                pass
    there = _found(SNAPSHOTS, wanted, listed, "the history", report)
    for id, snapshot in zip(
        each_id(there),
        executor.map(Task(partial(_read_snapshot, storage), "snapshots"), each_id(there)),
        strict=True,
    ):
        if isinstance(snapshot, Finding):
            report.findings.append(snapshot)
            continue
        report.counts["snapshots"] += 1
        value = snapshot.value
        report.findings += _disagreement(value, None if told is None else told.find(value.id))
        for file in value.manifest_files:
            files.setdefault(file.id, _FileSaid(file.size_bytes, file.num_chunk_refs, SnapshotId(id)))
        try:
            for claim in claims.new_in(value):
                by_manifest[claim.manifest].append(claim)
        except IcechunkError as damage:  # all nodes are checked only when all are looked at
            report.findings.append(_unreadable_snapshot(value.id, damage))
    return {id: said for id, said in files.items() if id not in known or id in by_manifest}, by_manifest


def _disagreement(snapshot: Snapshot, told: SnapshotInfo | None) -> Iterator[Finding]:
    """A snapshot and the repo info file hold some things both."""
    if told is None:
        return
    pairs = {
        "time": (snapshot.flushed_at_us, told.flushed_at_us),
        "message": (snapshot.message, told.message),
        "metadata": (snapshot.metadata, told.metadata),
    }
    # Compared as texts too, since nan is not what it is.
    other = [name for name, (one, two) in pairs.items() if one != two and repr(one) != repr(two)]
    if other:
        message = f"another {' and '.join(other)} than the repo info file has"
        yield Finding("disagrees", f"{SNAPSHOTS}/{snapshot.id}", REPO_PATH, message)


class _SnapshotFile:
    """A snapshot that was read. Pickled as its file, which is smaller, and read again."""

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
        return _unreadable_snapshot(id, damage)


def _unreadable_snapshot(id: SnapshotId, damage: IcechunkError) -> Finding:
    return Finding("unreadable", f"{SNAPSHOTS}/{id}", "the history", str(damage))


def _found(folder: str, wanted: Ids, listed: Listing, where: str, report: Findings) -> Ids:
    """Those that are listed; the others are reported."""
    there = is_member(wanted, listed.ids)
    for name in encode_column(wanted[~there]):
        report.findings.append(Finding("missing", f"{folder}/{name}", where, "the file is not there"))
    return wanted[there]


# The parts of arrays that manifests hold, as snapshots say


@dataclass(frozen=True, slots=True)
class Claim:
    """One array's part in one manifest, as some snapshot has it."""

    manifest: ManifestId
    node: NodeId
    path: str
    extents: tuple[range, ...]
    """Empty where the writer left them out."""
    grid: tuple[int, ...]
    """Chunks per dimension."""


class Claims:
    """The claims of many snapshots, each once; most snapshots repeat those of the one before."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def new_in(self, snapshot: Snapshot) -> Iterator[Claim]:
        """Those that no snapshot before had."""
        columns = snapshot.nodes.columns
        arrays = columns["node_data"].tables.get(ARRAY_NODE) if len(columns) else None
        if arrays is None or not len(arrays["manifests"].items):
            return
        parts: Ragged = arrays["manifests"]
        owner = np.repeat(np.arange(len(arrays)), parts.lengths)
        rows = np.flatnonzero(columns["node_data"].kinds == ARRAY_NODE)[owner]
        counts: Ragged = arrays["shape_v2"]
        keys = _keys(columns["id"][rows], parts.items, counts, owner)
        for at, key in enumerate(_items(keys)):
            if key not in self._known:
                self._known.add(key)
                yield _claim(columns, rows[at], parts.items, at, counts, owner[at])


def _keys(nodes: NDArray[np.uint8], parts: Any, counts: Ragged, owner: NDArray[np.int64]) -> NDArray[np.void]:
    keys = np.zeros(len(nodes), _KEY)
    keys["node"] = np.ascontiguousarray(nodes).view("S8").reshape(-1)
    keys["manifest"] = np.ascontiguousarray(parts["object_id"]).view("S12").reshape(-1)
    extents: Ragged = parts["extents"]
    bounds = np.ascontiguousarray(extents.items).view("<u4")
    grid = counts.items["num_chunks"].astype(np.uint64)
    keys["digest"] = _digest(bounds, extents.splits * 2) * np.uint64(3) + _digest(grid, counts.splits)[owner]
    return keys


def _digest(values: NDArray[Any], splits: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number per list that differs, but for bad luck, where the lists do."""
    lengths = np.diff(splits)
    places = expand_ranges(np.zeros(len(lengths), np.int64), lengths).astype(np.uint64)
    mixed = (values.astype(np.uint64) + np.uint64(1)) * (
        places * np.uint64(2 * _FACTOR % 2**64) + np.uint64(_FACTOR)
    )
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    found: NDArray[np.uint64] = sums[splits[1:]] - sums[splits[:-1]]
    return found


def _items(keys: NDArray[np.void]) -> Iterator[bytes]:
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
    refs: RefStore, storage: Storage, wanted: Ids, listed: Listing, executor: Executor, report: Findings
) -> Ids:
    """The logs in use. A first snapshot needs none; what expired has left its to the one above."""
    if isinstance(refs, RefStoreV2):
        infos = refs.load().snapshots
        rows = np.flatnonzero(is_member(infos.ids, wanted) & (infos.parents != NO_PARENT))
        needed = sorted_ids(np.concatenate([infos.ids[rows], inherited_logs(infos, rows)]))
    else:
        needed = wanted[np.array([_has_parent(refs, id) for id in each_id(wanted)], np.bool_)]
    own = wanted[is_member(wanted, listed.ids)]
    there = sorted_ids(np.concatenate([_found(TRANSACTIONS, needed, listed, "the history", report), own]))
    for damage in executor.map(Task(partial(_read_log, storage), "transaction logs"), each_id(there)):
        if damage is None:
            report.counts["transaction_logs"] += 1
        else:
            report.findings.append(damage)
    return sorted_ids(np.concatenate([needed, wanted]))


def _has_parent(refs: RefStore, snapshot: bytes) -> bool:
    try:
        return refs.snapshot(SnapshotId(snapshot)).parent_id is not None
    except IcechunkError:  # it is reported as such
        return False


def _read_log(storage: Storage, snapshot: bytes) -> Finding | None:
    id = SnapshotId(snapshot)
    path = f"{TRANSACTIONS}/{id}"
    try:
        read_transaction_log(storage.get(path)[0], id)
    except IcechunkError as damage:
        return Finding("unreadable", path, f"snapshot {id}", str(damage))
    return None


# Manifests


@dataclass(frozen=True, slots=True)
class _ManifestSeen:
    references: int
    ends: NDArray[np.void]
    """Per chunk object how far references reach into it."""
    sources: Sources
    findings: tuple[Finding, ...]


def _manifests(
    storage: Storage,
    files: Mapping[ManifestId, _FileSaid],
    by_manifest: Mapping[ManifestId, Sequence[Claim]],
    listed: Listing,
    executor: Executor,
    report: Findings,
) -> tuple[NDArray[np.void], Sources]:
    wanted = sorted_ids(np.frombuffer(b"".join(files), np.uint8).reshape(-1, OBJECT_ID))
    there = map(ManifestId, each_id(_found(MANIFESTS, wanted, listed, "a snapshot", report)))
    tasks = [(id, files[id], by_manifest.get(id, ())) for id in there]
    ends, sources = Gathered(_ENDS), Sources()
    follow = report.level.includes(Level.SOURCES)
    for seen in executor.map(Task(partial(_check_manifest, storage, follow), "manifests"), tasks):
        report.counts["manifests"] += 1
        report.counts["references"] += seen.references
        report.findings += seen.findings
        ends.add(seen.ends)
        sources = merged([sources, seen.sources]) if seen.sources else sources
    return ends.result(), sources


def _check_manifest(
    storage: Storage, follow: bool, task: tuple[ManifestId, _FileSaid, Sequence[Claim]]
) -> _ManifestSeen:
    id, said, claims = task
    path = f"{MANIFESTS}/{id}"
    none = np.zeros(0, _ENDS)
    try:
        data, _ = storage.get(path)
        packed = read_manifest(data, id)
        arrays = {node: packed.array(node, None) for node in packed.nodes}
    except IcechunkError as damage:
        where = f"snapshot {said.snapshot}"
        return _ManifestSeen(0, none, {}, (Finding("unreadable", path, where, str(damage)),))
    findings = []
    count = sum(map(len, arrays.values()))
    where = f"snapshot {said.snapshot}"
    if said.size_bytes and said.size_bytes != len(data):
        findings.append(
            Finding("size", path, where, f"{len(data)} bytes where the snapshot says {said.size_bytes}")
        )
    if said.num_chunk_refs != count:
        message = f"{count} references where the snapshot says {said.num_chunk_refs}"
        findings.append(Finding("count", path, where, message))
    for claim in claims:
        findings += _check_claim(path, claim, arrays.get(claim.node))
    ends = [none, *map(_ends, arrays.values())]
    sources = merged(map(sources_of, arrays.values())) if follow else {}
    return _ManifestSeen(count, np.unique(np.concatenate(ends)), sources, tuple(findings))


def _check_claim(path: str, claim: Claim, refs: ArrayManifest | None) -> Iterator[Finding]:
    """What an array's part of a manifest must hold: all in the extents, and in the grid of the array."""
    if refs is None or not len(refs):
        if any(claim.extents):
            yield Finding("count", path, claim.path, "no references, in extents that are not empty")
        return
    if len(claim.extents) == refs.rank:
        yield from _outside("extents", path, claim, refs, claim.extents)
    if len(claim.grid) == refs.rank:
        yield from _outside("grid", path, claim, refs, [range(max(size, 1)) for size in claim.grid])


def _outside(
    kind: str, path: str, claim: Claim, refs: ArrayManifest, window: Sequence[range]
) -> Iterator[Finding]:
    out = ~coordinates.inside(refs.coords, window)
    if out.any():
        first = refs.coords[int(out.argmax())].tolist()
        bounds = ", ".join(f"{each.start}..{each.stop}" for each in window)
        message = f"{int(out.sum())} references outside {bounds}, the first of chunk {first}"
        yield Finding(kind, path, claim.path, message)


def _ends(refs: ArrayManifest) -> NDArray[np.void]:
    rows = refs.kind == NATIVE
    found = np.zeros(int(rows.sum()), _ENDS)
    found["id"] = np.ascontiguousarray(refs.chunk_ids[rows]).view("S12").reshape(-1)
    found["end"] = refs.offsets[rows] + refs.lengths[rows]
    return found


# Chunk objects


def _chunks(ends: NDArray[np.void], listed: Listing, report: Findings) -> None:
    last = np.ones(len(ends), np.bool_)
    last[:-1] = ends["id"][1:] != ends["id"][:-1]
    ends = ends[last]
    wanted = key_bytes(np.ascontiguousarray(ends["id"]))
    report.counts["chunk_objects"] = len(wanted)
    there = is_member(wanted, listed.ids)
    for name in encode_column(wanted[~there]):
        report.findings.append(Finding("missing", f"{CHUNKS}/{name}", "a manifest", "the chunk is not there"))
    sizes = listed.sizes[id_keys(listed.ids).searchsorted(id_keys(wanted[there]))]
    short = sizes < ends["end"][there]
    for name, size, end in zip(
        encode_column(wanted[there][short]),
        sizes[short].tolist(),
        ends["end"][there][short].tolist(),
        strict=True,
    ):
        message = f"{size} bytes where a reference reaches to byte {end}"
        report.findings.append(Finding("short", f"{CHUNKS}/{name}", "a manifest", message))
