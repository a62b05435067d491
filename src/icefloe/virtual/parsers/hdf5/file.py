"""HDF5 and NetCDF-4: datasets become variables, their chunks references.

The file's own index tells where chunks are; nothing is decoded but the values that are loaded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import IcechunkError
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.decoders.hdf5 import DECODERS, Chunk
from icefloe.virtual.errors import DAMAGE, CannotVirtualizeError, RefusalReason, Refused, RefusedVariable
from icefloe.virtual.parsers import INLINE_BYTES, ParseOptions
from icefloe.virtual.parsers.hdf5.dimensions import (
    HIDDEN_ATTRIBUTES,
    Dimensions,
    UnlimitedDimensions,
    is_bare_dimension,
    shown_name,
)
from icefloe.virtual.parsers.hdf5.encoding import (
    CHECKSUM_BYTES,
    FLETCHER32,
    TEXTS,
    Filter,
    filters_of,
    flags_of,
    pipeline,
    reencoded,
    stored_type,
)
from icefloe.virtual.sources import SourceFile
from icefloe.virtual.variables import ChunkReferences, Values, VirtualVariable, loaded_variable, run_of_chunks
from icefloe.virtual.zarr_metadata import bytes_codec, fill_value_json, json_attributes, zarr_type

if TYPE_CHECKING:
    import h5py

_UNREAD: Final = HIDDEN_ATTRIBUTES - {"CLASS", "NAME", "DIMENSION_LIST", "_Netcdf4Coordinates"}
"""Attributes of the netCDF library that are of no use here; some are as long as a file has variables."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A dataset of an open file that became a variable."""

    dataset: h5py.Dataset
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    """Longer than the dataset's own where another variable made an unlimited dimension longer."""
    attributes: Mapping[str, Any]
    """See `attributes_of`."""


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """A group of an open file."""

    variables: Mapping[str, Member]
    attributes: Mapping[str, Any]
    is_whole: bool
    """Whether everything in it became a variable or a group, under its own name."""


Witness: TypeAlias = Callable[[Members], None]
"""Is shown the group that was parsed, while the file is open."""


def parse_hdf5(file: SourceFile, options: ParseOptions) -> VirtualDataset:
    """The dataset of an HDF5 file, all chunks in source 0."""
    import h5py

    place = file.location if file.local_path is None else file.local_path
    try:
        opened = _opened(file)
    except OSError as error:
        raise CannotVirtualizeError(f"{place} cannot be read as HDF5: {error}") from None
    with opened:
        root = opened if options.group is None else _member(opened, options.group)
        if not isinstance(root, h5py.Group):
            names = ", ".join(name for name, each in opened.items() if isinstance(each, h5py.Group))
            raise CannotVirtualizeError(f"{place} has no group {options.group!r}; it has {names or 'none'}")
        try:
            parser = _Parser(file, options)
            dataset = parser.group(root, "")
            if options.witness is not None:
                options.witness(parser.members)
            return dataset
        except IcechunkError:
            raise
        except DAMAGE as error:
            raise CannotVirtualizeError(
                f"{place} is damaged, or was changed while it was parsed: {error}"
            ) from None


def _opened(file: SourceFile) -> h5py.File:
    import h5py

    if file.local_path is not None:
        # HDF5 refuses a path that this process has open with other locking flags, as a notebook may have.
        with suppress(OSError):
            return h5py.File(file.local_path, "r", locking=False)
    return h5py.File(file.as_binary(), "r")


def _member(group: h5py.Group, name: str) -> Any:
    """What a hard or soft link leads to; None for links into other files, and for links to nothing."""
    from h5py import h5l

    try:
        link = group.id.links.get_info(name.encode("utf-8", "surrogateescape"))
    except (KeyError, RuntimeError):
        return None
    return None if link.type == h5l.TYPE_EXTERNAL else group.get(name)


