"""The metadata tables of a repository: refs, snapshots, ops, nodes, manifests, chunks, diff, storage,
lineage.

Each table is divided into units of work. A task reads one unit and yields Arrow record batches.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from icefloe._internal.ids import encode_column
from icefloe.core.reference_columns import to_absolute_locations
from icefloe.derive.lineage import find_lineage, list_derived
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.manifest import INLINE, NATIVE, NO_ETAG, VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.query.schema import make_unknown_name_error
from icefloe.repository import Repository
from icefloe.session import Session

_TEXT: Final = pa.string()
_NUMBER: Final = pa.int64()
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_NUMBERS: Final = pa.list_(_NUMBER)
_TEXTS: Final = pa.list_(_TEXT)
_ROWS: Final = 65536
_REFS_PER_TASK: Final = 1_000_000
_ARRAYS_PER_TASK: Final = 100

Item: TypeAlias = Any
"""A unit of work of a metadata table, which one task reads."""
Row: TypeAlias = tuple[Any, ...]
"""The values of one row, in column order. Omitted trailing values become null."""
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class View:
    """The repository version that a metadata table describes."""

    repo: Repository
    session: Session
    earlier: Session | None = None
    """The earlier of the two versions in a `diff`; None for other tables."""


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A metadata table of a repository, such as refs, snapshots, nodes or chunks."""

    schema: pa.Schema
    read: Callable[[View, Item], Batches]
    """A function that reads the rows of one unit of work."""
    tasks: Callable[[View], Sequence[Item]]
    """A function that lists the units of work, one per task."""


TABLES: Final[dict[str, MetadataTable]] = {}
"""All metadata tables, keyed by the name used in SQL and in the `table` option."""


def get_metadata_table(name: str) -> MetadataTable:
    """Return a metadata table by name. The name is case-insensitive."""
    found = TABLES.get(name.lower())
    if found is None:
        raise make_unknown_name_error("table", name, list(TABLES), kind=ErrorKind.NODE_NOT_FOUND)
    return found


Rows: TypeAlias = Callable[[View, Item], Iterator[Row]]


def _table(
    table: str, tasks: Callable[[View], Sequence[Item]] = lambda _: [None], /, **columns: pa.DataType
) -> Callable[[Rows], Rows]:
    """Return a decorator that registers a row generator as a metadata table."""

    def register(rows: Rows) -> Rows:
        schema = pa.schema(list(columns.items()))
        TABLES[table] = MetadataTable(schema, partial(_batch_rows, schema, rows), tasks)
        return rows

    return register


def _batch_rows(schema: pa.Schema, rows: Rows, view: View, item: Item) -> Batches:
    waiting: list[Row] = []
    for row in rows(view, item):
        waiting.append(row)
        if len(waiting) == _ROWS:
            yield _make_batch(schema, waiting)
            waiting = []
    if waiting:
        yield _make_batch(schema, waiting)


def _make_batch(schema: pa.Schema, rows: Sequence[Row]) -> pa.RecordBatch:
    columns = zip(*[row + (None,) * (len(schema) - len(row)) for row in rows], strict=True)
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns, schema.types)), schema=schema)


@_table("refs", kind=_TEXT, name=_TEXT, snapshot_id=_TEXT, committed_at=_INSTANT, message=_TEXT)
def _refs(view: View, _: Item) -> Iterator[Row]:
    repo = view.repo
    kinds = (
        ("branch", repo.list_branches(), repo.lookup_branch),
        ("tag", repo.list_tags(), repo.lookup_tag),
    )
    for kind, names, lookup in kinds:
        for name in sorted(names):
            info = repo.lookup_snapshot(lookup(name))
            yield kind, name, info.id, info.written_at, info.message


@_table(
    "snapshots",
    snapshot_id=_TEXT,
    parent_id=_TEXT,
    committed_at=_INSTANT,
    message=_TEXT,
    metadata=_TEXT,
    commits_before=_NUMBER,
)
def _snapshots(view: View, _: Item) -> Iterator[Row]:
    for before, info in enumerate(view.repo.ancestry(snapshot_id=view.session.snapshot_id)):
        yield info.id, info.parent_id, info.written_at, info.message, _to_json(info.metadata), before


