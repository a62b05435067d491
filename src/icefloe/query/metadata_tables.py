"""Tables about a repository itself: refs, snapshots, ops, nodes, manifests, chunks, diff, storage.

Each is planned as some orders, and a task makes Arrow record batches of one. Nothing here knows Spark.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from icefloe._internal.ids import encode_column
from icefloe.core.virtual_chunks.references import absolute_texts
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.manifest import INLINE, NATIVE, NO_ETAG, VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.query.schema import unknown
from icefloe.repository import Repository
from icefloe.session import Session

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_NUMBERS: Final = pa.list_(pa.int64())
_TEXTS: Final = pa.list_(pa.string())
_ROWS: Final = 65536
_REFS_PER_TASK: Final = 1_000_000

Order: TypeAlias = Any
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class View:
    """What a table is about."""

    repo: Repository
    session: Session
    earlier: Session | None = None
    """Where a diff begins."""


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A table about a repository."""

    schema: pa.Schema
    read: Callable[[View, Order, pa.Schema], Batches]
    orders: Callable[[View], Sequence[Order]] = lambda _: [None]
    """What there is to do, for a task each."""


def metadata_table(name: str) -> MetadataTable:
    """The table of a name, whatever its case."""
    found = TABLES.get(name.lower())
    if found is None:
        raise unknown("table", name, list(TABLES), kind=ErrorKind.NODE_NOT_FOUND)
    return found


def _rows(schema: pa.Schema, rows: Iterator[Mapping[str, Any]]) -> Batches:
    waiting: list[Mapping[str, Any]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == _ROWS:
            yield pa.RecordBatch.from_pylist(waiting, schema=schema)
            waiting = []
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=schema)


def _refs(view: View, _: Order, schema: pa.Schema) -> Batches:
    repo = view.repo
    kinds = (
        ("branch", repo.list_branches(), repo.lookup_branch),
        ("tag", repo.list_tags(), repo.lookup_tag),
    )

    def rows() -> Iterator[Mapping[str, Any]]:
        for kind, names, lookup in kinds:
            for name in sorted(names):
                info = repo.lookup_snapshot(lookup(name))
                yield {
                    "kind": kind,
                    "name": name,
                    "snapshot_id": info.id,
                    "committed_at": info.written_at,
                    "message": info.message,
                }

    return _rows(schema, rows())


def _snapshots(view: View, _: Order, schema: pa.Schema) -> Batches:
    ancestry = view.repo.ancestry(snapshot_id=view.session.snapshot_id)
    rows = (
        {
            "snapshot_id": info.id,
            "parent_id": info.parent_id,
            "committed_at": info.written_at,
            "message": info.message,
            "metadata": _json(info.metadata),
            "commits_before": before,
        }
        for before, info in enumerate(ancestry)
    )
    return _rows(schema, iter(rows))


def _ops(view: View, _: Order, schema: pa.Schema) -> Batches:
    rows = (
        {
            "updated_at": update.updated_at,
            "kind": type(update.kind).__name__,
            "details": _json(
                {field.name: getattr(update.kind, field.name) for field in dataclasses.fields(update.kind)}
            ),
            "backup_path": update.backup_path,
        }
        for update in view.repo.ops_log()
    )
    return _rows(schema, iter(rows))


def _nodes(view: View, _: Order, schema: pa.Schema) -> Batches:
    workspace = view.session.workspace

    def rows() -> Iterator[Mapping[str, Any]]:
        for path in workspace.paths():
            node = workspace.node(path)
            if node is not None:
                yield _node(node)

    return _rows(schema, rows())


def _node(node: NodeSnapshot) -> dict[str, Any]:
    document = json.loads(node.user_data)
    row: dict[str, Any] = {"path": node.path, "node_id": str(node.id), "kind": "group"}
    row["attributes"] = _json(document.get("attributes", {}))
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        return row
    data_type = document["data_type"]
    grid = document["chunk_grid"]
    return row | {
        "kind": "array",
        "shape": [size.array_length for size in data.shape],
        "chunk_shape": grid["configuration"]["chunk_shape"] if grid["name"] == "regular" else None,
        "num_chunks": [size.num_chunks for size in data.shape],
        "dimension_names": document.get("dimension_names"),
        "dtype": data_type if isinstance(data_type, str) else _json(data_type),
        "codecs": _json(document.get("codecs")),
        "fill_value": _json(document.get("fill_value")),
        "manifests": [str(ref.id) for ref in data.manifests],
    }