class _Parser:
    def __init__(self, file: SourceFile, options: ParseOptions) -> None:
        self._file = file
        self._options = options
        self._above: list[int] = []
        self._unlimited = UnlimitedDimensions()
        self.members = Members({}, {}, False)
        """Those of the group that was parsed last."""

    def group(self, group: h5py.Group, path: str) -> VirtualDataset:
        import h5py

        dimensions = Dimensions()
        variables: dict[str, VirtualVariable] = {}
        groups: dict[str, VirtualDataset] = {}
        refused: list[Refused] = []
        members: dict[str, Member] = {}
        address = h5py.h5o.get_info(group.id).addr
        self._above.append(address)
        for name in group:
            member = _member(group, name)
            shown = shown_name(name)
            full = f"{path}/{shown}" if path else shown
            if self._options.drops(full):
                continue
            if isinstance(member, h5py.Dataset):
                attributes = attributes_of(member)
                if is_bare_dimension(attributes):
                    continue
                try:
                    members[name], variables[shown] = self._variable(member, attributes, full, dimensions)
                except RefusedVariable as refusal:
                    refused.append(refusal.named(shown))
            elif isinstance(member, h5py.Group):
                if h5py.h5o.get_info(member.id).addr not in self._above:  # links can make circles
                    groups[shown] = self.group(member, full)
            elif member is None:
                refused.append(
                    RefusedVariable(
                        RefusalReason.EXTERNAL_STORAGE, "it is a link to another file, or to nothing"
                    ).named(shown)
                )
        self._above.pop()
        own = attributes_of(group)
        self.members = Members(members, own, not refused and members.keys() == variables.keys())
        return VirtualDataset(variables, (), json_attributes(_shown(own)), groups, tuple(refused))

    def _variable(
        self, dataset: h5py.Dataset, stored: Mapping[str, Any], path: str, dimensions: Dimensions
    ) -> tuple[Member, VirtualVariable]:
        if dataset.shape is None:
            raise RefusedVariable(RefusalReason.UNSUPPORTED_LAYOUT, "it has no values, not even none")
        dtype, inner = stored_type(dataset)
        names = dimensions.of(dataset, stored, inner)
        attributes = json_attributes({**_shown(stored), **flags_of(dataset.dtype, stored)}, dtype)
        shape = (*self._unlimited.shape_of(dataset, stored), *inner)
        member = Member(dataset, names, shape, stored)
        if dtype.kind == "T":
            return member, loaded_variable(names, _filled_up(_texts(dataset), shape, ""), attributes)
        zarr_type(dtype)
        if self._options.loads(path, names, dataset.size * dtype.itemsize) and _readable(dataset):
            values = _filled_up(np.asarray(dataset[()], dtype), shape, dataset.fillvalue)
            return member, loaded_variable(names, values, attributes)
        return member, self._referred(dataset, dtype, shape, inner, names, attributes)

    def _referred(
        self,
        dataset: h5py.Dataset,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        inner: tuple[int, ...],
        names: tuple[str, ...],
        attributes: dict[str, Any],
    ) -> VirtualVariable:
        from h5py import h5d

        if dataset.external is not None or dataset.is_virtual:
            raise RefusedVariable(RefusalReason.EXTERNAL_STORAGE, "its values are in other files")
        layout = dataset.id.get_create_plist().get_layout()
        filters = filters_of(dataset)
        if layout == h5d.CHUNKED:
            chunk_shape = (*dataset.chunks, *inner)
            filters, chunks = _chunked(dataset, filters, Chunk(chunk_shape, dtype))
            chunks = chunks.with_inner(len(inner))
        elif layout == h5d.CONTIGUOUS:
            chunk_shape = self._options.chunks_of_contiguous(shape, dtype.itemsize)
            chunks = _contiguous(dataset, shape, dtype, chunk_shape)
        else:
            chunk_shape = tuple(max(size, 1) for size in shape)
            chunks = _compact(dataset)
        self._check_ends(dataset, chunks)
        return VirtualVariable(
            names,
            shape,
            dtype.newbyteorder("="),
            chunk_shape,
            (bytes_codec(dtype), *pipeline(filters)),
            _fill_value(dataset, dtype),
            attributes,
            chunks,
        )

    def _check_ends(self, dataset: h5py.Dataset, chunks: ChunkReferences) -> None:
        ends = chunks.offsets + chunks.lengths
        if len(ends) and ends.max() > self._file.size_bytes:
            raise CannotVirtualizeError(
                f"{self._file.location}: {dataset.name} reaches to byte {ends.max()}, and the file has "
                f"{self._file.size_bytes}; it is cut off"
            )


def _readable(dataset: h5py.Dataset) -> bool:
    """Whether the HDF5 library here has the filters of a dataset; codecs can decode what it cannot."""
    from h5py import h5z

    properties = dataset.id.get_create_plist()
    numbers = [properties.get_filter(place)[0] for place in range(properties.get_nfilters())]
    return all(h5z.filter_avail(number) for number in numbers)


def _filled_up(values: Values, shape: tuple[int, ...], fill: Any) -> Values:
    """Values with as much of the fill value behind them as a shape has more."""
    if values.shape == shape:
        return values
    filled = np.full(shape, fill, values.dtype)
    filled[tuple(slice(size) for size in values.shape)] = values
    return filled


def _texts(dataset: h5py.Dataset) -> Values:
    if dataset.size * 16 > INLINE_BYTES:
        raise RefusedVariable(
            RefusalReason.VARIABLE_LENGTH, "its texts differ in length, and are too many to be taken along"
        )
    try:
        return np.asarray(dataset.asstr()[()], dtype=TEXTS)
    except UnicodeDecodeError as error:
        raise RefusedVariable(RefusalReason.VARIABLE_LENGTH, f"its texts are not UTF-8: {error}") from None


def _fill_value(dataset: h5py.Dataset, dtype: np.dtype[Any]) -> Any:
    """Of chunks that were never written. A value that is an array may have several: only one will do."""
    values = np.asarray(dataset.fillvalue)
    flat = values.reshape(-1)
    if values.ndim and (flat != flat[0]).any():
        raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, "its fill value is an array of different ones")
    return fill_value_json(flat[0] if values.ndim else values[()], dtype)


