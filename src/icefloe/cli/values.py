"""Values of an array. Plain ones are read here: to load zarr takes longer than all else in a command."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import zstandard

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.snapshot import NodeSnapshot
from icefloe.session import Session

Region = tuple[slice | int, ...]

_TYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
)
_FILLS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MOST_CHUNKS = 64
"""More are read by zarr, many at a time."""


def read(session: Session, path: str, region: Region) -> Any:
    """The values of an array in a region, which has an index or a slice for each dimension."""
    node = session._workspace.array(path)
    document = json.loads(node.user_data)
    _refuse_outside(region, document["shape"])
    plain = _plain(document)
    found = None if plain is None else _Reader(session, node, plain, document["shape"]).read(region)
    if found is not None:
        return found
    import zarr

    return np.asarray(zarr.open_array(session.store, path=path.strip("/"), mode="r")[region])


def _refuse_outside(region: Region, shape: Sequence[int]) -> None:
    for axis, (wanted, size) in enumerate(zip(region, shape, strict=True)):
        if isinstance(wanted, int) and not -size <= wanted < size:
            raise _wrong(f"index {wanted} is outside of dimension {axis}, which has {size} elements")
        if isinstance(wanted, slice) and wanted.step is not None and wanted.step < 1:
            raise _wrong(f"the step {wanted.step} of dimension {axis} must be at least 1")


def _wrong(text: str) -> InvalidInputError:
    return InvalidInputError(text, kind=ErrorKind.INVALID_CHUNK_INDEX)


@dataclass(frozen=True, slots=True)
class _Plain:
    """Chunks of numbers on a regular grid, as they are or compressed by zstd."""

    dtype: np.dtype[Any]
    fill: Any
    chunks: tuple[int, ...]
    is_compressed: bool


def _plain(document: Mapping[str, Any]) -> _Plain | None:
    """What an array is like; None where it takes more than this module knows."""
    codecs = [each if isinstance(each, dict) else {"name": each} for each in document["codecs"]]
    names = [codec.get("name") for codec in codecs]
    fill = document["fill_value"]
    fill = _FILLS.get(fill) if isinstance(fill, str) else fill
    known = (
        document["data_type"] in _TYPES
        and document["chunk_grid"]["name"] == "regular"
        and names in (["bytes"], ["bytes", "zstd"])
        and not document.get("storage_transformers")
        and isinstance(fill, int | float)
    )
    if not known:
        return None
    endian = codecs[0].get("configuration", {}).get("endian", "little")
    dtype = np.dtype(document["data_type"]).newbyteorder(">" if endian == "big" else "<")
    return _Plain(
        dtype, fill, tuple(document["chunk_grid"]["configuration"]["chunk_shape"]), names[-1] == "zstd"
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads regions of one array."""

    session: Session
    node: NodeSnapshot
    plain: _Plain
    shape: Sequence[int]

    def read(self, region: Region) -> Any:
        """The values; None where there are too many chunks, or one is not what it should be."""
        spans = [
            range(
                *(slice(wanted % size, wanted % size + 1) if isinstance(wanted, int) else wanted).indices(
                    size
                )
            )
            for wanted, size in zip(region, self.shape, strict=True)
        ]
        if not all(spans):
            touched = [range(0)] * len(spans)
        else:
            touched = [
                range(span[0] // size, span[-1] // size + 1)
                for span, size in zip(spans, self.plain.chunks, strict=True)
            ]
        if math.prod(map(len, touched)) > _MOST_CHUNKS:
            return None
        firsts = [span[0] if span else 0 for span in spans]
        box = np.full(
            [span[-1] - span[0] + 1 if span else 0 for span in spans],
            self.plain.fill,
            self.plain.dtype.newbyteorder("="),
        )
        for coords in product(*touched):
            if not self._put(box, coords, firsts):
                return None
        picks = tuple(
            0 if isinstance(wanted, int) else slice(None, None, span.step)
            for wanted, span in zip(region, spans, strict=True)
        )
        return box[picks]

    def _put(self, box: Any, coords: tuple[int, ...], firsts: Sequence[int]) -> bool:
        """Put what a chunk has into its place; whether it could be read."""
        workspace = self.session._workspace
        ref = workspace.ref(self.node, coords)
        if ref is None:
            return True
        where = f"{coords} of {self.node.path}"
        data = workspace.read(ref, 0, ref.length, where)
        plain = self.plain
        size_bytes = math.prod(plain.chunks) * plain.dtype.itemsize
        if plain.is_compressed:
            try:
                data = zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes)
            except zstandard.ZstdError:
                return False
        if len(data) != size_bytes:
            return False
        chunk = np.frombuffer(data, plain.dtype).reshape(plain.chunks)
        here, there = [], []
        for number, size, first, length in zip(coords, plain.chunks, firsts, box.shape, strict=True):
            begin = number * size - first
            here.append(slice(max(begin, 0), min(begin + size, length)))
            there.append(slice(max(-begin, 0), min(size, length - begin)))
        box[tuple(here)] = chunk[tuple(there)]
        return True


def listed(values: Any) -> Any:
    """Values for JSON: times as ISO texts, spans of time as numbers of their unit."""
    if values.dtype.kind == "M":
        return np.datetime_as_string(values).tolist()
    if values.dtype.kind == "m":
        return np.where(np.isnat(values), "NaT", values.astype("i8").astype(object)).tolist()
    return values.tolist()
