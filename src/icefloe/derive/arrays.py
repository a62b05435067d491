"""The input arrays of derived arrays, read from one version of a repository."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe import cf
from icefloe._internal.paths import ROOT, get_parent, join
from icefloe._internal.warnings import ignore_warnings
from icefloe.core.fingerprints import Lanes, fingerprint_grid, hash_bytes
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.format.manifest import NO_ETAG, VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.session import Session

_DECODING = (
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
    "_Unsigned",
    "units",
    "calendar",
    "dtype",
)
_DURATIONS = ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")


@dataclass(frozen=True)
class StoredArray:
    """A stored input array of a derived array: its metadata, chunk references and values."""

    session: Session
    node: NodeSnapshot
    document: Mapping[str, Any]

    @property
    def path(self) -> str:
        """The path of the array."""
        return self.node.path

    @property
    def group(self) -> str:
        """The path of the group that contains the array."""
        return get_parent(self.path) or ROOT

    @cached_property
    def dims(self) -> tuple[str, ...]:
        """The dimension names of the array. As in xarray, unnamed dimensions are called `dim_0`, `dim_1`,
        ...
        """
        names = self.document.get("dimension_names") or [None] * len(self.shape)
        return tuple(f"dim_{axis}" if name is None else name for axis, name in enumerate(names))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells along each dimension."""
        return tuple(self.document["shape"])

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes of the array, as stored."""
        return dict(self.document.get("attributes") or {})

    @cached_property
    def decoded_attributes(self) -> dict[str, Any]:
        """The attributes of the array, as xarray decodes them: `_FillValue` is a number, not an encoded
        string.
        """
        attributes = dict(self.attributes)
        fill = cf.decode_fill_value(attributes.pop("_FillValue", None), self.zarr.dtype)
        return (
            attributes
            if fill is None
            else {**attributes, "_FillValue": fill if isinstance(fill, str) else fill.item()}
        )

    @cached_property
    def zarr(self) -> Any:
        """The Zarr array from which values are read."""
        with ignore_warnings():
            return zarr.open_array(self.session.store, path=self.path, mode="r")

    @cached_property
    def edges(self) -> tuple[NDArray[np.int64], ...]:
        """The chunk boundaries along each dimension: the first cell of each chunk, and the end of the
        array.
        """
        given = self.document["chunk_grid"]["configuration"]
        sizes = given["chunk_shape"] if "chunk_shape" in given else given["chunk_shapes"]
        return tuple(_expand_edges(each, length) for each, length in zip(sizes, self.shape, strict=True))

    @cached_property
    def refs(self) -> ArrayManifest:
        """The references to all chunks of the array, including uncommitted chunks."""
        return self.session._workspace.refs(self.node)

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks along each dimension."""
        return tuple(len(each) - 1 for each in self.edges)

    def fingerprints(self) -> Lanes:
        """Return the fingerprint of each chunk, which changes whenever the content of the chunk changes."""
        refs = self.refs
        inside = (refs.coords < np.array(self.grid, np.uint32)).all(axis=1)
        return fingerprint_grid(refs if inside.all() else refs.take(inside), self.grid)

    @property
    def has_unchecked_references(self) -> bool:
        """True if any virtual chunk has no checksum, so that changes to it go unnoticed."""
        refs = self.refs
        unchecked = (refs.etag_codes == NO_ETAG) & (refs.last_modified == 0)
        return bool(((refs.kind == VIRTUAL) & unchecked).any())

    def meaning(self, *, all_attributes: bool) -> Lanes:
        """Hash the metadata that determines how the array is decoded, optionally with all attributes."""
        attributes = self.attributes
        relevant = attributes if all_attributes else {key: attributes.get(key) for key in _DECODING}
        keys = ("data_type", "codecs", "fill_value", "chunk_key_encoding", "storage_transformers")
        chunks = self.document["chunk_grid"]["configuration"].get("chunk_shape")
        described = [{key: self.document.get(key) for key in keys}, relevant, self.dims, chunks]
        return hash_bytes(json.dumps(described, sort_keys=True, default=str).encode())

    @cached_property
    def coordinates(self) -> dict[str, StoredArray]:
        """The one-dimensional coordinate arrays of the dimensions that have one."""
        found = {dim: find_array(self.session, join(self.group, dim)) for dim in self.dims if "/" not in dim}
        return {
            dim: each
            for dim, each in found.items()
            if each is not None and each.dims == (dim,) and each.shape == (self.shape[self.dims.index(dim)],)
        }

    @cached_property
    def auxiliary(self) -> dict[str, StoredArray]:
        """The auxiliary coordinate arrays that the attributes `coordinates` and `grid_mapping` name."""
        names = " ".join(str(self.attributes.get(key, "")) for key in ("coordinates", "grid_mapping")).split()
        found = {
            name: find_array(self.session, join(self.group, name))
            for name in names
            if "/" not in name and name not in self.dims and not name.endswith(":")
        }
        return {
            name: each
            for name, each in found.items()
            if each is not None and set(each.dims) <= set(self.dims)
        }

    @cached_property
    def values(self) -> NDArray[Any]:
        """All stored values of the array. Use this only for coordinates, which are small."""
        with ignore_warnings():
            return np.asarray(self.zarr[...])

    @cached_property
    def time_coding(self) -> cf.TimeCoding | None:
        """How the array encodes times; None if it does not contain times."""
        attributes = self.attributes
        return cf.parse_time_coding(attributes.get("units"), attributes.get("calendar", "standard"))

    @cached_property
    def decoded_dtype(self) -> np.dtype[Any]:
        """The dtype of the decoded values."""
        return np.asarray(decode(self, np.zeros((0,) * len(self.shape), self.zarr.dtype))).dtype


