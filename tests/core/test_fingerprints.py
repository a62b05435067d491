from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.core.fingerprints import RectangleSums, combine, fingerprint_grid, fingerprint_refs, hash_bytes
from icefloe.format.manifest import ArrayManifest


def native(count: int, seed: int = 0) -> ArrayManifest:
    rng = np.random.default_rng(seed)
    coords = np.stack(np.unravel_index(np.arange(count), (count, 1)), axis=-1)
    ids = rng.integers(0, 256, (count, 12)).astype(np.uint8)
    return ArrayManifest.native(coords, ids, np.full(count, 100))


def test_equal_references_have_equal_fingerprints() -> None:
    assert (fingerprint_refs(native(5)) == fingerprint_refs(native(5))).all()


def test_fingerprint_depends_on_every_part_of_a_native_reference() -> None:
    refs = native(1)
    changed = [
        replace(refs, chunk_ids=refs.chunk_ids ^ np.uint8(1)),
        replace(refs, offsets=refs.offsets + np.uint64(1)),
        replace(refs, lengths=refs.lengths + np.uint64(1)),
    ]

    found = {fingerprint_refs(each).tobytes() for each in (refs, *changed)}

    assert len(found) == 4


def test_fingerprint_depends_on_every_part_of_a_virtual_reference() -> None:
    coords = [[0, 0]]
    refs = [
        ArrayManifest.virtual(coords, ["s3://a/b"], [0], [10]),
        ArrayManifest.virtual(coords, ["s3://a/c"], [0], [10]),
        ArrayManifest.virtual(coords, ["s3://a/b"], [1], [10]),
        ArrayManifest.virtual(coords, ["s3://a/b"], [0], [11]),
        ArrayManifest.virtual(coords, ["s3://a/b"], [0], [10], etags=["x"]),
        ArrayManifest.virtual(coords, ["s3://a/b"], [0], [10], last_modified=[7]),
    ]

    assert len({fingerprint_refs(each).tobytes() for each in refs}) == len(refs)


def test_missing_chunks_have_the_fingerprint_zero() -> None:
    grid = fingerprint_grid(native(3), (4, 1))

    assert (grid[3] == 0).all()
    assert (grid[:3, 0, 0] != 0).all()


def test_combined_fingerprint_depends_on_order() -> None:
    one, other = hash_bytes(b"one"), hash_bytes(b"other")

    assert combine(one, other).tolist() != combine(other, one).tolist()


@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(0, 3))
def test_fingerprint_sums_depend_only_on_content_and_relative_positions(
    seed: int, down: int, right: int
) -> None:
    rng = np.random.default_rng(seed)
    content = rng.integers(1, 2**63, (4, 5, 2)).astype(np.uint64)
    moved = rng.integers(1, 2**63, (8, 9, 2)).astype(np.uint64)
    moved[down : down + 4, right : right + 5] = content
    rows, columns = np.array([[1], [2]]), np.array([[0, 3]])

    before = RectangleSums(content).sum([rows, columns], [rows + 2, columns + 2])
    after = RectangleSums(moved).sum([rows + down, columns + right], [rows + down + 2, columns + right + 2])

    assert (before == after).all()
    changed = moved.copy()
    changed[down + 2, right + 1] += np.uint64(1)
    other = RectangleSums(changed).sum([rows + down, columns + right], [rows + down + 2, columns + right + 2])
    assert (other != after).any(axis=-1).tolist() == [[True, False], [True, False]]