def _manifests(view: View, _: Order, schema: pa.Schema) -> Batches:
    arrays: dict[str, list[str]] = {}
    for node in _arrays(view.session):
        data = node.node_data
        for ref in data.manifests if isinstance(data, ArrayNodeData) else ():
            arrays.setdefault(str(ref.id), []).append(node.path)
    rows = (
        {
            "manifest_id": info.id,
            "size_bytes": info.size_bytes,
            "num_chunk_refs": info.num_chunk_refs,
            "arrays": arrays.get(info.id, []),
        }
        for info in view.repo.list_manifest_files(view.session.snapshot_id)
    )
    return _rows(schema, iter(rows))


def _arrays(session: Session) -> list[NodeSnapshot]:
    workspace = session.workspace
    return workspace.arrays_with_chunks(workspace.paths())


def _chunk_orders(view: View) -> list[list[tuple[str, int]]]:
    """Arrays and the numbers of their manifests; small ones together, a large one for a task alone."""
    sizes = {info.id: info.num_chunk_refs for info in view.repo.list_manifest_files(view.session.snapshot_id)}
    orders: list[list[tuple[str, int]]] = []
    room = 0
    for node in _arrays(view.session):
        data = node.node_data
        for number, ref in enumerate(data.manifests if isinstance(data, ArrayNodeData) else ()):
            size = sizes.get(str(ref.id), 0)
            if size > room or not orders:
                orders.append([])
                room = _REFS_PER_TASK
            orders[-1].append((node.path, number))
            room -= size
    return orders


def _chunks(view: View, order: Order, schema: pa.Schema) -> Batches:
    workspace = view.session.workspace
    containers = workspace.assets.virtual.containers
    for path, number in order or ():
        node = workspace.array(path)
        data = node.node_data
        refs = workspace.manifest_refs(node, data.manifests[number])  # type: ignore[union-attr]
        texts = pa.array(absolute_texts(refs.locations, containers), pa.string())
        etags = pa.array([tag.decode() for tag in refs.etags.tolist()], pa.string())
        for start in range(0, len(refs), _ROWS):
            part = refs.take(slice(start, start + _ROWS))
            yield _chunk_batch(path, part, texts, etags, schema)


