"""Encoded change sets round-trip, and damaged ones are rejected."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe._internal.ids import ChunkId, ManifestId, NodeId
from icefloe.core.changeset import ArrayDelta, ChangeSet
from icefloe.core.changeset_codec import MAGIC, decode_changes, encode_changes
from icefloe.encoding.packed_columns import ColumnPacker
from icefloe.errors import FormatError
from icefloe.format.manifest import (
    ArrayManifest,
    ChunkRef,
    ETag,
    InlineRef,
    LastModified,
    NativeRef,
    VirtualRef,
)
from icefloe.format.snapshot import ArrayNodeData, DimensionShape, GroupNodeData, ManifestRef, NodeSnapshot

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
CHECKSUMS = st.one_of(
    st.none(), st.builds(ETag, st.text(min_size=1)), st.builds(LastModified, st.integers(1, 2**32 - 1))
)
REFS: st.SearchStrategy[ChunkRef | None] = st.one_of(
    st.none(),
    st.builds(InlineRef, st.binary(min_size=1, max_size=20)),
    st.builds(NativeRef, st.binary(min_size=12, max_size=12).map(ChunkId), NUMBERS, NUMBERS),
    st.builds(VirtualRef, st.sampled_from(["s3://b/1", "s3://b/2", "gs://é"]), NUMBERS, NUMBERS, CHECKSUMS),
)
PATHS = st.sampled_from(["/", "/a", "/a/b", "/é"])


@st.composite
def deltas(draw: Any) -> ArrayDelta:
    rank = draw(st.integers(0, 3))
    coords = st.tuples(*[st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1))] * rank)
    delta = ArrayDelta(draw(PATHS), rank)
    for at, ref in draw(st.lists(st.tuples(coords, REFS), max_size=12)):
        delta.put(at, ref)
        if draw(st.booleans()):
            delta.resolve()
    return delta


@st.composite
def nodes(draw: Any) -> NodeSnapshot:
    data: Any = GroupNodeData()
    if draw(st.booleans()):
        shape = draw(st.lists(st.builds(DimensionShape, NUMBERS, st.integers(0, 2**32 - 1)), max_size=3))
        extents = st.tuples(st.integers(0, 5), st.integers(5, 9)).map(lambda pair: range(*pair))
        manifest = st.builds(
            ManifestRef, st.binary(min_size=12, max_size=12).map(ManifestId), st.tuples(extents, extents)
        )
        names = st.none() | st.lists(st.none() | st.text(min_size=1), max_size=3).map(tuple)
        data = ArrayNodeData(tuple(shape), tuple(draw(st.lists(manifest, max_size=2))), draw(names))
    id = NodeId(draw(st.binary(min_size=8, max_size=8)))
    return NodeSnapshot(id, draw(PATHS), draw(st.binary()), data, draw(st.none() | st.binary(max_size=3)))


def by_path() -> st.SearchStrategy[dict[str, NodeSnapshot]]:
    return st.lists(nodes(), max_size=3).map(lambda some: {node.path: node for node in some})


CHANGES = st.builds(
    ChangeSet,
    by_path(),
    by_path(),
    by_path(),
    st.dictionaries(st.binary(min_size=8, max_size=8).map(NodeId), deltas(), max_size=3),
    st.dictionaries(PATHS, PATHS, max_size=2),
)


def meaning(changes: ChangeSet) -> Any:
    """Return the changes in a comparable form."""
    chunks = {}
    for node, delta in changes.chunks.items():
        written, gone = delta.resolve()
        refs = [] if written is None else [written.ref(row) for row in range(len(written))]
        coords = [] if written is None else written.coords.tolist()
        chunks[node] = (delta.path, delta.rank, coords, refs, gone.tolist())
    return changes.created, changes.updated, changes.deleted, changes.moved, chunks


@settings(max_examples=30)
@given(CHANGES)
def test_changes_survive_encoding(changes: ChangeSet) -> None:
    assert meaning(decode_changes(encode_changes(changes))) == meaning(changes)


def sample() -> bytes:
    changes = ChangeSet()
    node = NodeSnapshot(NodeId(b"12345678"), "/a", b"{}", ArrayNodeData((DimensionShape(9, 9),)))
    changes.created["/a"] = node
    refs: dict[tuple[int, ...], ChunkRef] = {
        (row,): VirtualRef(f"s3://b/{row}", row, 5, ETag("x")) for row in range(4)
    }
    changes.delta(node).put_many(ArrayManifest.from_refs(refs, 1))
    changes.delta(node).put((7,), None)
    changes.delta(node).put((8,), NativeRef(ChunkId(b"123456789012"), 1, 2))
    return encode_changes(changes)


def test_all_damage_is_detected() -> None:
    data = sample()
    assert decode_changes(data).created["/a"].path == "/a"

    for at in range(len(data)):
        with pytest.raises(FormatError):
            decode_changes(data[:at])
        flipped = bytearray(data)
        flipped[at] ^= 0x55
        try:
            found = decode_changes(bytes(flipped))
        except FormatError:
            continue
        assert meaning(found) == meaning(decode_changes(data))  # a bit of zstd's head that means nothing


def test_changes_encoded_by_another_version_are_rejected() -> None:
    with pytest.raises(FormatError, match="another release"):
        decode_changes(MAGIC[:-1] + b"\x01" + sample()[len(MAGIC) :])


GROUP = [b"12345678", "/a", b"{}", None, None]
CONSTANT, PLAIN, STEPS = 0, 1, 2
ID = b"123456789012"


def _unread(*_: object) -> NoReturn:
    raise AssertionError("no manifest is read for this")


@pytest.mark.parametrize(
    ("nodes", "chunks"),
    [
        ([[GROUP]], []),
        ([[], [], [[b"1234", "/a", b"{}", None, None]]], []),
        ([[], [], [[b"12345678", "a", b"{}", None, None]]], []),
        ([[], [], [[b"12345678", "/a", "text", None, None]]], []),
        ([[], [], [[b"12345678", "/a", b"", [[[1]], [], None], None]]], []),
        ([[], [], [[b"12345678", "/a", b"", [[], [], [5]], None]]], []),
        ([[], [], []], [[b"12345678", "/a", -1, None, [0, []], []]]),
        ([[], [], []], [[b"12345678", "/a", 1, None, [1 << 40, [[CONSTANT, 8, 1 << 40, 0, 0]]], []]]),
        ([[], [], []], [[b"12345678", "/a", 1, None, [3, [[PLAIN, 1, 3, 1 << 40, 0]]], []]]),
        ([[], [], []], [[b"12345678", "/a", 1, None, [2, [[PLAIN, 3, 2, 0, 0]]], []]]),
        ([[], [], []], [[b"12345678", "/a", 1, None, [2, [[7, 1, 2, 0, 0]]], []]]),
        ([[], [], []], [[b"12345678", "/a", 1, None, [-1, [[PLAIN, 1, 1, 0, 0]]], []]]),
        ([[], [], []], [[b"12345678", "/a", 0, None, [2, []], []]]),
        ([[], [], []], [[b"12345678", "/a", 1, [1], [0, [[PLAIN, 1, 0, 0, 0]]], []]]),
        ([[], [], []], [[b"12345678", "/a", 1, None, [3, [[STEPS, 1, 3, 0, 5]]], []]]),
        ([[], [], []], [[b"12345678", "/a", 1, None, [3, [[STEPS, 1, 3, 0, 8]]], []]]),
        (
            [[], [], []],
            [[b"12345678", "/a", 1, None, [0, [[PLAIN, 1, 0, 0, 0]]], [[b"1", 1, 1, [[0, 1]], None]]]],
        ),
        (
            [[], [], []],
            [[b"12345678", "/a", 1, None, [0, [[PLAIN, 1, 0, 0, 0]]], [[ID, 1, 1, [[0, 2]], None]]]],
        ),
        (
            [[], [], []],
            [
                [
                    b"12345678",
                    "/a",
                    1,
                    None,
                    [0, [[PLAIN, 1, 0, 0, 0]]],
                    [[ID, 1, 1 << 40, [[0, 1 << 40]], None]],
                ]
            ],
        ),
        ([[], [], []], "chunks"),
    ],
)
def test_malicious_headers_are_rejected(nodes: Any, chunks: Any) -> None:
    packer = ColumnPacker()
    packer.numbers(np.array([1, 2, 0], np.uint8))

    with pytest.raises(FormatError):
        decode_changes(packer.pack(MAGIC, {"nodes": nodes, "moved": [], "chunks": chunks}), read=_unread)


def test_location_codes_out_of_range_are_rejected() -> None:
    refs = ArrayManifest.from_refs({(0,): VirtualRef("s3://b", 0, 1), (1,): VirtualRef("s3://c", 0, 1)}, 1)
    broken = ArrayManifest.of_sorted(
        refs.coords, refs.kind, location_codes=np.array([0, 9], np.uint32), locations=refs.locations
    )
    changes = ChangeSet(chunks={NodeId(b"12345678"): ArrayDelta("/a", 1, segments=[broken])})

    with pytest.raises(FormatError, match="location 9, but there are only 2"):
        decode_changes(encode_changes(changes))
