"""HDF5 and NetCDF-4: datasets become variables, their chunks references.

The file's own index tells where chunks are; nothing is decoded but the values that are loaded.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.hdf5_dimensions import HIDDEN_ATTRIBUTES, Dimensions, is_bare_dimension, shown_name
from icefloe.virtual.hdf5_filters import Filter, filters_of, pipeline, reencoded
from icefloe.virtual.loading import loaded_variable, run_of_chunks
from icefloe.virtual.refusals import CannotVirtualizeError, RefusalReason, Refused, RefusedVariable
from icefloe.virtual.sources import SourceFile
from icefloe.virtual.variables import ChunkReferences, Values, VirtualVariable
from icefloe.virtual.wanted import INLINE_BYTES, Wanted
from icefloe.virtual.zarr_terms import bytes_codec, fill_value_json, json_attributes, zarr_type

if TYPE_CHECKING:
    import h5py

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_STRINGS: Final = np.dtypes.StringDType()


def parse_hdf5(file: SourceFile, wanted: Wanted) -> VirtualDataset:
    """The dataset of an HDF5 file, all chunks in source 0."""
    import h5py

    place = file.location if file.local_path is None else file.local_path
    try:
        opened = h5py.File(file.local_path or file.as_binary(), "r", locking=False)
    except OSError as error:
        raise CannotVirtualizeError(f"{place} cannot be read as HDF5: {error}") from None
    with opened:
        root = opened if wanted.group is None else _member(opened, wanted.group)
        if not isinstance(root, h5py.Group):
            names = ", ".join(name for name, each in opened.items() if isinstance(each, h5py.Group))
            raise CannotVirtualizeError(f"{place} has no group {wanted.group!r}; it has {names or 'none'}")
        try:
            return _Parser(file, wanted).group(root, "")
        except (OSError, RuntimeError) as error:
            raise CannotVirtualizeError(
                f"{place} is damaged, or was changed while it was parsed: {error}"
            ) from None


def _member(group: h5py.Group, name: str) -> Any:
    """What a hard or soft link leads to; None for links into other files, and for links to nothing."""
    import h5py

    if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
        return None
    return group.get(name)


class _Parser:
    def __init__(self, file: SourceFile, wanted: Wanted) -> None:
        self._file = file
        self._wanted = wanted
        self._above: list[int] = []

    def group(self, group: h5py.Group, path: str) -> VirtualDataset:
        import h5py

        dimensions = Dimensions()
        variables: dict[str, VirtualVariable] = {}
        groups: dict[str, VirtualDataset] = {}
        refused: list[Refused] = []
        address = h5py.h5o.get_info(group.id).addr
        self._above.append(address)
        for name in group:
            member = _member(group, name)
            shown = shown_name(name)
            full = f"{path}/{shown}" if path else shown
            if self._wanted.drops(full):
                continue
            if isinstance(member, h5py.Dataset):
                if is_bare_dimension(member):
                    continue
                try:
                    variables[shown] = self._variable(member, full, dimensions)
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
        return VirtualDataset(variables, (), _attributes(group), groups, tuple(refused))

    def _variable(self, dataset: h5py.Dataset, path: str, dimensions: Dimensions) -> VirtualVariable:
        if dataset.shape is None:
            raise RefusedVariable(RefusalReason.UNSUPPORTED_LAYOUT, "it has no values, not even none")
        dtype = _dtype_of(dataset)
        names = dimensions.of(dataset)
        attributes = json_attributes(_attributes(dataset, raw=True), dtype)
        if dtype.kind == "T":
            return loaded_variable(names, _texts(dataset), attributes)
        zarr_type(dtype)
        if self._wanted.loads(path, names, dataset.size * dtype.itemsize):
            return loaded_variable(names, np.asarray(dataset[()], dtype), attributes)
        return self._referred(dataset, dtype, names, attributes)

    def _referred(
        self, dataset: h5py.Dataset, dtype: np.dtype[Any], names: tuple[str, ...], attributes: dict[str, Any]
    ) -> VirtualVariable:
        from h5py import h5d

        if dataset.external is not None or dataset.is_virtual:
            raise RefusedVariable(RefusalReason.EXTERNAL_STORAGE, "its values are in other files")
        layout = dataset.id.get_create_plist().get_layout()
        filters = filters_of(dataset)
        if layout == h5d.CHUNKED:
            chunk_shape = tuple(dataset.chunks)
            filters, chunks = _chunked(dataset, filters)
        elif layout == h5d.CONTIGUOUS:
            chunk_shape = self._wanted.chunks_of_contiguous(dataset.shape, dtype.itemsize)
            chunks = _contiguous(dataset, dtype, chunk_shape)
        else:
            chunk_shape = tuple(max(size, 1) for size in dataset.shape)
            chunks = _compact(dataset)
        self._check_ends(dataset, chunks)
        return VirtualVariable(
            names,
            dataset.shape,
            dtype.newbyteorder("="),
            chunk_shape,
            (bytes_codec(dtype), *pipeline(filters)),
            fill_value_json(dataset.fillvalue, dtype),
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


def _dtype_of(dataset: h5py.Dataset) -> np.dtype[Any]:
    """The data type as it is stored, its order of bytes included."""
    import h5py

    try:
        found = dataset.dtype
    except TypeError as error:
        raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, f"numpy has no type for it: {error}") from None
    if h5py.check_string_dtype(found) is not None and found.kind == "O":
        return _STRINGS
    if found.kind == "O":
        raise RefusedVariable(RefusalReason.VARIABLE_LENGTH, "its values are lists of different lengths")
    if found.kind == "V":
        what = "compound" if found.names else "opaque or of arrays"
        raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, f"its values are {what} ({found})")
    stored = dataset.id.get_type()
    narrow = isinstance(stored, h5py.h5t.TypeIntegerID) and stored.get_precision() != 8 * found.itemsize
    if stored.get_size() != found.itemsize or narrow:
        raise RefusedVariable(
            RefusalReason.UNSUPPORTED_TYPE, f"its values are stored in other widths than those of {found}"
        )
    return np.dtype(found.str) if found.kind != "b" else np.dtype(bool)  # without h5py's notes on it


def _texts(dataset: h5py.Dataset) -> Values:
    if dataset.size * 16 > INLINE_BYTES:
        raise RefusedVariable(
            RefusalReason.VARIABLE_LENGTH, "its texts differ in length, and are too many to be taken along"
        )
    try:
        return np.asarray(dataset.asstr()[()], dtype=_STRINGS)
    except UnicodeDecodeError as error:
        raise RefusedVariable(RefusalReason.VARIABLE_LENGTH, f"its texts are not UTF-8: {error}") from None


def _chunked(dataset: h5py.Dataset, filters: list[Filter]) -> tuple[list[Filter], ChunkReferences]:
    """The chunks that were written, and the filters all of them have."""
    rank = len(dataset.shape)
    numbers = array("Q")
    # One walk of the index, where asking for each chunk is one walk each.
    dataset.id.chunk_iter(
        lambda chunk: numbers.extend((*chunk.chunk_offset, chunk.byte_offset, chunk.size, chunk.filter_mask))
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
    inline = _inlined(dataset, coords[odd], rows[odd], filters)
    plain = ~odd
    return filters, ChunkReferences.of(coords[plain], rows[plain, 0], rows[plain, 1], inline=inline)


def _inlined(
    dataset: h5py.Dataset, coords: NDArray[np.uint64], rows: NDArray[np.uint64], filters: list[Filter]
) -> dict[tuple[int, ...], bytes]:
    """Chunks that some filters skipped, since they would have made them larger: encoded by all filters."""
    if len(rows) * dataset.dtype.itemsize * int(np.prod(dataset.chunks)) > INLINE_BYTES:
        raise RefusedVariable(
            RefusalReason.MIXED_FILTERS,
            f"{len(rows)} chunks are stored without some of its filters, more than can be taken along",
        )
    inline = {}
    for place in coords.tolist():  # few: see above
        mask, data = dataset.id.read_direct_chunk(tuple(np.multiply(place, dataset.chunks).tolist()))
        inline[tuple(place)] = reencoded(data, mask, filters)
    return inline


def _contiguous(dataset: h5py.Dataset, dtype: np.dtype[Any], chunk_shape: tuple[int, ...]) -> ChunkReferences:
    start = dataset.id.get_offset()
    if start is None or not dataset.size:
        return ChunkReferences.of(np.empty((0, len(dataset.shape))), [], [])
    return run_of_chunks(start, dataset.shape, chunk_shape, dtype.itemsize)


def _compact(dataset: h5py.Dataset) -> ChunkReferences:
    nothing = np.empty((0, len(dataset.shape)))
    if not dataset.size:
        return ChunkReferences.of(nothing, [], [])
    values = np.asarray(dataset[()])
    return ChunkReferences.of(nothing, [], [], inline={(0,) * values.ndim: values.tobytes()})


def _attributes(thing: h5py.Group | h5py.Dataset, *, raw: bool = False) -> dict[str, Any]:
    import h5py

    found: dict[str, Any] = {}
    for name in thing.attrs:
        if name in HIDDEN_ATTRIBUTES:
            continue
        try:
            value = thing.attrs[name]
        except (OSError, TypeError, KeyError):
            continue  # of a type numpy has no idea of: opaque, say
        if isinstance(value, h5py.Reference | h5py.RegionReference):
            continue
        found[name] = "" if isinstance(value, h5py.Empty) else value
    return found if raw else json_attributes(found)
