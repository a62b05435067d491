"""Encode manifest files from columns, and decode them to columns or single references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import ChunkId, ManifestId, NodeId
from icefloe.encoding.columns import (
    U8,
    Blobs,
    Ragged,
    Shared,
    decode_text,
    is_constant,
    make_constant,
    to_splits,
)
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.builder import build, build_column_blocks
from icefloe.encoding.flatbuffers.cursor import Cursor, Slots
from icefloe.encoding.flatbuffers.reader import Payload, read_tables
from icefloe.encoding.flatbuffers.tables import Tables
from icefloe.errors import ErrorKind, FormatError
from icefloe.format import coordinates
from icefloe.format.id_columns import sort_ids
from icefloe.format.locations import (
    MAX_LOCATION_BYTES,
    Dictionary,
    LocationCompression,
    drop_unused,
    encode_runs,
    join,
)
from icefloe.format.manifest import (
    INLINE,
    NATIVE,
    NO_ETAG,
    PER_ROW,
    VIRTUAL,
    ArrayManifest,
    ChunkRef,
    ETag,
    InlineRef,
    LastModified,
    Manifest,
    NativeRef,
    VirtualRef,
)
from icefloe.format.manifest_blocks import RefBlocks
from icefloe.format.schema import CHUNK_REF, MANIFEST, OBJECT_ID
from icefloe.format.spec import Spec

PLAIN: Final = 0
ZSTD_DICTIONARY: Final = 1
_KINDS: Final = {"chunk_id": NATIVE, "location": VIRTUAL, "compressed_location": VIRTUAL, "inline": INLINE}
_CHUNK_ID_ALONE: Final = fb.TableSchema(CHUNK_REF.name, {"chunk_id": CHUNK_REF.fields["chunk_id"]})
_SMALLEST_REF: Final = 12
"""The minimum size of an encoded reference: its slot, the head of its table and the offset of its index."""
_MANY_REFS: Final = 1 << 14
"""Manifests with more references than this are written from columns, because keeping encoded tables would use
too much memory.
"""


def encode_manifest(
    manifest: Manifest, spec: Spec, place: str, compression: LocationCompression | None = None
) -> U8:
    """Encode columns of chunk references as the payload of a manifest file.

    Locations are compressed if requested and worthwhile.
    """
    nodes = sorted(manifest.arrays)
    parts = [manifest.arrays[node] for node in nodes]
    dictionary = None
    if compression is not None and spec.compressed_locations:
        virtual = sum(int(np.count_nonzero(part.kind == VIRTUAL)) for part in parts)
        dictionary = compression.train(join([part.locations for part in parts]), virtual)
    refs = [
        _make_ref_tables(part, dictionary, f"{place}: array {node}")
        for node, part in zip(nodes, parts, strict=True)
    ]
    counts = np.array([len(part) for part in refs], np.int64)
    arrays = _make_array_columns(nodes, _join_refs(refs), counts)
    present = {}
    if manifest.array_extras:
        arrays["extra"] = Blobs.from_list([manifest.array_extras.get(node, b"") for node in nodes])
        present["extra"] = np.fromiter(
            (node in manifest.array_extras for node in nodes), np.bool_, len(nodes)
        )
    columns: dict[str, Any] = {
        "id": np.frombuffer(manifest.id, np.uint8)[None],
        "arrays": Ragged(Tables(len(nodes), arrays, present), to_splits(np.array([len(nodes)]))),
        "compression_algorithm": np.array([ZSTD_DICTIONARY if dictionary else PLAIN], np.uint8),
    }
    if dictionary:
        columns["location_dictionary"] = Blobs.from_list([dictionary.data])
    if manifest.extra is not None:
        columns["extra"] = Blobs.from_list([manifest.extra])
    return build(MANIFEST, Tables(1, columns, {}), place)


def encode_numbered_refs(
    id: ManifestId, nodes: Sequence[NodeId], parts: Sequence[ArrayManifest], place: str
) -> U8:
    """Encode the payload of a manifest file with many arrays, without a Python loop over the arrays.

    Each part contains the references of all arrays of one rank. The first coordinate of a reference is the
    row of its array in `nodes`. Nodes must be sorted, and each must have references.
    """
    rows = np.concatenate([part.coords[:, 0] for part in parts]).astype(np.int64)
    tables = [
        _make_ref_tables(replace(part, coords=part.coords[:, 1:]), None, place, ordered=False)
        for part in parts
    ]
    joined = _join_refs(tables)
    if len(parts) > 1:
        joined = joined.take(rows.argsort(kind="stable"))
    arrays = _make_array_columns(nodes, joined, np.bincount(rows, minlength=len(nodes)))
    columns: dict[str, Any] = {
        "id": np.frombuffer(id, np.uint8)[None],
        "arrays": Ragged(Tables(len(nodes), arrays, {}), to_splits(np.array([len(nodes)]))),
        "compression_algorithm": np.array([PLAIN], np.uint8),
    }
    return build(MANIFEST, Tables(1, columns, {}), place)


def _make_array_columns(nodes: Sequence[NodeId], refs: Tables, counts: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "node_id": np.frombuffer(b"".join(nodes), np.uint8).reshape(-1, 8),
        "refs": Ragged(refs, to_splits(counts)),
    }


def _join_refs(refs: Sequence[Tables]) -> Tables:
    if len(refs) == 1:
        return refs[0]
    loose = []
    for part in refs:
        index = part["index"]
        lengths = make_constant(index.shape[1], len(index), np.int64)
        loose.append(
            Tables(
                len(part),
                {**part.columns, "index": Ragged(index.reshape(-1), to_splits(lengths))},
                part.present,
            )
        )
    return Tables.concat(loose) if loose else Tables(0, {}, {})


def _make_ref_tables(
    refs: ArrayManifest, dictionary: Dictionary | None, place: str, *, ordered: bool = True
) -> Tables:
    """Convert the references of one array to `ChunkRef` tables, as columns."""
    (check_refs if ordered else check_columns)(refs, place)
    columns: dict[str, Any] = {"index": refs.coords}
    present: dict[str, NDArray[np.bool_]] = {}

    def add(name: str, column: Any, rows: NDArray[np.bool_]) -> None:
        if rows.any():
            columns[name] = column
            if not rows.all():
                present[name] = rows

    inline, native, virtual = (refs.kind == kind for kind in (INLINE, NATIVE, VIRTUAL))
    add("inline", refs.inline, inline)
    add("offset", refs.offsets, ~inline)
    add("length", refs.lengths, ~inline)
    add("chunk_id", refs.chunk_ids, native)
    if virtual.any():
        _add_locations(add, refs, virtual, dictionary)
        tagged = virtual & (refs.etag_codes != NO_ETAG)
        if tagged.any():
            codes = np.where(tagged, refs.etag_codes, 0)
            add("checksum_etag", Shared(codes, refs.etags), tagged)
        add("checksum_last_modified", refs.last_modified, virtual & ~tagged & (refs.last_modified != 0))
    add("extra", refs.extras, refs.extras.lengths > 0)
    return Tables(len(refs), columns, present)


def _add_locations(
    add: Any, refs: ArrayManifest, virtual: NDArray[np.bool_], dictionary: Dictionary | None
) -> None:
    everywhere = bool(virtual.all())
    codes, locations = drop_unused(
        refs.location_codes if everywhere else refs.location_codes[virtual], refs.locations
    )
    if not everywhere:
        full = np.zeros(len(refs), codes.dtype)
        full[virtual] = codes
        codes = full
    if dictionary is None:
        add("location", Shared(codes, locations), virtual)
        return
    long = locations.lengths > MAX_LOCATION_BYTES
    frames = dictionary.compress(locations.take(~long))
    add("location", Shared(codes, locations), virtual & long[codes])
    places = np.maximum(np.cumsum(~long) - 1, 0)
    add("compressed_location", Shared(places[codes], frames), virtual & ~long[codes])


def check_refs(refs: ArrayManifest, place: str) -> None:
    """Raise FormatError if decoded chunk references violate the specification."""
    check_columns(refs, place)
    unsorted = coordinates.find_unsorted_rows(refs.coords)
    if unsorted.any():
        row = int(np.flatnonzero(unsorted)[0]) + 1
        raise FormatError(
            f"{place}: references are not in ascending order at {refs.coords[row].tolist()}",
            kind=ErrorKind.SERIALIZATION,
        )


def check_columns(refs: ArrayManifest, place: str) -> None:
    """Raise FormatError if the columns of decoded references, sorted or not, are inconsistent."""
    odd = next((name for name in PER_ROW if len(getattr(refs, name)) != len(refs)), None)
    if odd is not None:
        count = len(getattr(refs, odd))
        raise FormatError(f"{place}: {len(refs)} references, but {count} {odd}", kind=ErrorKind.SERIALIZATION)
    kind, etag_codes = refs.kind, refs.etag_codes
    if is_constant(kind) and is_constant(etag_codes):  # one row represents all rows
        kind, etag_codes = kind[:1], etag_codes[:1]
    strange = (kind < NATIVE) | (kind > INLINE)
    if strange.any():
        row = int(np.flatnonzero(strange)[0])
        raise FormatError(
            f"{place}: reference {row} has unknown kind {refs.kind[row]}", kind=ErrorKind.SERIALIZATION
        )
    virtual = kind == VIRTUAL
    tagged = virtual & (etag_codes != NO_ETAG)
    for what, rows, codes, values in (
        ("location", virtual, refs.location_codes, refs.locations),
        ("etag", tagged, refs.etag_codes, refs.etags),
    ):
        highest = int((codes if rows.all() else codes[rows]).max(initial=0)) if rows.any() else -1
        if highest >= len(values):
            raise FormatError(
                f"{place}: a reference has {what} {highest}, but there are only {len(values)}",
                kind=ErrorKind.SERIALIZATION,
            )


class PackedManifest:
    """An encoded manifest file. Single references are found quickly, and columns are created on demand.

    A lookup validates only the tables that it touches. The order of all references is checked when columns
    are built.

    Parameters
    ----------
    payload
        The content of the file.
    blocks
        The encoded references of the only array, if the payload was built from them.
    """

    __slots__ = ("_algorithm", "_arrays", "_blocks", "_dictionary", "_payload", "_slots", "extra", "id")

    def __init__(self, payload: Payload, blocks: RefBlocks | None = None) -> None:
        self._blocks = blocks
        root = Cursor.root(payload, MANIFEST)
        self._payload = payload
        self.id = ManifestId(root.bytes("id") or b"")
        self.extra = root.bytes("extra")
        self._algorithm = root.number("compression_algorithm")
        self._dictionary = Dictionary(root.bytes("location_dictionary") or b"")
        self._arrays: dict[NodeId, Cursor] = {}
        self._slots: dict[NodeId, Slots] = {}
        arrays = root.children("arrays") or ()
        last: NodeId | None = None
        total = 0
        for row in range(len(arrays)):
            array = arrays[row]
            node = NodeId(array.bytes("node_id") or b"")
            if last is not None and node <= last:
                payload.fail(f"Manifest.arrays is not in ascending order at {node}")
            self._arrays[node] = array
            self._slots[node] = array.children("refs") or Slots(payload, CHUNK_REF, 0, 0)
            last = node
            total += len(self._slots[node])
            if total > payload.size:  # an attack: arrays that share a vector of references
                payload.fail(f"{total} references are more than the file has bytes")

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The ids of the arrays that have references in this manifest."""
        return tuple(self._arrays)

    @property
    def nbytes(self) -> int:
        """The memory that the encoded manifest uses, in bytes."""
        return self._payload.size

    @property
    def payload(self) -> U8:
        """The payload of the manifest file, without header and compression."""
        return self._payload.data

    @property
    def location_dictionary(self) -> bytes | None:
        """The zstd dictionary for virtual locations; None if locations are not compressed."""
        return self._dictionary.data if self._algorithm == ZSTD_DICTIONARY and self._dictionary.data else None

    def count_compressed(self, node: NodeId) -> int:
        """Count an array's references that have a compressed location."""
        tables = read_tables(self._payload, CHUNK_REF, self._slots[node].positions())
        there = "compressed_location" in tables.columns
        return int(np.count_nonzero(tables.has("compressed_location"))) if there else 0

    def count(self, node: NodeId) -> int:
        """Return the number of chunk references that the manifest has for an array."""
        return len(self._slots[node]) if node in self._slots else 0

    def find(self, node: NodeId, coords: Sequence[int]) -> ChunkRef | None:
        """Find the reference of one chunk by binary search in the encoded manifest."""
        refs = self._slots.get(node)
        if refs is None:
            return None
        target = tuple(coords)
        low, high = 0, refs.count
        below: tuple[int, ...] | None = None
        above: tuple[int, ...] | None = None
        while low < high:
            middle = (low + high) // 2
            table = refs[middle]
            index = table.numbers("index") or ()
            if (below is not None and index <= below) or (above is not None and index >= above):
                self._payload.fail(
                    f"references of {node} are not in ascending order at {list(index)}", table.position
                )
            if index == target:
                return self._read_ref(table)
            if index < target:
                low, below = middle + 1, index
            else:
                high, above = middle, index
        return None

    def _read_ref(self, table: Cursor) -> ChunkRef:
        there = table.present(_KINDS)
        if len(there) != 1:
            self._refuse_kinds(sorted(there), f"the reference at byte {table.position}")
        name = there[0]
        data = table.bytes(name) or b""
        if name == "inline":
            return InlineRef(data)
        offset, length = table.number("offset"), table.number("length")
        if name == "chunk_id":
            return NativeRef(ChunkId(data), offset, length)
        if name == "compressed_location":
            data = self._expand(Blobs.from_list([data]))[0]
        location = decode_text(data, f"{self._payload.place}: ChunkRef.location")
        etag, seconds = table.bytes("checksum_etag"), table.number("checksum_last_modified")
        if etag is not None:
            return VirtualRef(
                location, offset, length, ETag(decode_text(etag, f"{self._payload.place}: etag"))
            )
        return VirtualRef(location, offset, length, LastModified(seconds) if seconds else None)

    def _expand(self, frames: Blobs) -> Blobs:
        if self._algorithm == PLAIN:
            return frames
        if self._algorithm != ZSTD_DICTIONARY:
            self._payload.fail(f"unknown compression {self._algorithm} of locations")
        return self._dictionary.decompress(frames, self._payload.place)

    def _refuse_kinds(self, names: Sequence[str], which: str) -> NoReturn:
        has = " and ".join(names) or "no inline data, no chunk id and no location"
        self._payload.fail(f"{which} has {has}; exactly one is allowed")

    def array(self, node: NodeId, rank: int | None = None) -> ArrayManifest:
        """Decode all chunk references of one array to columns.

        Old writers left references of another rank under the id of an array. Pass `rank` to drop them.
        """
        refs = self._slots[node]
        if len(refs) * _SMALLEST_REF > self._payload.size:
            self._payload.fail(f"{len(refs)} references do not fit into the file")
        positions = refs.positions()
        tables = read_tables(self._payload, CHUNK_REF, positions)
        if not len(tables):
            return ArrayManifest.of_sorted(np.zeros((0, rank or 0), np.uint32), NATIVE)
        coords = tables["index"].rectangle(rank)
        if coords is None:
            if rank is None:
                self._payload.fail(f"references of {node} have coordinates of different lengths")
            tables = tables.take(tables["index"].lengths == rank)
            coords = tables["index"].items.reshape(len(tables), rank)
        return self._read_columns(node, coords, tables)

    @property
    def has_extras(self) -> bool:
        """True if the manifest contains data from a later format version that this release cannot
        interpret.
        """
        return self.extra is not None or any(
            array.bytes("extra") is not None for array in self._arrays.values()
        )

    def numbered_refs(self, nodes: Sequence[NodeId], rank: int) -> ArrayManifest:
        """Return the references of several arrays of one rank together, without a loop over references.

        The first coordinate of a reference is the row of its array in `nodes`, in the order of the file.
        """
        slots = [self._slots[node].positions() for node in nodes]
        rows = np.repeat(np.arange(len(nodes), dtype=np.uint32), [len(each) for each in slots])
        tables = read_tables(self._payload, CHUNK_REF, np.concatenate(slots))
        if not len(tables):
            return ArrayManifest.of_sorted(np.zeros((0, rank + 1), np.uint32), NATIVE)
        coords = tables["index"].rectangle(rank)
        if coords is None:
            fits = tables["index"].lengths == rank
            tables, rows = tables.take(fits), rows[fits]
            coords = tables["index"].items.reshape(len(tables), rank)
        return self._read_columns("several arrays", np.concatenate([rows[:, None], coords], axis=1), tables)

    def blocks(self, node: NodeId, rank: int) -> RefBlocks | None:
        """Return the manifest as encoded blocks if it contains references of only one array; None
        otherwise.
        """
        if self._blocks is not None and not self._blocks.needs_rebuild:
            return self._blocks
        if tuple(self._arrays) != (node,) or self.count(node) > _MANY_REFS:
            return None
        if (
            self._algorithm != PLAIN
            or self.extra is not None
            or self._arrays[node].bytes("extra") is not None
        ):
            return None
        refs = self.array(node, rank)
        tables = _make_ref_tables(refs, None, self._payload.place)
        blocks = build_column_blocks(CHUNK_REF, tables, self._payload.place)
        self._blocks = RefBlocks(refs.coords, refs.extents(), blocks)
        return self._blocks

    def _read_columns(self, node: NodeId | str, coords: NDArray[np.uint32], tables: Tables) -> ArrayManifest:
        unsorted = coordinates.find_unsorted_rows(coords)
        if unsorted.any():
            row = int(np.flatnonzero(unsorted)[0]) + 1
            self._payload.fail(f"references of {node} are not in ascending order at {coords[row].tolist()}")
        columns: dict[str, Any] = {"offsets": tables["offset"], "lengths": tables["length"]}
        kind = self._read_kinds(tables)
        if "chunk_id" in tables.columns:
            columns["chunk_ids"] = tables["chunk_id"]
        if "inline" in tables.columns:
            columns["inline"] = tables["inline"]
        if "extra" in tables.columns:
            columns["extras"] = tables["extra"]
        virtual = kind == VIRTUAL
        if virtual.any():
            columns |= self._locations(tables) | self._checksums(tables, virtual)
        return ArrayManifest.of_sorted(coords, kind, **columns)

    def _read_kinds(self, tables: Tables) -> NDArray[np.uint8]:
        there = {name: tables.has(name) for name in _KINDS if name in tables.columns}
        if len(there) == 1 and not any(name in tables.present for name in there):
            return make_constant(_KINDS[next(iter(there))], len(tables), np.uint8)
        number, kind = np.zeros(len(tables), np.uint8), np.zeros(len(tables), np.uint8)
        for name, rows in there.items():
            number += rows
            kind += rows * np.uint8(_KINDS[name])
        wrong = np.flatnonzero(number != 1)
        if len(wrong):
            names = [name for name, rows in there.items() if rows[wrong[0]]]
            self._refuse_kinds(names, f"reference {int(wrong[0])}")
        return kind

    def _locations(self, tables: Tables) -> dict[str, Any]:
        """Return a code per virtual location, and the distinct locations. Compressed locations are
        decompressed.
        """
        codes = np.zeros(len(tables), np.uint32)
        parts: list[Blobs] = []
        for name in ("location", "compressed_location"):
            if name not in tables.columns:
                continue
            rows = tables.has(name)
            found, blobs = encode_runs(tables[name] if rows.all() else tables[name].take(rows))
            codes[rows] = found + np.uint32(sum(map(len, parts)))
            parts.append(blobs if name == "location" else self._expand(blobs))
        return {"location_codes": codes, "locations": join(parts)}

    def _checksums(self, tables: Tables, virtual: NDArray[np.bool_]) -> dict[str, Any]:
        seconds = tables["checksum_last_modified"]
        if "checksum_etag" not in tables.columns:
            return {"last_modified": seconds}
        tagged = tables.has("checksum_etag") & virtual
        codes = np.full(len(tables), NO_ETAG, np.uint32)
        codes[tagged], etags = encode_runs(tables["checksum_etag"].take(tagged))
        return {"etag_codes": codes, "etags": etags, "last_modified": np.where(tagged, 0, seconds)}

    def chunk_ids(self) -> NDArray[np.uint8]:
        """Return the sorted, unique ids of all chunk objects that the manifest refers to, of shape (n,
        12).
        """
        parts = []
        for node in self._arrays:
            tables = read_tables(self._payload, _CHUNK_ID_ALONE, self._slots[node].positions())
            if "chunk_id" in tables.columns:
                parts.append(tables["chunk_id"][tables.has("chunk_id")])
        return sort_ids(np.concatenate(parts)) if parts else np.zeros((0, OBJECT_ID), np.uint8)

    def unpack(self) -> Manifest:
        """Decode the references of all arrays."""
        arrays = {node: self.array(node) for node in self._arrays}
        extras = {
            node: extra
            for node, cursor in self._arrays.items()
            if (extra := cursor.bytes("extra")) is not None
        }
        return Manifest(self.id, arrays, self.extra, extras or None)
