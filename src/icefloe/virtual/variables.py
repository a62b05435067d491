"""Variables of virtual datasets: Zarr arrays whose chunks are stored in existing files."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.printable import escape_control
from icefloe.cf import TimeCoding, get_fill_values, parse_time_coding
from icefloe.virtual.zarr_metadata import configure_bytes, encode_data_type, to_json_fill_value

Values: TypeAlias = NDArray[Any]
_TIME_CODING: Final = ("units", "calendar")


@dataclass(frozen=True, slots=True, eq=False)
class ChunkReferences:
    """The chunk references of a virtual variable, stored as columns. Unlisted chunks read as the
    fill value.
    """

    coords: NDArray[np.uint32]
    """Chunk grid indices, with shape (n, dimensions)."""
    sources: NDArray[np.uint32]
    """For each chunk, the index of its file in the sources of the dataset."""
    offsets: NDArray[np.uint64]
    """For each chunk, its offset in the file."""
    lengths: NDArray[np.uint64]
    """For each chunk, its length in bytes."""
    inline_coords: NDArray[np.uint32]
    """Chunk grid indices of the chunks stored inline, with shape (m, dimensions)."""
    inline: tuple[bytes, ...]
    """The encoded bytes of each inline chunk."""

    @staticmethod
    def of(
        coords: Any,
        offsets: Any,
        lengths: Any,
        sources: Any = None,
        inline: Mapping[tuple[int, ...], bytes] | None = None,
    ) -> ChunkReferences:
        """Create the chunk references of a virtual variable from columns.

        Parameters
        ----------
        coords
            Chunk grid indices, with shape (n, dimensions).
        offsets
            The offset of each chunk in its file.
        lengths
            The length of each chunk in bytes.
        sources
            The source index of each chunk. By default, all chunks are in the first source.
        inline
            The bytes of inline chunks, by chunk grid index.

        Returns
        -------
        ChunkReferences
            The references.
        """
        coords = np.ascontiguousarray(coords, np.uint32)
        inline = inline or {}
        return ChunkReferences(
            coords,
            np.zeros(len(coords), np.uint32) if sources is None else np.asarray(sources, np.uint32),
            np.asarray(offsets, np.uint64),
            np.asarray(lengths, np.uint64),
            np.array(list(inline), np.uint32).reshape(len(inline), coords.shape[1]),
            tuple(inline.values()),
        )

    def __len__(self) -> int:
        return len(self.coords) + len(self.inline)

    def with_inner(self, dimensions: int) -> ChunkReferences:
        """Append dimensions to the chunk references of a virtual variable, with a single chunk along each.

        Parameters
        ----------
        dimensions
            The number of dimensions to add.

        Returns
        -------
        ChunkReferences
            The new references.
        """
        if not dimensions:
            return self
        wider = ((0, 0), (0, dimensions))
        return replace(
            self, coords=np.pad(self.coords, wider), inline_coords=np.pad(self.inline_coords, wider)
        )

    def shift(self, axis: int, chunks: int, sources: int) -> ChunkReferences:
        """Add offsets to the chunk indices along one axis of a virtual variable, and to its source indices.

        Parameters
        ----------
        axis
            The axis along which chunk indices are shifted.
        chunks
            The offset to add to chunk indices.
        sources
            The offset to add to source indices.

        Returns
        -------
        ChunkReferences
            The new references.
        """
        step = np.zeros(self.coords.shape[1], np.uint32)
        if chunks:
            step[axis] = chunks
        return replace(
            self,
            coords=self.coords + step,
            sources=self.sources + np.uint32(sources),
            inline_coords=self.inline_coords + step,
        )

    def repeat(self, axis: int, count: int) -> ChunkReferences:
        """Insert a dimension into the chunk references of a virtual variable, and repeat all chunks along it.

        Parameters
        ----------
        axis
            The position of the new dimension.
        count
            The number of chunks along the new dimension.

        Returns
        -------
        ChunkReferences
            The new references.
        """

        def wider(coords: NDArray[np.uint32]) -> NDArray[np.uint32]:
            places = np.repeat(np.arange(count, dtype=np.uint32), len(coords))
            return np.insert(np.tile(coords, (count, 1)), axis, places, axis=1)

        return ChunkReferences(
            wider(self.coords),
            np.tile(self.sources, count),
            np.tile(self.offsets, count),
            np.tile(self.lengths, count),
            wider(self.inline_coords),
            self.inline * count,
        )

    def divide(self, parts: tuple[int, ...]) -> ChunkReferences:
        """Split each chunk of a virtual variable into equal parts that are contiguous in the file.

        Parameters
        ----------
        parts
            The number of parts along each dimension.

        Returns
        -------
        ChunkReferences
            The new references.
        """
        count = math.prod(parts)
        places = np.indices(parts, np.uint32).reshape(len(parts), count).T

        def finer(coords: NDArray[np.uint32]) -> NDArray[np.uint32]:
            first = coords[:, None] * np.array(parts, np.uint32)
            return np.asarray(first + places, np.uint32).reshape(-1, len(parts))

        sizes = self.lengths // np.uint64(count)
        offsets = self.offsets[:, None] + sizes[:, None] * np.arange(count, dtype=np.uint64)
        pieces = [
            data[start : start + len(data) // count]
            for data in self.inline
            for start in range(0, len(data), max(1, len(data) // count))
        ]
        return ChunkReferences(
            finer(self.coords),
            np.repeat(self.sources, count),
            np.asarray(offsets, np.uint64).reshape(-1),
            np.repeat(sizes, count),
            finer(self.inline_coords),
            tuple(pieces),
        )

    def clip(self, grid: tuple[int, ...]) -> ChunkReferences:
        """Drop the chunk references of a virtual variable that lie outside a chunk grid.

        Parameters
        ----------
        grid
            The number of chunks along each dimension.

        Returns
        -------
        ChunkReferences
            The new references.
        """
        rows = (self.coords < grid).all(axis=1)
        kept = (self.inline_coords < grid).all(axis=1)
        return ChunkReferences(
            self.coords[rows],
            self.sources[rows],
            self.offsets[rows],
            self.lengths[rows],
            self.inline_coords[kept],
            tuple(self.inline[row] for row in np.flatnonzero(kept).tolist()),
        )

    @staticmethod
    def concat(parts: Collection[ChunkReferences]) -> ChunkReferences:
        """Concatenate the chunk references of several virtual variables that share one chunk grid.

        Parameters
        ----------
        parts
            Chunk references with the same number of dimensions.

        Returns
        -------
        ChunkReferences
            The new references.
        """
        return ChunkReferences(
            np.concatenate([part.coords for part in parts]),
            np.concatenate([part.sources for part in parts]),
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.inline_coords for part in parts]),
            tuple(data for part in parts for data in part.inline),
        )


@dataclass(frozen=True, slots=True, eq=False)
class VirtualVariable:
    """A virtual variable: a Zarr array with chunk references or with loaded values."""

    dimensions: tuple[str, ...]
    """The dimension names."""
    shape: tuple[int, ...]
    """The length of each dimension."""
    dtype: np.dtype[Any]
    """The data type in native byte order. The codecs describe the stored byte order."""
    chunk_shape: tuple[int, ...]
    """The chunk length along each dimension."""
    codecs: tuple[Mapping[str, Any], ...]
    """The codec pipeline, as in a Zarr version 3 zarr.json."""
    fill_value: Any
    """The fill value for missing chunks, as in zarr.json."""
    attributes: Mapping[str, Any]
    """The attributes, as in zarr.json."""
    chunks: ChunkReferences | Values
    """Chunk references or loaded values."""

    @property
    def loaded(self) -> bool:
        """True if the values of a virtual variable were loaded."""
        return isinstance(self.chunks, np.ndarray)

    @property
    def references(self) -> ChunkReferences:
        """The chunk references of a virtual variable. Raises TypeError if its values were loaded instead."""
        if isinstance(self.chunks, np.ndarray):
            raise TypeError("the variable has no references, because its values were loaded")
        return self.chunks

    @property
    def values(self) -> Values:
        """The loaded values of a virtual variable. Raises TypeError if it has chunk references instead."""
        if not isinstance(self.chunks, np.ndarray):
            raise TypeError(
                "the values of the variable were not loaded; read them with VirtualDataset.to_xarray"
            )
        return self.chunks

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """The shape of a virtual variable's chunk grid."""
        return tuple(
            -(-size // max(chunk, 1)) for size, chunk in zip(self.shape, self.chunk_shape, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """The size in bytes of a virtual variable's decoded values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __repr__(self) -> str:
        from icefloe._internal.amounts import counted

        sizes = ", ".join(f"{name}: {size}" for name, size in zip(self.dimensions, self.shape, strict=True))
        where = "loaded" if isinstance(self.chunks, np.ndarray) else counted(len(self.chunks), "chunk")
        return escape_control(f"<VirtualVariable ({sizes}) {self.dtype} {where}>")


def make_loaded_variable(
    dimensions: tuple[str, ...], values: Values, attributes: Mapping[str, Any]
) -> VirtualVariable:
    """Create a virtual variable from values in memory, stored as a single chunk."""
    texts = values.dtype.kind == "T"
    dtype = values.dtype if texts else values.dtype.newbyteorder("=")
    compressor = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
    return VirtualVariable(
        dimensions,
        values.shape,
        dtype,
        tuple(max(size, 1) for size in values.shape),
        ({"name": "vlen-utf8"} if texts else configure_bytes(dtype), compressor),
        "" if texts else to_json_fill_value(None, dtype),
        attributes,
        values.astype(dtype),
    )


def make_document(variable: VirtualVariable) -> dict[str, Any]:
    """Build the zarr.json of a virtual variable as a dictionary."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(variable.shape),
        "data_type": encode_data_type(variable.dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(variable.chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": variable.fill_value,
        "codecs": [dict(codec) for codec in variable.codecs],
        "attributes": dict(variable.attributes),
        "dimension_names": list(variable.dimensions),
        "storage_transformers": [],
    }


def with_dimension(variable: VirtualVariable, dimension: str) -> VirtualVariable:
    """Insert a leading dimension of length 1 into a virtual variable."""
    if dimension in variable.dimensions:
        raise ValueError(f"the variable already has a dimension {dimension!r}")
    chunks = variable.chunks
    codecs = variable.codecs
    if isinstance(chunks, np.ndarray):
        return make_loaded_variable(
            (dimension, *variable.dimensions), chunks[np.newaxis], variable.attributes
        )
    if codecs and codecs[0]["name"] == "transpose":
        order = [0, *(axis + 1 for axis in codecs[0]["configuration"]["order"])]
        codecs = ({"name": "transpose", "configuration": {"order": order}}, *codecs[1:])
    return replace(
        variable,
        dimensions=(dimension, *variable.dimensions),
        shape=(1, *variable.shape),
        chunk_shape=(1, *variable.chunk_shape),
        codecs=codecs,
        chunks=replace(
            chunks,
            coords=np.insert(chunks.coords, 0, 0, axis=1),
            inline_coords=np.insert(chunks.inline_coords, 0, 0, axis=1),
        ),
    )


def make_contiguous_chunks(
    start: int, shape: tuple[int, ...], chunk_shape: tuple[int, ...], itemsize: int
) -> ChunkReferences:
    """Create chunk references for a virtual variable whose values are contiguous in its file."""
    grid = tuple(size // chunk for size, chunk in zip(shape, chunk_shape, strict=True))
    count, length = math.prod(grid), math.prod(chunk_shape) * itemsize
    coords = np.indices(grid, np.uint32).reshape(len(grid), count).T
    offsets = start + length * np.arange(count, dtype=np.uint64)
    return ChunkReferences.of(coords, offsets, np.full(count, length, np.uint64))


def reencode_times(
    existing: Mapping[str, Mapping[str, Any]], variables: Mapping[str, VirtualVariable]
) -> tuple[dict[str, VirtualVariable], list[tuple[str, str]]]:
    """Convert the loaded times of virtual variables to the units of existing variables.

    Parameters
    ----------
    existing
        The attributes of existing variables, by name.
    variables
        The variables to convert, from another file.

    Returns
    -------
    tuple
        The variables, and the names of bounds that were not converted because they are not loaded, each with
        the name of its time variable.
    """
    found = dict(variables)
    left: list[tuple[str, str]] = []
    for name, variable in variables.items():
        theirs = existing.get(name, {})
        if theirs.get("units") == variable.attributes.get("units") or not variable.loaded:
            continue
        if _time_coding(theirs) == _time_coding(variable.attributes):
            continue  # equivalent units with different spelling: the attribute comparison reports them
        times = reencode_like(variable, theirs)
        if times is None:
            continue
        found[name] = times
        for bounds in (variable.attributes.get(key) for key in ("bounds", "climatology")):
            edges = variables.get(str(bounds))
            if edges is None or "units" in edges.attributes:
                continue  # bounds with their own units are converted like any time variable
            coding = {key: variable.attributes[key] for key in _TIME_CODING if key in variable.attributes}
            timed = replace(edges, attributes={**edges.attributes, **coding})
            moved = reencode_like(timed, theirs) if edges.loaded else None
            if moved is None:
                left.append((str(bounds), name))
            else:
                found[str(bounds)] = replace(moved, attributes=edges.attributes)
    return found, left


def reencode_like(variable: VirtualVariable, attributes: Mapping[str, Any]) -> VirtualVariable | None:
    """Convert the loaded times of a virtual variable to other units. Return None if this is not possible."""
    ours, theirs = _time_coding(variable.attributes), _time_coding(attributes)
    is_packed = any(name in variable.attributes for name in ("scale_factor", "add_offset"))
    if ours is None or theirs is None or is_packed or variable.dtype.kind not in "iuf":
        return None
    values = variable.values
    missing = np.zeros(values.shape, np.bool_)
    for fill in get_fill_values(variable.attributes, values.dtype):
        missing |= values == fill
    converted = ours.convert(values, missing, theirs)
    if converted is None:
        return None
    kept = {name: value for name, value in variable.attributes.items() if name not in _TIME_CODING}
    coding = {name: attributes[name] for name in _TIME_CODING if name in attributes}
    return replace(variable, chunks=converted, attributes={**kept, **coding})


def _time_coding(attributes: Mapping[str, Any]) -> TimeCoding | None:
    return parse_time_coding(attributes.get("units"), attributes.get("calendar"))
