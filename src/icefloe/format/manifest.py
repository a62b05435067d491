"""Manifests: the chunk references of arrays, as columns instead of objects."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icefloe._internal.ids import ChunkId, ManifestId, NodeId
from icefloe.encoding.columns import Blobs, concat, count_held_bytes, decode_text, make_constant, take
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords

NATIVE: Final = 1
VIRTUAL: Final = 2
INLINE: Final = 3

NO_ETAG: Final = 0xFFFFFFFF
"""The value in `etag_codes` for a reference without an etag."""

_SAMPLE: Final = 4096
_REPEATS: Final = 0.99
"""If more than this share of the locations in a sample is distinct, locations are not deduplicated."""


@dataclass(frozen=True, slots=True)
class ETag:
    """The checksum of a virtual reference as an etag, which the external object must still have."""

    value: str


@dataclass(frozen=True, slots=True)
class LastModified:
    """The checksum of a virtual reference as a time, after which the external file must not have changed."""

    seconds: int
    """The time in seconds since 1970-01-01 UTC."""


Checksum: TypeAlias = ETag | LastModified


@dataclass(frozen=True, slots=True)
class InlineRef:
    """An inline chunk reference: the bytes of the chunk are stored in the manifest itself."""

    data: bytes

    @property
    def length(self) -> int:
        """The length of the inline chunk in bytes."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class NativeRef:
    """A native chunk reference in a manifest: a byte range of a chunk object in the repository."""

    chunk_id: ChunkId
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class VirtualRef:
    """A virtual chunk reference in a manifest: a byte range of a file outside the repository."""

    location: str
    offset: int
    length: int
    checksum: Checksum | None = None


ChunkRef: TypeAlias = InlineRef | NativeRef | VirtualRef


