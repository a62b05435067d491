"""Encode and decode transaction log files."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import NodeId, SnapshotId
from icefloe.encoding.columns import U8, Blobs, Ragged, Rectangles, StreamedLists, to_splits
from icefloe.encoding.flatbuffers.builder import PayloadParts, build, build_parts
from icefloe.encoding.flatbuffers.cursor import Cursor
from icefloe.encoding.flatbuffers.reader import Payload, read_root
from icefloe.encoding.flatbuffers.row_builder import Row, build_row
from icefloe.encoding.flatbuffers.tables import Tables, from_rows, to_rows
from icefloe.errors import ErrorKind, FormatError
from icefloe.format import coordinates
from icefloe.format.chunk_regions import BLOCK_CHUNKS, ChunkRegions
from icefloe.format.id_columns import are_ids_ascending, sort_ids, view_id_keys
from icefloe.format.metadata import make_single_list
from icefloe.format.schema import MOVE_OPERATION, TRANSACTION_LOG
from icefloe.format.snapshot import canonicalize_paths
from icefloe.format.spec import Spec
from icefloe.format.transaction_log import (
    LISTS,
    MoveOperation,
    NodeType,
    TransactionLog,
    UpdatedChunks,
    sort_moves,
)

_MANY_NUMBERS: Final = 256
"""Transaction logs with more coordinates than this are written from columns."""
_MIN_CHUNK_BYTES: Final = 16
"""The minimum encoded size of a changed chunk in a transaction log."""
_FEW_ARRAYS: Final = 1000


def decode_transaction_log(payload: Payload) -> TransactionLog:
    """Decode the payload of a transaction log file. Some releases wrote unsorted lists, which are sorted
    here.
    """
    large = _take_large_lists(payload)
    root = read_root(payload, TRANSACTION_LOG)
    lists: dict[str, Any] = {name: _read_ids(root[name].items) for name in LISTS}
    chunks = _read_updated_chunks(root["updated_chunks"].items, payload)
    if large:
        chunks = UpdatedChunks.of_lists([(node, large.get(node, coords)) for node, coords in chunks])
    return TransactionLog(
        id=SnapshotId(root["id"][0].tobytes()),
        updated_chunks=chunks,
        moved_nodes=_read_moves(root, payload),
        extra=root["extra"][0] if "extra" in root.columns else None,
        **lists,
    )


def rename_transaction_log(payload: Payload, id: SnapshotId) -> int:
    """Replace the snapshot id in an encoded transaction log in place, without decoding anything else. Return
    the position after the id.
    """
    place = Cursor.root(payload, TRANSACTION_LOG).place_of("id")
    if place is None or place + SnapshotId.SIZE > payload.size:
        payload.fail("has no snapshot id")
    payload.data[place : place + SnapshotId.SIZE] = np.frombuffer(id, np.uint8)
    return place + SnapshotId.SIZE


def has_moves(payload: Payload) -> bool:
    """Return True if an encoded transaction log contains moved nodes."""
    return bool(len(Cursor.root(payload, TRANSACTION_LOG).children("moved_nodes") or ()))


def encode_transaction_log(log: TransactionLog, spec: Spec, place: str) -> bytes | U8 | PayloadParts:
    """Encode the payload of a transaction log file. Chunk regions are expanded to coordinates during the
    encoding.
    """
    if log.moved_nodes and not spec.moves:
        raise FormatError(
            f"{place}: version {spec.number} of the format cannot record moved nodes",
            kind=ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
    _check_moves(log.moved_nodes, place, ErrorKind.SERIALIZATION)
    moves = [
        {"from": m.from_path, "to": m.to_path, "node_id": m.node_id, "node_type": m.node_type}
        for m in log.moved_nodes
    ]
    if log.updated_chunks.regions or len(log.updated_chunks.numbers) > _MANY_NUMBERS:
        return _encode_columns(log, from_rows(MOVE_OPERATION, moves) if spec.moves else None, spec, place)
    root = {
        "id": log.id,
        "updated_chunks": _make_chunk_rows(log.updated_chunks),
        "moved_nodes": moves if spec.moves else None,
        "extra": log.extra if spec.extras else None,
        **{name: _make_structs(ids) if len(ids := getattr(log, name)) else () for name in LISTS},
    }
    return build_row(TRANSACTION_LOG, root, place)


def _make_chunk_rows(chunks: UpdatedChunks) -> list[Row]:
    rows: dict[NodeId, list[Row]] = {}
    for node, coords in chunks:  # lists of one array are adjacent
        rows.setdefault(node, []).extend({"coords": numbers} for numbers in coords.tolist())
    return [{"node_id": node, "chunks": each} for node, each in rows.items()]


def _encode_columns(log: TransactionLog, moves: Tables | None, spec: Spec, place: str) -> U8 | PayloadParts:
    """Encode a transaction log with many changed chunks."""
    chunks = log.updated_chunks
    keys = view_id_keys(chunks.node_ids)
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))  # lists of one array are adjacent
    lists: Ragged | StreamedLists
    if chunks.regions:
        items = [
            each if isinstance(each, ChunkRegions) else ChunkRegions(each.shape[1], (each,))
            for _, each in chunks.lists()
        ]
        lists = StreamedLists(items, np.append(first, len(items)))
    else:
        lists = Ragged(_make_chunk_indices(chunks), to_splits(np.add.reduceat(chunks.counts, first)))
    arrays = {"node_id": chunks.node_ids[first], "chunks": lists}
    columns: dict[str, Any] = {
        "id": np.frombuffer(log.id, np.uint8)[None],
        "updated_chunks": make_single_list(Tables(len(first), arrays, {})),
        **{name: make_single_list(_make_structs(getattr(log, name))) for name in LISTS},
    }
    if moves is not None:
        columns["moved_nodes"] = make_single_list(moves)
    if log.extra is not None and spec.extras:
        columns["extra"] = Blobs.from_list([log.extra])
    root = Tables(1, columns, {})
    if chunks.regions:
        return build_parts(TRANSACTION_LOG, root, place)
    return build(TRANSACTION_LOG, root, place)


def _make_structs(ids: U8) -> NDArray[Any]:
    return np.ascontiguousarray(ids).view("V8").reshape(-1)


def _read_ids(items: NDArray[Any]) -> U8:
    ids = np.ascontiguousarray(items).view(np.uint8).reshape(-1, NodeId.SIZE)
    return ids if are_ids_ascending(ids) else sort_ids(ids)


def _make_chunk_indices(chunks: UpdatedChunks) -> Tables:
    ranks = np.unique(chunks.ranks[chunks.counts > 0])
    count = int(chunks.counts.sum())
    if len(ranks) == 1:
        coords: Any = chunks.numbers.reshape(count, int(ranks[0]))
    else:
        coords = Rectangles(tuple(each for _, each in chunks if len(each)))
    return Tables(count, {"coords": coords} if count else {}, {})


def _take_large_lists(payload: Payload) -> dict[NodeId, ChunkRegions]:
    """Read the long, sorted chunk lists of a transaction log, and empty these lists in the payload.

    Writers place the chunks of an array at a constant stride. They are viewed in place, which needs no column
    of positions. All other lists stay in the payload.
    """
    if payload.size < BLOCK_CHUNKS * _MIN_CHUNK_BYTES or not payload.data.flags.writeable:
        return {}
    slots = Cursor.root(payload, TRANSACTION_LOG).children("updated_chunks")
    if slots is None or len(slots) > _FEW_ARRAYS:
        return {}
    arrays = [slots[row] for row in range(len(slots))]
    names = [array.bytes("node_id") for array in arrays]
    if len(set(names)) < len(names):
        return {}
    found: dict[NodeId, ChunkRegions] = {}
    for name, array in zip(names, arrays, strict=True):
        chunks = array.children("chunks")
        if name is None or chunks is None or len(chunks) <= BLOCK_CHUNKS:
            continue
        coords = chunks.view_vectors("coords")
        if coords is not None and _is_sorted_in_blocks(coords):
            found[NodeId(name)] = ChunkRegions.of_sorted(coords)
            chunks.clear()
    return found


def _is_sorted_in_blocks(coords: NDArray[np.uint32]) -> bool:
    return all(
        coordinates.is_strictly_sorted(coords[start : start + BLOCK_CHUNKS + 1])
        for start in range(0, len(coords), BLOCK_CHUNKS)
    )


def _read_updated_chunks(arrays: Tables, payload: Payload) -> UpdatedChunks:
    if not len(arrays):
        return UpdatedChunks.of({})
    chunks: Ragged = arrays["chunks"]
    counts, node_ids = chunks.lengths, arrays["node_id"]
    if not len(chunks.items):
        empty = UpdatedChunks(node_ids, counts, np.zeros(len(counts), np.int64), np.zeros(0, np.uint32))
        return empty if are_ids_ascending(node_ids) else _sort_and_join(empty)
    coords: Ragged = chunks.items["coords"]
    if len(counts) == 1 and (column := coords.rectangle()) is not None:
        found = UpdatedChunks(node_ids, counts, np.array(column.shape[1:]), coords.items)
        return found if coordinates.is_strictly_sorted(column) else _sort_and_join(found)
    owners = np.repeat(np.arange(len(counts)), counts)
    first = np.minimum(chunks.splits[:-1], len(coords) - 1)
    ranks = np.where(counts > 0, coords.lengths[first], 0)
    if not np.array_equal(coords.lengths, ranks[owners]):
        return _split_by_rank(node_ids, chunks.splits, coords)
    found = UpdatedChunks(node_ids, counts, ranks, coords.items)
    if not are_ids_ascending(node_ids) or not all(
        _is_ascending(coords, owners, rank) for rank in np.unique(ranks).tolist()
    ):
        return _sort_and_join(found)
    return found


def _is_ascending(coords: Ragged, owners: NDArray[np.int64], rank: int) -> bool:
    """Return True if the coordinates of each array are ascending. All arrays have the same rank."""
    rows = coords.lengths == rank
    every = bool(rows.all())
    numbers = coords.items if every else coords.take(rows).items
    keyed = np.empty((int(rows.sum()), rank + 1), np.uint32)
    keyed[:, 0] = owners if every else owners[rows]
    keyed[:, 1:] = numbers.reshape(len(keyed), rank)
    return coordinates.is_strictly_sorted(keyed)


def _sort_and_join(chunks: UpdatedChunks) -> UpdatedChunks:
    """Sort unsorted chunk lists, and join the lists that belong to one array."""
    return UpdatedChunks.of_lists(list(chunks))


def _split_by_rank(node_ids: U8, splits: NDArray[np.int64], coords: Ragged) -> UpdatedChunks:
    """Split lists that mix coordinates of several ranks, as official writers produce them."""
    lists = []
    for row in range(len(node_ids)):  # rare: a commit that changed the rank of an array
        mine = coords.take(slice(int(splits[row]), int(splits[row + 1])))
        node = NodeId(node_ids[row].tobytes())
        ranks = np.unique(mine.lengths).tolist() or [0]
        lists += [(node, mine.take(mine.lengths == rank).items.reshape(-1, rank)) for rank in ranks if rank]
        if 0 in ranks:
            lists.append((node, np.zeros((int((mine.lengths == 0).sum()), 0), np.uint32)))
    return UpdatedChunks.of_lists(lists)


def _read_moves(root: Tables, payload: Payload) -> tuple[MoveOperation, ...]:
    if "moved_nodes" not in root.columns:
        return ()
    rows = to_rows(MOVE_OPERATION, root["moved_nodes"].items, payload.place)
    moves = []
    for row in rows:  # a loop over moved nodes, not chunks
        lacking = [name for name in ("from", "to", "node_id") if row[name] is None]
        if lacking:
            payload.fail(f"MoveOperation.{lacking[0]} is missing")
        if row["node_type"] not in NodeType.__members__.values():
            payload.fail(f"MoveOperation.node_type {row['node_type']} is unknown")
        moves.append(
            MoveOperation(row["from"], row["to"], NodeId(row["node_id"]), NodeType(row["node_type"]))
        )
    found = sort_moves(moves)
    _check_moves(found, payload.place, ErrorKind.INVALID_FILE_FORMAT)
    return found


def _check_moves(moves: tuple[MoveOperation, ...], place: str, kind: ErrorKind) -> None:
    paths = [path for move in moves for path in (move.from_path, move.to_path)]
    if canonicalize_paths(paths, place) is not paths:
        raise FormatError(f"{place}: a moved node has a path that is not canonical", kind=kind)
    for name, values in (
        ("leads to", [move.to_path for move in moves]),
        ("begins at", [move.from_path for move in moves]),
        ("is of node", [str(move.node_id) for move in moves]),
    ):
        if len(set(values)) != len(values):
            ((twice, _),) = Counter(values).most_common(1)
            raise FormatError(f"{place}: more than one move {name} {twice}", kind=kind)
    still = next((move for move in moves if move.from_path == move.to_path), None)
    if still is not None:
        raise FormatError(f"{place}: {still.from_path} is moved to itself", kind=kind)
