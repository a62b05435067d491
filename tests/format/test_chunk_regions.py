from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe._internal.ids import NodeId, SnapshotId
from icefloe.encoding.flatbuffers.builder import PayloadParts
from icefloe.encoding.flatbuffers.reader import Payload
from icefloe.errors import FormatError
from icefloe.format import chunk_regions, coordinates, transaction_log, transaction_log_codec
from icefloe.format.chunk_regions import ChunkRegions, Region
from icefloe.format.files import read_transaction_log, write_transaction_log
from icefloe.format.spec import V1, V2, Spec
from icefloe.format.transaction_log import TransactionLog, UpdatedChunks
from icefloe.format.transaction_log_codec import decode_transaction_log, encode_transaction_log
from tests.support.format import strategies

SNAPSHOT = SnapshotId(b"snapshot id.")


@st.composite
def regions(draw: st.DrawFn, rank: int | None = None) -> ChunkRegions:
    """Windows and sorted coordinates, some of which overlap."""
    rank = draw(st.integers(0, 3)) if rank is None else rank
    index = st.integers(0, 9)
    window = st.tuples(*(st.builds(lambda at, n: range(at, at + n), index, st.integers(1, 4)),) * rank)
    rows = st.lists(st.tuples(*(index,) * rank), min_size=1, max_size=6, unique=True)
    columns = rows.map(lambda rows: np.array(sorted(rows), np.uint32).reshape(len(rows), rank))
    parts: list[Region] = draw(st.lists(st.one_of(window, columns), min_size=1, max_size=5))
    return ChunkRegions(rank, tuple(parts))


def list_by_hand(chunks: ChunkRegions) -> list[tuple[int, ...]]:
    lists = [coordinates.list_window(each) if isinstance(each, tuple) else each for each in chunks.regions]
    return sorted({tuple(row) for each in lists for row in each.tolist()})


@settings(max_examples=30)
@given(regions(), st.integers(1, 9))
def test_chunk_regions_are_listed_once_and_in_order(chunks: ChunkRegions, size: int) -> None:
    with patch.object(chunk_regions, "BLOCK_CHUNKS", size):
        blocks = list(chunks.blocks())
        count = len(chunks)

    expected = list_by_hand(chunks)
    assert [tuple(row) for block in blocks for row in block.tolist()] == expected
    assert count == len(expected)
    assert all(len(block) <= size for block in blocks)


@settings(max_examples=30)
@given(
    st.dictionaries(strategies.ids(NodeId), st.tuples(regions(), st.booleans()), min_size=1, max_size=3),
    st.sampled_from([V1, V2]),
    st.integers(1, 9),
)
def test_streamed_log_equals_log_from_columns(
    arrays: Mapping[NodeId, tuple[ChunkRegions, bool]], spec: Spec, size: int
) -> None:
    listed = UpdatedChunks.of({node: chunks.coords() for node, (chunks, _) in arrays.items()})
    rows = sorted(arrays)
    kept = {row: arrays[node][0] for row, node in enumerate(rows) if arrays[node][1] or row == 0}
    numbers = [arrays[node][0].coords().reshape(-1) for row, node in enumerate(rows) if row not in kept]
    streamed = UpdatedChunks(
        listed.node_ids,
        listed.counts,
        listed.ranks,
        np.concatenate([np.zeros(0, np.uint32), *numbers]),
        kept,
    )
    logs = [TransactionLog.of(SNAPSHOT, chunks, new_arrays=rows[:1]) for chunks in (listed, streamed)]

    with (
        patch.object(chunk_regions, "BLOCK_CHUNKS", size),
        patch("icefloe.format.transaction_log_codec._MANY_NUMBERS", -1),
    ):
        whole = encode_transaction_log(logs[0], spec, "log")
        parts = encode_transaction_log(logs[1], spec, "log")
        data = write_transaction_log(logs[1], spec)

    assert isinstance(whole, np.ndarray)
    assert isinstance(parts, PayloadParts)
    assert b"".join(map(bytes, parts.parts)) == whole.tobytes()
    assert parts.size == len(whole)
    assert read_transaction_log(data, SNAPSHOT) == logs[0] == logs[1]


@settings(max_examples=30)
@given(regions(rank=2), regions(rank=2), st.booleans())
def test_long_lists_of_a_log_are_read_as_regions(
    first: ChunkRegions, second: ChunkRegions, is_listed: bool
) -> None:
    nodes = [NodeId(bytes([number] * 8)) for number in range(2)]
    chunks = UpdatedChunks.of({nodes[0]: first.coords(), nodes[1]: second.coords()})
    log = TransactionLog.of(SNAPSHOT, chunks, deleted_arrays=nodes[:1])

    with (
        patch("icefloe.format.transaction_log_codec.BLOCK_CHUNKS", 2),
        patch.object(transaction_log, "BLOCK_CHUNKS", 2),
        patch("icefloe.format.transaction_log_codec._MANY_NUMBERS", -1 if is_listed else 1000),
    ):
        found = read_transaction_log(write_transaction_log(log, V2), SNAPSHOT)

    assert found == log
    long = {row for row, each in enumerate((first, second)) if len(each) > 2}
    assert not is_listed or set(found.updated_chunks.regions) == long


def test_damaged_long_list_is_refused_or_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BLOCK_CHUNKS", 2), ("_MANY_NUMBERS", -1)):
        monkeypatch.setattr(transaction_log_codec, name, value)
    chunks = UpdatedChunks.of({NodeId(bytes(8)): coordinates.list_window((range(3), range(2)))})
    whole = encode_transaction_log(TransactionLog.of(SNAPSHOT, chunks), V2, "log")
    assert isinstance(whole, np.ndarray)
    refused = 0

    for at in range(len(whole)):
        damaged = whole.copy()
        damaged[at] ^= 4
        try:
            found = decode_transaction_log(Payload(damaged, "log"))
        except FormatError:
            refused += 1
            continue
        for _, coords in found.updated_chunks:
            assert coordinates.is_strictly_sorted(coords)

    assert refused > 20