@dataclass(frozen=True, slots=True, eq=False)
class ArrayManifest:
    """The chunk references of one array in a manifest, as columns. Coordinates are unique and sorted.

    A column is meaningful only for the kinds of references that its description names.
    """

    coords: Coords
    """The chunk coordinates, of shape (n, dimensions)."""
    kind: NDArray[np.uint8]
    """The kind of each reference: NATIVE, VIRTUAL or INLINE."""
    chunk_ids: NDArray[np.uint8]
    """The chunk object ids of native references, of shape (n, 12)."""
    offsets: NDArray[np.uint64]
    """The offsets of native and virtual chunks, in bytes."""
    lengths: NDArray[np.uint64]
    """The lengths of native and virtual chunks, in bytes."""
    location_codes: NDArray[np.uint32]
    """For each virtual chunk, the row of its location in `locations`."""
    locations: Blobs
    """The distinct virtual locations in UTF-8. References into the same file share one entry."""
    inline: Blobs
    """The bytes of inline chunks, one row per reference; empty for other kinds."""
    etag_codes: NDArray[np.uint32]
    """For each virtual chunk, the row of its etag in `etags`, or NO_ETAG."""
    etags: Blobs
    last_modified: NDArray[np.uint32]
    """The last-modified times of virtual chunks, in seconds since 1970-01-01 UTC; 0 if not recorded."""
    extras: Blobs
    """Opaque bytes from later format versions, one row per reference."""

    @staticmethod
    def of(coords: ArrayLike, kind: ArrayLike, **columns: Any) -> ArrayManifest:
        """Create the manifest columns of one array from unsorted references. The last reference with the same
        coordinates wins.
        """
        manifest = ArrayManifest.of_sorted(
            to_unsigned(coords, np.uint32, "chunk coordinates"), kind, **columns
        )
        _, rows = coordinates.keep_last_of_equal(manifest.coords)
        return manifest if rows is None else manifest.take(rows)

    @staticmethod
    def of_sorted(coords: Coords, kind: ArrayLike, **columns: Any) -> ArrayManifest:
        """Create the manifest columns of one array from references that are sorted by coordinates and
        unique.
        """
        count = len(coords)
        codes = np.asarray(kind, np.uint8)
        defaults = {
            "kind": codes if codes.ndim else make_constant(codes, count, np.uint8),
            "chunk_ids": make_constant(0, count, np.uint8, 12),
            "offsets": make_constant(0, count, np.uint64),
            "lengths": make_constant(0, count, np.uint64),
            "location_codes": make_constant(0, count, np.uint32),
            "locations": Blobs.empty(0),
            "inline": Blobs.empty(count),
            "etag_codes": make_constant(NO_ETAG, count, np.uint32),
            "etags": Blobs.empty(0),
            "last_modified": make_constant(0, count, np.uint32),
            "extras": Blobs.empty(count),
        }
        return ArrayManifest(coords, **(defaults | columns))

    @staticmethod
    def native(
        coords: ArrayLike, chunk_ids: NDArray[np.uint8], lengths: ArrayLike, offsets: Any = None
    ) -> ArrayManifest:
        """Create manifest columns of native references. Without offsets, each reference covers its whole
        chunk object.
        """
        columns = {"chunk_ids": chunk_ids, "lengths": to_unsigned(lengths, np.uint64, "lengths")}
        if offsets is not None:
            columns["offsets"] = to_unsigned(offsets, np.uint64, "offsets")
        return ArrayManifest.of(coords, NATIVE, **columns)

    @staticmethod
    def virtual(
        coords: ArrayLike,
        locations: Sequence[str],
        offsets: ArrayLike,
        lengths: ArrayLike,
        *,
        etags: Sequence[str] | None = None,
        last_modified: ArrayLike | None = None,
    ) -> ArrayManifest:
        """Create manifest columns of virtual references, with at most one kind of checksum: etags or
        modification times.
        """
        codes, blobs = factorize(locations)
        columns: dict[str, Any] = {
            "location_codes": codes,
            "locations": blobs,
            "offsets": to_unsigned(offsets, np.uint64, "offsets"),
            "lengths": to_unsigned(lengths, np.uint64, "lengths"),
        }
        if etags is not None:
            columns["etag_codes"], columns["etags"] = factorize(etags)
        if last_modified is not None:
            seconds = to_unsigned(last_modified, np.uint32, "times of last modification")
            columns["last_modified"] = (
                seconds if seconds.ndim else make_constant(seconds, len(codes), np.uint32)
            )
        return ArrayManifest.of(coords, VIRTUAL, **columns)

    @staticmethod
    def from_refs(refs: Mapping[tuple[int, ...], ChunkRef], rank: int) -> ArrayManifest:
        """Create manifest columns from reference objects, such as the latest writes of a session."""
        coords = np.array(list(refs), np.uint32).reshape(len(refs), rank)
        values = list(refs.values())
        native = [ref if isinstance(ref, NativeRef) else None for ref in values]
        virtual = [ref if isinstance(ref, VirtualRef) else None for ref in values]
        inline = [ref if isinstance(ref, InlineRef) else None for ref in values]
        ranged = [ref if not isinstance(ref, InlineRef) else None for ref in values]
        checks = [ref.checksum if ref else None for ref in virtual]
        codes, locations = factorize([ref.location if ref else "" for ref in virtual])
        etag_codes, etags = factorize([check.value if isinstance(check, ETag) else "" for check in checks])
        has_etag = np.fromiter((isinstance(check, ETag) for check in checks), np.bool_, len(values))
        return ArrayManifest.of(
            coords,
            np.array(
                [NATIVE if n else VIRTUAL if v else INLINE for n, v in zip(native, virtual, strict=True)],
                np.uint8,
            ),
            chunk_ids=np.frombuffer(
                b"".join(ref.chunk_id if ref else bytes(12) for ref in native), np.uint8
            ).reshape(-1, 12),
            offsets=np.array([ref.offset if ref else 0 for ref in ranged], np.uint64),
            lengths=np.array([ref.length if ref else 0 for ref in ranged], np.uint64),
            location_codes=codes,
            locations=locations,
            inline=Blobs.from_list([ref.data if ref else b"" for ref in inline]),
            etag_codes=np.where(has_etag, etag_codes, np.uint32(NO_ETAG)),
            etags=etags,
            last_modified=np.array(
                [c.seconds if isinstance(c, LastModified) else 0 for c in checks], np.uint32
            ),
        )

    def __len__(self) -> int:
        return len(self.coords)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayManifest):
            return NotImplemented
        return np.array_equal(self.coords, other.coords) and all(
            np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs
            for mine, theirs in zip(self._normalize(), other._normalize(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def _normalize(self) -> tuple[Any, ...]:
        """Return the references in a form that can be compared, independent of codes and of unused rows."""
        native, virtual, inline = (self.kind == kind for kind in (NATIVE, VIRTUAL, INLINE))
        tagged = virtual & (self.etag_codes != NO_ETAG)
        return (
            self.kind,
            tagged,
            self.chunk_ids[native],
            self.offsets[~inline],
            self.lengths[~inline],
            self.last_modified[virtual & ~tagged],
            self.locations.take(self.location_codes[virtual]),
            self.etags.take(self.etag_codes[tagged]),
            self.inline.take(inline),
            self.extras,
        )

    @property
    def rank(self) -> int:
        """The rank of the array in a manifest: the number of dimensions of its chunk coordinates."""
        return int(self.coords.shape[1])

    @property
    def nbytes(self) -> int:
        """The memory that the manifest columns use, in bytes."""
        columns = [getattr(self, column.name) for column in fields(self)]
        return sum(
            column.nbytes if isinstance(column, Blobs) else count_held_bytes(column) for column in columns
        )

    def ref(self, row: int) -> ChunkRef:
        """Return the chunk reference in one row as an `InlineRef`, `NativeRef` or `VirtualRef`."""
        kind = int(self.kind[row])
        if kind == INLINE:
            return InlineRef(self.inline[row])
        offset, length = int(self.offsets[row]), int(self.lengths[row])
        if kind == NATIVE:
            return NativeRef(ChunkId(self.chunk_ids[row].tobytes()), offset, length)
        code, place = int(self.location_codes[row]), f"{self.locations.place}: location of reference {row}"
        return VirtualRef(decode_text(self.locations[code], place), offset, length, self._checksum(row))

    def _checksum(self, row: int) -> Checksum | None:
        code = int(self.etag_codes[row])
        if code != NO_ETAG:
            return ETag(decode_text(self.etags[code], f"{self.etags.place}: etag of reference {row}"))
        seconds = int(self.last_modified[row])
        return LastModified(seconds) if seconds else None

    def find(self, coords: Sequence[int]) -> ChunkRef | None:
        """Return the reference of the chunk at the given coordinates; None if there is none."""
        row = coordinates.find(self.coords, coords)
        return None if row is None else self.ref(row)

    def take(self, rows: Any) -> ArrayManifest:
        """Select rows of the manifest columns by a slice, a mask or ascending indices."""
        columns = {name: take(getattr(self, name), rows) for name in PER_ROW}
        return ArrayManifest(**columns, locations=self.locations, etags=self.etags)

    def within(self, extents: Sequence[range]) -> ArrayManifest:
        """Return the references inside a window of the chunk grid, as new manifest columns."""
        return self.take(coordinates.are_inside(self.coords, extents))

    def without(self, coords: Coords) -> ArrayManifest:
        """Return the manifest columns without the references at the given coordinates."""
        gone = coordinates.contains(self.coords, coordinates.keep_last_of_equal(coords)[0])
        return self.take(~gone) if gone.any() else self

    def merge(self, newer: ArrayManifest) -> ArrayManifest:
        """Merge in newer references of the same array. At equal coordinates, the newer reference wins."""
        return ArrayManifest.concat([self, newer])

    def equal_rows(self, other: ArrayManifest) -> NDArray[np.bool_]:
        """Return a mask of the references that are identical in another manifest of the same array."""
        same = self.kind == other.kind
        native, virtual, inline = (
            np.flatnonzero(same & (self.kind == kind)) for kind in (NATIVE, VIRTUAL, INLINE)
        )
        same[native] = (self.chunk_ids[native] == other.chunk_ids[native]).all(axis=1)
        same[virtual] = self.last_modified[virtual] == other.last_modified[virtual]
        for rows in (native, virtual):
            same[rows] &= self.offsets[rows] == other.offsets[rows]
            same[rows] &= self.lengths[rows] == other.lengths[rows]
        for rows, texts in ((virtual, ArrayManifest._locations_of), (virtual, ArrayManifest._etags_of)):
            mine, theirs = texts(self, rows), texts(other, rows)
            same[rows] &= np.fromiter(map(operator.eq, mine, theirs), np.bool_, len(rows))
        blobs = self.inline.take(inline).tolist(), other.inline.take(inline).tolist()
        same[inline] = np.fromiter(map(operator.eq, *blobs), np.bool_, len(inline))
        return np.asarray(same, np.bool_)

    def _locations_of(self, rows: NDArray[np.int64]) -> list[bytes]:
        return self.locations.take(self.location_codes[rows]).tolist()

    def _etags_of(self, rows: NDArray[np.int64]) -> list[bytes | None]:
        texts: list[bytes | None] = [*self.etags.tolist(), None]
        codes = np.where(self.etag_codes[rows] == NO_ETAG, len(texts) - 1, self.etag_codes[rows])
        return [texts[code] for code in codes.tolist()]

    def split(self, windows: Sequence[Sequence[range]]) -> list[ArrayManifest]:
        """Split the manifest columns of an array into one part per window of the chunk grid."""
        return [self.within(extents) for extents in windows]

    def extents(self) -> tuple[range, ...]:
        """Return the extents: the smallest window of the chunk grid that contains all references."""
        return coordinates.find_bounding_box(self.coords)

    @staticmethod
    def concat(parts: Sequence[ArrayManifest]) -> ArrayManifest:
        """Concatenate and sort several manifest columns of one array. At equal coordinates, the later part
        wins.
        """
        parts = [part for part in parts if len(part)] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        columns = {name: concat([getattr(part, name) for part in parts]) for name in PER_ROW}
        columns["location_codes"], locations = _join_texts(parts, "location_codes", "locations")
        columns["etag_codes"], etags = _join_texts(parts, "etag_codes", "etags")
        whole = ArrayManifest(**columns, locations=locations, etags=etags)
        _, rows = coordinates.keep_last_of_equal(whole.coords)
        return whole if rows is None else whole.take(rows)


PER_ROW: Final = tuple(c.name for c in fields(ArrayManifest) if c.name not in ("locations", "etags"))


def _join_texts(parts: Sequence[ArrayManifest], codes: str, texts: str) -> tuple[Any, Blobs]:
    """Concatenate the text columns of several parts, and return them with the adjusted codes.

    Parts that were split from the same manifest share one text column, which is kept only once. Otherwise
    each split and join would multiply the texts.
    """
    shifted = []
    starts: dict[int, int] = {}
    tables: list[Blobs] = []
    count = 0
    for part in parts:
        column, table = getattr(part, codes), getattr(part, texts)
        if id(table) not in starts:
            starts[id(table)] = count
            tables.append(table)
            count += len(table)
        start = starts[id(table)]
        if start and len(table):
            column = np.where(column == NO_ETAG, column, column + np.uint32(start))
        shifted.append(column)
    return concat(shifted), Blobs.concat(tables)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest, decoded from its file: the chunk references of one or more arrays."""

    id: ManifestId
    arrays: Mapping[NodeId, ArrayManifest]
    extra: bytes | None = None
    array_extras: Mapping[NodeId, bytes] | None = None
    """Opaque bytes from later format versions, for arrays that have some."""


def to_unsigned(values: ArrayLike, dtype: Any, what: str) -> NDArray[Any]:
    """Convert integers to an unsigned manifest column; raise InvalidInputError if a number is out of
    range.
    """
    try:
        given = np.asarray(values)
        if given.dtype == dtype:
            return given
        with np.errstate(invalid="ignore"):
            column: NDArray[Any] = given.astype(dtype)
        whole = given.size == 0 or (given.dtype.kind in "iuf" and bool((column == given).all()))
        if whole and (given.dtype.kind == "u" or not (given.size and given.min() < 0)):
            return column
    except (ValueError, TypeError, OverflowError):
        pass
    raise InvalidInputError(
        f"{what} must be integers from 0 to {np.iinfo(dtype).max}", kind=ErrorKind.INVALID_VIRTUAL_REF
    )


def factorize(texts: Sequence[str]) -> tuple[NDArray[np.uint32], Blobs]:
    """Deduplicate texts for a manifest column. Return a code per text, and the distinct texts.

    Texts are kept as they are if a sample shows that they rarely repeat, because looking up a million
    distinct URLs takes longer than writing them.
    """
    if len(texts) > _SAMPLE and _is_mostly_distinct(texts):
        return np.arange(len(texts), dtype=np.uint32), Blobs.from_texts(texts)
    codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    return np.fromiter(map(codes.__getitem__, texts), np.uint32, len(texts)), Blobs.from_texts(list(codes))


def _is_mostly_distinct(texts: Sequence[str]) -> bool:
    scattered = [
        i * 2654435761 % (len(texts) - 1) for i in range(_SAMPLE)
    ]  # scattered, so that the sample does not follow a regular pattern of files
    distinct = len({texts[i] for i in scattered})
    neighbours = sum(texts[i] == texts[i + 1] for i in scattered)
    return distinct > _REPEATS * len(set(scattered)) and neighbours < (1 - _REPEATS) * _SAMPLE