class DecodedCoordinates:
    """The decoded coordinates of an input array, read on first use."""

    def __init__(self, array: StoredArray) -> None:
        self._array = array

    @cached_property
    def _all(self) -> dict[str, tuple[tuple[str, ...], NDArray[Any], Mapping[str, Any]]]:
        import xarray as xr

        found: dict[str, tuple[tuple[str, ...], NDArray[Any], Mapping[str, Any]]] = {}
        for name, each in {**self._array.coordinates, **self._array.auxiliary}.items():
            variable = xr.Variable(each.dims, each.values, each.decoded_attributes)
            decoded = xr.conventions.decode_cf_variable(name, variable)
            found[name] = (each.dims, np.asarray(decoded.values), dict(decoded.attrs))
        return found

    def block(
        self, cells: Sequence[tuple[int, int]]
    ) -> dict[str, tuple[tuple[str, ...], NDArray[Any], Mapping[str, Any]]]:
        """Return the decoded coordinates of one block of the array."""
        ranges = {dim: slice(*span) for dim, span in zip(self._array.dims, cells, strict=True)}
        return {
            name: (dims, values[tuple(ranges[dim] for dim in dims)], attributes)
            for name, (dims, values, attributes) in self._all.items()
        }


def decode(array: StoredArray, stored: NDArray[Any]) -> NDArray[Any]:
    """Decode stored values of an input array as `xarray.open_zarr` does."""
    attributes = array.decoded_attributes
    if not _needs_decoding(attributes):
        return stored  # and xarray need not be imported
    import xarray as xr

    variable = xr.Variable(array.dims, stored, attributes)
    return np.asarray(xr.conventions.decode_cf_variable(array.path, variable).values)


def _needs_decoding(attributes: Mapping[str, Any]) -> bool:
    units, fill = str(attributes.get("units", "")), attributes.get("_FillValue")
    if " since " in units or units in _DURATIONS:
        return True
    unchanged = {"units"} if fill == fill else {"units", "_FillValue"}  # NaN needs no masking
    return any(key in attributes for key in _DECODING if key not in unchanged)


def find_array(session: Session, path: str) -> StoredArray | None:
    """Return the array at a path as an input of derived arrays, or None if there is no array."""
    node = session._workspace.node(path)
    if node is None or not isinstance(node.node_data, ArrayNodeData):
        return None
    return StoredArray(session, node, json.loads(node.user_data))


def get_array(session: Session, path: str, what: str) -> StoredArray:
    """Return the array at a path as an input of derived arrays. If it is missing, raise NodeNotFoundError,
    which lists the existing arrays.
    """
    found = find_array(session, path)
    if found is None:
        raise NodeNotFoundError(
            f"{what}: no array {path} at snapshot {session.snapshot_id}",
            kind=ErrorKind.NODE_NOT_FOUND,
        )
    return found


def array_document(
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: Any,
    names: tuple[str, ...],
    attributes: Mapping[str, Any],
    fill: Any = None,
    codec: str | None = None,
) -> dict[str, Any]:
    """Create the `zarr.json` metadata of a derived array, as zarr would write it."""
    from icefloe.ingest.options import make_compressors

    more: dict[str, Any] = {} if codec is None else {"compressors": make_compressors(codec)}
    with ignore_warnings():
        made = zarr.create_array(
            MemoryStore(),
            shape=shape,
            chunks=tuple(max(1, each) for each in chunks),
            dtype=dtype,
            dimension_names=names,
            attributes=dict(attributes),
            fill_value=fill,
            **more,
        )
    text = made.metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
    found: dict[str, Any] = json.loads(text)
    return found


def check_regular(array: StoredArray) -> None:
    """Raise InvalidInputError if the type of an input array's chunk grid is not supported."""
    if array.document["chunk_grid"]["name"] not in ("regular", "rectilinear"):
        raise InvalidInputError(
            f"{array.path} has a chunk grid of kind {array.document['chunk_grid']['name']}; inputs need a"
            " regular or rectilinear grid",
            ErrorKind.INVALID_ARRAY_METADATA,
        )


def _expand_edges(sizes: Any, length: int) -> NDArray[np.int64]:
    if isinstance(sizes, int):
        return np.append(np.arange(0, length, max(sizes, 1), dtype=np.int64), length)
    runs = [[each, 1] if isinstance(each, int) else each for each in sizes]
    lengths = np.concatenate([np.full(count, size, np.int64) for size, count in runs])
    edges = np.minimum(np.concatenate([[0], np.cumsum(lengths)]), length)
    return np.asarray(edges[: int(np.searchsorted(edges, length)) + 1], np.int64)
