"""Fingerprints of chunk references. Equal fingerprints mean that references point to the same stored bytes.

A fingerprint consists of two 64-bit numbers. It is computed from chunk id, offset and length for a native
reference, from location, offset, length and checksum for a virtual reference, and from the bytes of an inline
chunk. A missing chunk has the fingerprint zero. All computations use columns: a million references take a
tenth of a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import Blobs
from icefloe.format.manifest import INLINE, NATIVE, NO_ETAG, VIRTUAL, ArrayManifest

Lanes: TypeAlias = NDArray[np.uint64]
"""An array of fingerprints. The last axis has length two."""

_SEEDS: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_KINDS: Final = {NATIVE: b"native", VIRTUAL: b"virtual", INLINE: b"inline"}


def hash_bytes(data: bytes) -> Lanes:
    """Hash a byte string to a fingerprint."""
    return np.frombuffer(hashlib.blake2b(data, digest_size=16).digest(), "<u8").astype(np.uint64)


def combine(lanes: Lanes, *others: Lanes) -> Lanes:
    """Combine fingerprints element by element. The order of arguments matters, and shapes are broadcast."""
    with np.errstate(over="ignore"):  # numpy warns about overflow of scalars, but not of arrays
        for other in others:
            mixed = [
                _mix_bits(lanes[..., lane] * np.uint64(3) + _mix_bits(other[..., lane] + seed))
                for lane, seed in enumerate(_SEEDS)
            ]
            # Both lanes affect each result. Otherwise equality would depend on only 64 bits.
            lanes = np.stack([mixed[0], _mix_bits(mixed[1] ^ (mixed[0] >> np.uint64(7)))], axis=-1)
    return lanes


def fingerprint_refs(refs: ArrayManifest) -> Lanes:
    """Return the fingerprint of each chunk reference. It is never zero, which stands for a missing chunk."""
    found = np.zeros((len(refs), 2), np.uint64)
    for kind, name in _KINDS.items():
        rows = np.flatnonzero(refs.kind == kind)
        if len(rows):
            found[rows] = combine(hash_bytes(name)[None], *_hash_identity(refs, kind, rows))
    found[..., 0] |= np.uint64(1)
    return found


def fingerprint_grid(refs: ArrayManifest, grid: Sequence[int]) -> Lanes:
    """Arrange fingerprints by chunk coordinates in an array of shape `(*grid, 2)`, with zeros for missing
    chunks.
    """
    found = np.zeros((*grid, 2), np.uint64)
    if len(refs):  # a scalar without a chunk has no coordinates to assign to
        found[tuple(refs.coords.T.astype(np.intp))] = fingerprint_refs(refs)
    return found


def _hash_identity(refs: ArrayManifest, kind: int, rows: NDArray[np.int64]) -> list[Lanes]:
    if kind == INLINE:
        return [_hash_each(refs.inline.take(rows))]
    extent = np.stack([refs.offsets[rows], refs.lengths[rows]], axis=-1).astype(np.uint64)
    if kind == NATIVE:
        words = np.zeros((len(rows), 16), np.uint8)
        words[:, :12] = refs.chunk_ids[rows]
        return [words.view("<u8").astype(np.uint64), extent]
    locations = _hash_each(refs.locations)[refs.location_codes[rows]]
    etags = np.concatenate([_hash_each(refs.etags), np.zeros((1, 2), np.uint64)])
    codes = np.where(refs.etag_codes[rows] == NO_ETAG, len(etags) - 1, refs.etag_codes[rows])
    modified = np.repeat(refs.last_modified[rows].astype(np.uint64)[:, None], 2, axis=1)
    return [locations, extent, etags[codes], modified]


def _hash_each(blobs: Blobs) -> Lanes:
    # A loop over files or inline chunks, whose bytes must be hashed one by one anyway.
    data = b"".join(hashlib.blake2b(blob, digest_size=16).digest() for blob in blobs.tolist())
    return np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, 2)


def _mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of 64-bit numbers (the splitmix64 finalizer)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class RectangleSums:
    """Position-dependent sums of fingerprints over arbitrary rectangles of a chunk grid.

    The sum over a rectangle depends on its fingerprints and on their positions relative to its first corner,
    so content that moved as a whole keeps its sum. Sums are computed from cumulative sums, modulo 2**64, of
    fingerprints times `base ** coordinate`, so that a query takes constant time whatever the size of the
    rectangle.
    """

    def __init__(self, fingerprints: Lanes) -> None:
        self._rank = fingerprints.ndim - 1
        sums = fingerprints
        for axis in range(self._rank):
            weights = _compute_powers(_make_base(axis), fingerprints.shape[axis])
            sums = sums * weights.reshape(*(-1 if each == axis else 1 for each in range(self._rank)), 2)
        for axis in range(self._rank):
            sums = np.cumsum(sums, axis=axis, dtype=np.uint64)
            first = np.zeros((*sums.shape[:axis], 1, *sums.shape[axis + 1 :]), np.uint64)
            sums = np.concatenate([first, sums], axis=axis)
        self._sums: Lanes = sums

    def sum(self, first: Sequence[NDArray[np.int64]], end: Sequence[NDArray[np.int64]]) -> Lanes:
        """Return the sums over rectangles, given one pair of broadcastable bounds arrays per axis."""
        if not self._rank:
            return self._sums
        total: Lanes = np.zeros((*np.broadcast_shapes(*(np.shape(each) for each in first)), 2), np.uint64)
        for corner in range(1 << self._rank):
            at = tuple(end[axis] if corner >> axis & 1 else first[axis] for axis in range(self._rank))
            sign = (self._rank - corner.bit_count()) % 2
            total = total - self._sums[at] if sign else total + self._sums[at]
        for axis in range(self._rank):
            inverse = _compute_powers(_invert(_make_base(axis)), int(np.max(first[axis], initial=0)) + 1)
            total = total * inverse[np.asarray(first[axis])]
        return total


def _make_base(axis: int) -> NDArray[np.uint64]:
    """Return one odd base per lane for an axis."""
    return hash_bytes(b"axis %d" % axis) | np.uint64(1)


def _invert(base: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.array([pow(int(each), -1, 1 << 64) for each in base], np.uint64)


def _compute_powers(base: NDArray[np.uint64], count: int) -> Lanes:
    powers = np.ones((max(count, 1), 2), np.uint64)
    powers[1:] = base
    return np.cumprod(powers, axis=0, dtype=np.uint64)[:count]
