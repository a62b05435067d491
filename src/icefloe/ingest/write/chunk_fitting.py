"""Chunks of files as those of an array with more dimensions, or smaller chunks: the bytes are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import dropwhile
from typing import Any

import numpy as np

from icefloe.ingest.combine.pieces import PieceArray
from icefloe.virtual.codecs import GRIB, TIFF

_KNOW_DIMENSIONS = ("sharding_indexed", "numcodecs.zfpy", "numcodecs.pcodec")
"""Codecs whose bytes tell how many dimensions there are."""
_KNOW_ROWS = (GRIB, TIFF)
"""Codecs for which the last dimensions are those of a grid."""


def fitted(document: Mapping[str, Any], dims: Sequence[str], chunks: Sequence[int]) -> dict[str, Any] | None:
    """The zarr.json of a file's array, as one with these dimensions and chunks, or with its own if need be.

    None where dimensions do not allow it.
    """
    wide = widened(document, dims)
    if wide is None or not is_plain(wide) or not _is_run(chunks_of(wide), chunks):
        return wide
    return with_chunks(wide, chunks)


def widened(document: Mapping[str, Any], dims: Sequence[str]) -> dict[str, Any] | None:
    """The zarr.json of an array with more dimensions, along which a chunk has one cell; None: it has none."""
    own, codecs = list(document["dimension_names"]), document["codecs"]
    names = [codec["name"] for codec in codecs]
    if own == list(dims):
        return dict(document)
    if [dim for dim in dims if dim in own] != own or not set(names).isdisjoint(_KNOW_DIMENSIONS):
        return None
    if not set(names).isdisjoint(_KNOW_ROWS) and list(dims[len(dims) - len(own) :]) != own:
        return None
    chunks = dict(zip(own, chunks_of(document), strict=True))
    shape = dict(zip(own, document["shape"], strict=True))
    wide = {
        **document,
        "dimension_names": list(dims),
        "shape": [shape.get(dim, 1) for dim in dims],
        "codecs": [_turned(codec, own, dims) for codec in codecs],
    }
    return with_chunks(wide, [chunks.get(dim, 1) for dim in dims])


def _turned(codec: Mapping[str, Any], own: Sequence[str], dims: Sequence[str]) -> Mapping[str, Any]:
    if codec["name"] != "transpose":
        return codec
    new = [axis for axis, dim in enumerate(dims) if dim not in own]
    order = [*new, *(dims.index(own[axis]) for axis in codec["configuration"]["order"])]
    return {"name": "transpose", "configuration": {"order": order}}


def common_chunks(documents: Sequence[Mapping[str, Any]], array: PieceArray) -> tuple[int, ...] | None:
    """Chunks that all files can be cut into, and that they begin with, where theirs are plain bytes."""
    if not all(map(is_plain, documents)):
        return None
    sizes = np.array([chunks_of(document) for document in documents if 0 not in document["shape"]], np.int64)
    if not len(sizes):
        return None
    found = np.gcd.reduce(np.concatenate([sizes, array.pieces.starts]), axis=0)
    common = tuple(int(size) for size in found)
    return common if all(_is_run(size, common) for size in sizes.tolist()) else None


def chunks_of(document: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of the chunks."""
    return tuple(document["chunk_grid"]["configuration"]["chunk_shape"])


def with_chunks(document: Mapping[str, Any], chunks: Sequence[int]) -> dict[str, Any]:
    """The same with chunks of another shape."""
    return {**document, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}}


def is_plain(document: Mapping[str, Any]) -> bool:
    """Whether a part of the bytes of a chunk is a part of its cells."""
    return [codec["name"] for codec in document["codecs"]] == ["bytes"]


def _is_run(chunk: Sequence[int], part: Sequence[int]) -> bool:
    """Whether a chunk is some parts of a shape one after the other, each of them in one piece."""
    if any(size % cut for size, cut in zip(chunk, part, strict=True)):
        return False
    cut = dropwhile(lambda pair: pair[1] == 1, zip(chunk, part, strict=True))
    return all(size == whole for size, whole in list(cut)[1:])