@_table("ops", updated_at=_INSTANT, kind=_TEXT, details=_TEXT, backup_path=_TEXT)
def _ops(view: View, _: Item) -> Iterator[Row]:
    for update in view.repo.ops_log():
        fields = dataclasses.fields(update.kind)
        details = _to_json({field.name: getattr(update.kind, field.name) for field in fields})
        yield update.updated_at, type(update.kind).__name__, details, update.backup_path


@_table(
    "nodes",
    path=_TEXT,
    kind=_TEXT,
    node_id=_TEXT,
    shape=_NUMBERS,
    chunk_shape=_NUMBERS,
    num_chunks=_NUMBERS,
    dimension_names=_TEXTS,
    dtype=_TEXT,
    codecs=_TEXT,
    fill_value=_TEXT,
    attributes=_TEXT,
    manifests=_TEXTS,
)
def _nodes(view: View, _: Item) -> Iterator[Row]:
    workspace = view.session._workspace
    for path in workspace.paths():
        node = workspace.node(path)
        if node is not None:
            yield _describe_node(node)


def _describe_node(node: NodeSnapshot) -> Row:
    document = json.loads(node.user_data)
    attributes = _to_json(document.get("attributes", {}))
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        return (node.path, "group", str(node.id), *[None] * 7, attributes)
    data_type = document["data_type"]
    grid = document["chunk_grid"]
    return (
        *(node.path, "array", str(node.id)),
        list(data.lengths),
        grid["configuration"]["chunk_shape"] if grid["name"] == "regular" else None,
        [size.num_chunks for size in data.shape],
        document.get("dimension_names"),
        data_type if isinstance(data_type, str) else _to_json(data_type),
        _to_json(document.get("codecs")),
        _to_json(document.get("fill_value")),
        attributes,
        [str(ref.id) for ref in data.manifests],
    )


@_table("manifests", manifest_id=_TEXT, size_bytes=_NUMBER, num_chunk_refs=_NUMBER, arrays=_TEXTS)
def _manifests(view: View, _: Item) -> Iterator[Row]:
    arrays: dict[str, list[str]] = {}
    for node in _list_arrays(view.session):
        data = node.node_data
        for ref in data.manifests if isinstance(data, ArrayNodeData) else ():
            arrays.setdefault(str(ref.id), []).append(node.path)
    for info in view.repo.list_manifest_files(view.session.snapshot_id):
        yield info.id, info.size_bytes, info.num_chunk_refs, arrays.get(info.id, [])


def _list_arrays(session: Session) -> list[NodeSnapshot]:
    workspace = session._workspace
    return workspace.arrays_with_chunks(workspace.paths())


def _list_chunk_tasks(view: View) -> list[list[tuple[str, int]]]:
    """List the units of work of the `chunks` table: (array, manifest number) pairs.

    Small manifests share a task; each large manifest gets its own.
    """
    sizes = {info.id: info.num_chunk_refs for info in view.repo.list_manifest_files(view.session.snapshot_id)}
    tasks: list[list[tuple[str, int]]] = []
    room = 0
    for node in _list_arrays(view.session):
        data = node.node_data
        for number, ref in enumerate(data.manifests if isinstance(data, ArrayNodeData) else ()):
            size = sizes.get(str(ref.id), 0)
            if size > room or not tasks:
                tasks.append([])
                room = _REFS_PER_TASK
            tasks[-1].append((node.path, number))
            room -= size
    return tasks


def _chunks(view: View, item: Item) -> Batches:
    workspace = view.session._workspace
    containers = workspace.assets.virtual.containers
    for path, number in item or ():
        node = workspace.array(path)
        data = node.node_data
        refs = workspace.manifest_refs(node, data.manifests[number])  # type: ignore[union-attr]
        texts = pa.array(to_absolute_locations(refs.locations, containers), pa.string())
        etags = pa.array([tag.decode() for tag in refs.etags.tolist()], pa.string())
        for start in range(0, len(refs), _ROWS):
            part = refs.take(slice(start, start + _ROWS))
            yield make_chunk_batch(path, part, texts, etags)


