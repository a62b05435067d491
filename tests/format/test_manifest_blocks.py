"""Manifests that reuse encoded references, compared with plain dicts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe._internal.ids import ManifestId, NodeId
from icefloe.format import coordinates
from icefloe.format.files import pack_blocks, pack_manifest, read_manifest, seal_manifest, write_manifest
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import ArrayManifest, ChunkRef, InlineRef, Manifest, VirtualRef
from icefloe.format.manifest_blocks import RefBlocks
from icefloe.format.spec import V2
from tests.support.format import strategies

ID, NODE = ManifestId(bytes(12)), NodeId(bytes(8))
PLACES = st.tuples(st.integers(0, 5), st.integers(0, 5))
REFS = st.dictionaries(PLACES, strategies.chunk_refs(), min_size=1, max_size=8)


@given(first=st.one_of(st.none(), REFS), puts=st.lists(REFS, max_size=4))
def test_references_added_one_by_one_are_complete(
    first: dict[tuple[int, ...], ChunkRef] | None, puts: list[dict[tuple[int, ...], ChunkRef]]
) -> None:
    refs = RefBlocks.none(2)
    if first:
        packed = pack_manifest(Manifest(ID, {NODE: ArrayManifest.from_refs(first, 2)}), V2)
        refs = packed.blocks(NODE, 2) or refs
    expected = dict(first or {})

    for put in puts:
        refs = refs.upsert(put, "sample")
        expected |= put
        packed = read_manifest(seal_manifest(pack_blocks(ID, NODE, refs), V2), ID)
        found = packed.array(NODE, 2)

        assert found == ArrayManifest.from_refs(expected, 2)
        assert np.array_equal(refs.coords, found.coords)
        assert refs.extents == coordinates.find_bounding_box(found.coords)
        assert {place: packed.find(NODE, place) for place in expected} == expected


def test_single_chunk_of_a_scalar_array_can_be_replaced() -> None:
    refs = RefBlocks.none(0).upsert({(): InlineRef(b"old")}, "sample")

    refs = refs.upsert({(): InlineRef(b"new")}, "sample")

    assert len(refs) == 1
    assert refs.extents == ()
    assert pack_blocks(ID, NODE, refs).find(NODE, ()) == InlineRef(b"new")


def test_frequently_replaced_tables_are_rebuilt() -> None:
    packed = pack_blocks(ID, NODE, RefBlocks.none(1).upsert({(0,): InlineRef(b"")}, "sample"))
    sizes = []

    for number in range(40):
        refs = packed.blocks(NODE, 1)
        assert refs is not None
        packed = pack_blocks(ID, NODE, refs.upsert({(0,): InlineRef(b"%d" % number)}, "sample"))
        sizes.append(packed.nbytes)

    assert packed.find(NODE, (0,)) == InlineRef(b"39")
    assert max(sizes) < 2 * sizes[0]


def test_file_with_more_than_one_plain_array_is_not_extended() -> None:
    refs = ArrayManifest.from_refs({(0,): InlineRef(b"")}, 1)
    virtual = ArrayManifest.from_refs({(0,): VirtualRef("s3://bucket/key", 0, 1)}, 1)
    other = NodeId(bytes(7) + b"1")
    compressed = write_manifest(
        Manifest(ID, {NODE: virtual}), V2, compression=LocationCompression(min_num_chunks=0)
    )

    assert pack_manifest(Manifest(ID, {NODE: refs, other: refs}), V2).blocks(NODE, 1) is None
    assert pack_manifest(Manifest(ID, {NODE: refs}, extra=b"later"), V2).blocks(NODE, 1) is None
    assert pack_manifest(Manifest(ID, {NODE: refs}, array_extras={NODE: b"x"}), V2).blocks(NODE, 1) is None
    assert read_manifest(compressed, ID).blocks(NODE, 1) is None