def _chunked(
    dataset: h5py.Dataset, filters: list[Filter], chunk: Chunk
) -> tuple[list[Filter], ChunkReferences]:
    """The chunks that were written, and the filters all of them have."""
    rank = len(dataset.shape)
    numbers = array("Q")
    # One walk of the index, where asking for each chunk is one walk each.
    dataset.id.chunk_iter(
        lambda found: numbers.extend((*found.chunk_offset, found.byte_offset, found.size, found.filter_mask))
    )
    table = np.frombuffer(numbers, np.uint64).reshape(-1, rank + 3)
    coords, rows = table[:, :rank] // np.array(dataset.chunks, np.uint64), table[:, rank:]
    # A file may keep chunks beyond the present shape for a while after it was cut down.
    grid = -(-np.array(dataset.shape) // np.array(dataset.chunks))
    inside = (coords < grid.astype(np.uint64)).all(axis=1)
    coords, rows = coords[inside], rows[inside]
    masks = np.unique(rows[:, 2])
    if len(masks) == 1:
        filters = [each for each in filters if not int(masks[0]) >> each.bit & 1]
    odd = rows[:, 2] != 0 if len(masks) > 1 else np.zeros(len(rows), np.bool_)
    # Few chunks are taken along, encoded by all filters, so that codecs will do that everybody has.
    few = np.count_nonzero(odd) * chunk.size_bytes <= INLINE_BYTES and all(each.encodes for each in filters)
    if odd.any() and not few and (compressor := _compressor(filters)) is not None:
        filters[compressor] = filters[compressor].skipping()
        odd = ~_told_by_size(rows, filters, compressor, chunk)
    inline = _inlined(dataset, coords[odd], filters, chunk)
    plain = ~odd
    return filters, ChunkReferences.of(coords[plain], rows[plain, 0], rows[plain, 1], inline=inline)


def _compressor(filters: list[Filter]) -> int | None:
    """The filter that is skipped for chunks it would have made larger: the last, but for checksums."""
    for place in reversed(range(len(filters))):
        if filters[place].number != FLETCHER32:
            summed = any(each.number == FLETCHER32 for each in filters[:place])
            return place if filters[place].number in DECODERS and not summed else None
    return None


def _told_by_size(
    rows: NDArray[np.uint64], filters: list[Filter], compressor: int, chunk: Chunk
) -> NDArray[np.bool_]:
    """Which chunks only the compressor may have skipped, as can be told by their size."""
    tail = CHECKSUM_BYTES * (len(filters) - compressor - 1)
    skipped = rows[:, 2] == np.uint64(1 << filters[compressor].bit)
    whole = rows[:, 1] == np.uint64(chunk.size_bytes + tail)
    found: NDArray[np.bool_] = (skipped & whole) | ((rows[:, 2] == 0) & ~whole)
    return found


def _inlined(
    dataset: h5py.Dataset, coords: NDArray[np.uint64], filters: list[Filter], chunk: Chunk
) -> dict[tuple[int, ...], bytes]:
    """Chunks that some filters skipped, encoded by all of them."""
    if len(coords) * chunk.size_bytes > INLINE_BYTES:
        raise RefusedVariable(
            RefusalReason.MIXED_FILTERS,
            f"{len(coords)} chunks are stored without some of its filters, more than can be taken along",
        )
    inline = {}
    for place in coords.tolist():  # few: see above
        mask, data = dataset.id.read_direct_chunk(tuple(np.multiply(place, dataset.chunks).tolist()))
        inline[tuple(place)] = reencoded(data, mask, filters, chunk)
    return inline


def _contiguous(
    dataset: h5py.Dataset, shape: tuple[int, ...], dtype: np.dtype[Any], chunk_shape: tuple[int, ...]
) -> ChunkReferences:
    start = dataset.id.get_offset()
    if start is None or not dataset.size:
        return ChunkReferences.of(np.empty((0, len(shape))), [], [])
    return run_of_chunks(start, shape, chunk_shape, dtype.itemsize)


def _compact(dataset: h5py.Dataset) -> ChunkReferences:
    values = np.asarray(dataset[()])
    nothing = np.empty((0, values.ndim))
    if not values.size:
        return ChunkReferences.of(nothing, [], [])
    return ChunkReferences.of(nothing, [], [], inline={(0,) * values.ndim: values.tobytes()})


def _shown(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that are not the netCDF library's own, nor places in the file."""
    import h5py

    return {
        name: "" if isinstance(value, h5py.Empty) else value
        for name, value in attributes.items()
        if name not in HIDDEN_ATTRIBUTES and not isinstance(value, h5py.Reference | h5py.RegionReference)
    }


def attributes_of(thing: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    """All attributes that numpy has a type for; None for those of the netCDF library that nobody reads."""
    found: dict[str, Any] = {}
    attributes = thing.attrs
    for name in attributes:
        try:
            found[name] = None if name in _UNREAD else attributes[name]
        except (OSError, TypeError, KeyError):
            if name in HIDDEN_ATTRIBUTES:
                raise
            continue  # of a type numpy has no idea of: opaque, say
    return found