def make_chunk_batch(path: str, refs: ArrayManifest, locations: pa.Array, etags: pa.Array) -> pa.RecordBatch:
    """Return a record batch for the `chunks` metadata table, with one row per chunk reference of an array."""
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
    return pa.RecordBatch.from_arrays(columns, schema=CHUNKS)


CHUNKS: Final = pa.schema(
    {
        "path": _TEXT,
        "coords": _NUMBERS,
        "kind": _TEXT,
        "location": _TEXT,
        "offset": _NUMBER,
        "length": _NUMBER,
        "etag": _TEXT,
        "last_modified": _INSTANT,
    }
)
TABLES["chunks"] = MetadataTable(CHUNKS, _chunks, _list_chunk_tasks)


@_table("diff", change=_TEXT, path=_TEXT, new_path=_TEXT, coords=_NUMBERS)
def _diff(view: View, _: Item) -> Iterator[Row]:
    if view.earlier is None:
        raise InvalidInputError(
            "the table diff needs the earlier version; set the option fromVersion to a branch, tag or"
            " snapshot",
            kind=ErrorKind.INVALID_REF_NAME,
        )
    start, end = view.earlier.snapshot_id, view.session.snapshot_id
    found = view.repo.diff(from_snapshot_id=start, to_snapshot_id=end)
    for change in ("new", "deleted", "updated"):
        for kind in ("group", "array"):
            for path in sorted(getattr(found, f"{change}_{kind}s")):
                yield f"{change} {kind}", path
    for source, target in found.moved_nodes:
        yield "moved", source, target
    for path, chunks in sorted(found.updated_chunks.items()):
        for coords in chunks:
            yield "updated chunk", path, None, coords


def _list_storage_tasks(view: View) -> list[list[str]]:
    """List the units of work of the `storage` table. All chunks of an array go to one task, so that it can
    compute the array's totals.
    """
    paths = [node.path for node in _list_arrays(view.session)]
    return [paths[start : start + _ARRAYS_PER_TASK] for start in range(0, len(paths), _ARRAYS_PER_TASK)]


_KINDS: Final = {"native": NATIVE, "virtual": VIRTUAL, "inline": INLINE}


@_table(
    "storage",
    _list_storage_tasks,
    path=_TEXT,
    chunks=_NUMBER,
    bytes=_NUMBER,
    **{f"{kind}_{what}": _NUMBER for kind in _KINDS for what in ("chunks", "bytes")},
)
def _storage(view: View, item: Item) -> Iterator[Row]:
    workspace = view.session._workspace
    for path in item or ():
        refs = workspace.refs(workspace.array(path))
        counts, sizes = [], []
        for kind in _KINDS.values():
            here = refs.kind == kind
            lengths = refs.inline.lengths if kind == INLINE else refs.lengths.astype(np.int64)
            counts.append(int(here.sum()))
            sizes.append(int(lengths[here].sum()))
        each = [number for pair in zip(counts, sizes, strict=True) for number in pair]
        yield path, len(refs), sum(sizes), *each


@_table(
    "lineage",
    path=_TEXT,
    function=_TEXT,
    is_current=pa.bool_(),
    input=_TEXT,
    input_path=_TEXT,
    input_repository=_TEXT,
    input_snapshot_id=_TEXT,
    commit_id=_TEXT,
    recipe=_TEXT,
    versions=_TEXT,
)
def _lineage(view: View, _: Item) -> Iterator[Row]:
    """Yield one row for each input of each derived array."""
    for path in list_derived(view.session):
        found = find_lineage(view.repo, view.session, path)
        if found is not None:
            recipe, versions = _to_json(found.recipe), _to_json(found.versions)
            for each in found.inputs:
                given = [each[key] for key in ("name", "array", "repository", "snapshot")]
                yield path, found.function, found.is_current, *given, found.commit, recipe, versions


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
