"""Another layout for an array that is there: its zarr.json with other chunks, shards and codecs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from zarr.buffer import cpu
from zarr.storage import MemoryStore

from icefloe._internal.warnings import quiet
from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.ingest.options import compressors
from icefloe.ingest.plan.arrays import check_chunk_bytes, shards_of
from icefloe.ingest.records import Target, reason

_SHARDING = "sharding_indexed"
_INDEX: dict[str, Any] = {
    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    "index_location": "end",
}


@dataclass(frozen=True, slots=True)
class Relayout:
    """How arrays are to be cut and encoded; what is not given stays, but shards do not."""

    chunks: Mapping[str, int]
    """Cells per chunk by dimension, or by its number where it has no name; -1 for all of them."""
    shards: Mapping[str, int] | None = None
    """Cells per shard; None: no shards."""
    codec: str | None = None
    """That of an ingest, in the place of all codecs; None: those of the array."""

    def __post_init__(self) -> None:
        for what, given in (("chunks", self.chunks), ("shards", self.shards or {})):
            for dim, size in given.items():
                if size < 1 and size != -1:
                    raise _invalid(
                        f"{what} of {size} along {dim} make no sense: give a positive number, or -1 for all"
                    )
        if self.codec is not None:
            compressors(self.codec)
        elif not self.chunks and not self.shards:
            options = dict.fromkeys(("chunks", "shards", "codec"))
            hint = Hint("give {chunks}, {shards} or {codec}", **options)
            raise _invalid("there is nothing to change").with_hint(hint)

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions that an array must have."""
        return tuple(dict.fromkeys([*self.chunks, *(self.shards or {})]))


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array as described by its zarr.json."""

    path: str
    document: Mapping[str, Any]
    dims: tuple[str, ...]
    """Their names; a number for one that has none."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self.document["shape"])

    @property
    def chunks(self) -> tuple[int, ...]:
        """Cells per chunk; where there are shards, per chunk inside of them."""
        found, codecs = self._cells, self.document["codecs"]
        while (inside := _sharding(codecs)) is not None:
            found, codecs = tuple(inside["chunk_shape"]), inside["codecs"]
        return found

    @property
    def shards(self) -> tuple[int, ...] | None:
        """Cells per shard."""
        return self._cells if _sharding(self.document["codecs"]) is not None else None

    @property
    def _cells(self) -> tuple[int, ...]:
        return tuple(self.document["chunk_grid"]["configuration"]["chunk_shape"])


def stored_array(path: str, user_data: bytes) -> StoredArray:
    """Parse the zarr.json of an array."""
    document = json.loads(user_data)
    names = document.get("dimension_names") or [None] * len(document["shape"])
    return StoredArray(
        path, document, tuple(str(axis) if name is None else name for axis, name in enumerate(names))
    )


def new_layout(array: StoredArray, wanted: Relayout) -> Target:
    """Describe the rechunked array. Arrays without a regular chunk grid are refused."""
    kind = array.document["chunk_grid"]["name"]
    if kind != "regular":
        raise _invalid(f"{array.path} has a {kind} chunk grid: only arrays with a regular one are rechunked")
    chunks = tuple(
        _size(wanted.chunks.get(dim, has), whole)
        for dim, has, whole in zip(array.dims, array.chunks, array.shape, strict=True)
    )
    dtype = _small(array, array.document["codecs"]).dtype
    text = "string" if dtype.kind in "OT" else dtype.str
    target = Target(array.path, array.dims, array.shape, text, {}, {}, None, chunks)
    check_chunk_bytes(array.path, array.dims, chunks, target.itemsize)
    shards = shards_of(array.path, array.dims, array.shape, chunks, wanted.shards)
    return replace(target, shards=shards, document=_document(array, chunks, shards, wanted.codec))


def _size(wanted: int, whole: int) -> int:
    return max(1, whole if wanted == -1 else wanted)


def _document(
    array: StoredArray, chunks: tuple[int, ...], shards: tuple[int, ...] | None, codec: str | None
) -> str:
    plain, index = _codecs(array)
    if codec is not None:
        plain = _plain_codecs(array, codec)
    _try_out(array, plain)
    inside = {"chunk_shape": list(chunks), "codecs": plain, **index}
    grid = {"name": "regular", "configuration": {"chunk_shape": list(shards or chunks)}}
    codecs = plain if shards is None else [{"name": _SHARDING, "configuration": inside}]
    return json.dumps({**array.document, "chunk_grid": grid, "codecs": codecs})


def _codecs(array: StoredArray) -> tuple[list[Any], dict[str, Any]]:
    """Return the codecs of a chunk, and the index settings of its shards."""
    codecs, index = list(array.document["codecs"]), _INDEX
    if (outside := _sharding(codecs)) is not None:
        index = {name: outside[name] for name in _INDEX if name in outside}
    while (inside := _sharding(codecs)) is not None:
        codecs = list(inside["codecs"])
    return codecs, index


def _sharding(codecs: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return the sharding configuration if it is the only codec."""
    first = codecs[0] if len(codecs) == 1 else None
    if not isinstance(first, dict) or first.get("name") != _SHARDING:
        return None
    found: Mapping[str, Any] = first["configuration"]
    return found


def _plain_codecs(array: StoredArray, codec: str) -> list[Any]:
    """Return the codecs that zarr chooses for this type and compressor."""
    small = _small(array, array.document["codecs"])
    metadata: Any = small.metadata
    with quiet():
        made = zarr.create_array(
            MemoryStore(),
            shape=small.shape,
            chunks=small.shape,
            dtype=metadata.data_type,
            compressors=compressors(codec),
            fill_value=small.fill_value,
        )
    document: Any = made.metadata.to_dict()
    return [each if isinstance(each, dict) else each.to_dict() for each in document["codecs"]]


def _try_out(array: StoredArray, codecs: list[Any]) -> None:
    """Try to encode one cell: codecs of referenced files may only decode."""
    try:
        with quiet():
            small: Any = _small(array, codecs)
            small[...] = np.full(small.shape, small.fill_value, small.dtype)
    except Exception as error:
        names = ", ".join(str(each["name"] if isinstance(each, dict) else each) for each in codecs)
        raise _invalid(
            f"the codecs of {array.path} ({names}) cannot write chunks of their own ({reason(error)}): "
            "choose a codec for it"
        ) from error


def _small(array: StoredArray, codecs: Sequence[Any]) -> zarr.Array[Any]:
    """Create an equal array with one cell in memory, which also writes empty chunks."""
    ones = [1] * len(array.shape)
    if (inside := _sharding(codecs)) is not None:
        return _small(array, inside["codecs"])
    grid = {"name": "regular", "configuration": {"chunk_shape": ones}}
    document = {**array.document, "shape": ones, "chunk_grid": grid, "codecs": list(codecs)}
    stored: dict[str, Any] = {"zarr.json": cpu.Buffer.from_bytes(json.dumps(document).encode())}
    store = MemoryStore(stored)
    # Not an argument of open_array: zarr 3.1 does not heed it there.
    with quiet(), zarr.config.set({"array.write_empty_chunks": True}):
        return zarr.open_array(store, mode="r+")


def _invalid(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_ARRAY_METADATA)