def _chunk_batch(
    path: str, refs: ArrayManifest, locations: pa.Array, etags: pa.Array, schema: pa.Schema
) -> pa.RecordBatch:
    count = len(refs)
    native, virtual, inline = (refs.kind == kind for kind in (NATIVE, VIRTUAL, INLINE))
    ends = np.arange(0, count * refs.rank + 1, max(refs.rank, 1), dtype=np.int32)
    if not refs.rank:
        ends = np.zeros(count + 1, np.int32)
    coords = pa.ListArray.from_arrays(pa.array(ends), pa.array(refs.coords.astype(np.int64).reshape(-1)))
    kinds = pa.array(["native", "virtual", "inline"]).take(
        pa.array(np.select([native, virtual], [0, 1], 2).astype(np.int8))
    )
    places = np.full(count, -1, np.int64)
    places[virtual] = refs.location_codes[virtual]
    known = pa.concat_arrays(
        [locations, pa.array([f"chunks/{id}" for id in encode_column(refs.chunk_ids[native])], pa.string())]
    )
    places[native] = len(locations) + np.arange(int(native.sum()))
    lengths = np.where(inline, refs.inline.lengths, refs.lengths.astype(np.int64))
    tagged = virtual & (refs.etag_codes != NO_ETAG)
    modified = virtual & ~tagged & (refs.last_modified > 0)
    tag_codes = np.where(tagged, refs.etag_codes.astype(np.int64), 0)
    seconds = pa.array(refs.last_modified.astype(np.int64) * 10**6, mask=~modified)
    columns = [
        pa.repeat(pa.scalar(path, pa.string()), count),
        coords,
        kinds,
        known.take(pa.array(places, mask=places < 0)),
        pa.array(refs.offsets.astype(np.int64), mask=inline),
        pa.array(lengths),
        etags.take(pa.array(tag_codes, mask=~tagged)),
        seconds.cast(_INSTANT),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _diff(view: View, _: Order, schema: pa.Schema) -> Batches:
    if view.earlier is None:
        raise InvalidInputError(
            "the table diff needs a version to begin with: the option fromVersion, a branch, tag or snapshot",
            kind=ErrorKind.INVALID_REF_NAME,
        )
    start, end = view.earlier.snapshot_id, view.session.snapshot_id
    found = view.repo.diff(from_snapshot_id=start, to_snapshot_id=end)

    def rows() -> Iterator[Mapping[str, Any]]:
        for change in ("new", "deleted", "updated"):
            for kind in ("group", "array"):
                for path in sorted(getattr(found, f"{change}_{kind}s")):
                    yield {"change": f"{change} {kind}", "path": path}
        for source, target in found.moved_nodes:
            yield {"change": "moved", "path": source, "new_path": target}
        for path, chunks in sorted(found.updated_chunks.items()):
            for coords in chunks:
                yield {"change": "updated chunk", "path": path, "coords": coords}

    return _rows(schema, rows())


def _storage_orders(view: View) -> list[list[str]]:
    paths = [node.path for node in _arrays(view.session)]
    # Small arrays in one task, by hundreds: an array is never in two, so its sums are whole.
    return [paths[start : start + 100] for start in range(0, len(paths), 100)]


def _storage(view: View, order: Order, schema: pa.Schema) -> Batches:
    workspace = view.session.workspace

    def rows() -> Iterator[Mapping[str, Any]]:
        for path in order or ():
            refs = workspace.refs(workspace.array(path))
            row: dict[str, Any] = {"path": path, "chunks": len(refs), "bytes": 0}
            for name, kind in (("native", NATIVE), ("virtual", VIRTUAL), ("inline", INLINE)):
                here = refs.kind == kind
                lengths = refs.inline.lengths if kind == INLINE else refs.lengths.astype(np.int64)
                row[f"{name}_chunks"] = int(here.sum())
                row[f"{name}_bytes"] = int(lengths[here].sum())
                row["bytes"] += row[f"{name}_bytes"]
            yield row

    return _rows(schema, rows())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


TABLES: Final[Mapping[str, MetadataTable]] = {
    "refs": MetadataTable(
        pa.schema(
            [
                ("kind", pa.string()),
                ("name", pa.string()),
                ("snapshot_id", pa.string()),
                ("committed_at", _INSTANT),
                ("message", pa.string()),
            ]
        ),
        _refs,
    ),
    "snapshots": MetadataTable(
        pa.schema(
            [
                ("snapshot_id", pa.string()),
                ("parent_id", pa.string()),
                ("committed_at", _INSTANT),
                ("message", pa.string()),
                ("metadata", pa.string()),
                ("commits_before", pa.int64()),
            ]
        ),
        _snapshots,
    ),
    "ops": MetadataTable(
        pa.schema(
            [
                ("updated_at", _INSTANT),
                ("kind", pa.string()),
                ("details", pa.string()),
                ("backup_path", pa.string()),
            ]
        ),
        _ops,
    ),
    "nodes": MetadataTable(
        pa.schema(
            [
                ("path", pa.string()),
                ("kind", pa.string()),
                ("node_id", pa.string()),
                ("shape", _NUMBERS),
                ("chunk_shape", _NUMBERS),
                ("num_chunks", _NUMBERS),
                ("dimension_names", _TEXTS),
                ("dtype", pa.string()),
                ("codecs", pa.string()),
                ("fill_value", pa.string()),
                ("attributes", pa.string()),
                ("manifests", _TEXTS),
            ]
        ),
        _nodes,
    ),
    "manifests": MetadataTable(
        pa.schema(
            [
                ("manifest_id", pa.string()),
                ("size_bytes", pa.int64()),
                ("num_chunk_refs", pa.int64()),
                ("arrays", _TEXTS),
            ]
        ),
        _manifests,
    ),
    "chunks": MetadataTable(
        pa.schema(
            [
                ("path", pa.string()),
                ("coords", _NUMBERS),
                ("kind", pa.string()),
                ("location", pa.string()),
                ("offset", pa.int64()),
                ("length", pa.int64()),
                ("etag", pa.string()),
                ("last_modified", _INSTANT),
            ]
        ),
        _chunks,
        _chunk_orders,
    ),
    "diff": MetadataTable(
        pa.schema(
            [
                ("change", pa.string()),
                ("path", pa.string()),
                ("new_path", pa.string()),
                ("coords", _NUMBERS),
            ]
        ),
        _diff,
    ),
    "storage": MetadataTable(
        pa.schema(
            [
                ("path", pa.string()),
                ("chunks", pa.int64()),
                ("bytes", pa.int64()),
                *(
                    (f"{kind}_{what}", pa.int64())
                    for kind in ("native", "virtual", "inline")
                    for what in ("chunks", "bytes")
                ),
            ]
        ),
        _storage,
        _storage_orders,
    ),
}
"""By name, as the option `table` and SQL say it."""
