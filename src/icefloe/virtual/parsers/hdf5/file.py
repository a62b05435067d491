"""Parse HDF5 and NetCDF-4 files: datasets become variables, and their chunks become references.

The chunk locations come from the chunk index of the file, and only values to load are decoded. HDF5 library
calls dominate the time for small files, so each property of a dataset is read only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.errors import IcechunkError
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.errors import DAMAGE, CannotVirtualizeError, RefusalReason, Refused, RefusedVariable
from icefloe.virtual.parsers import INLINE_BYTES, ParseOptions
from icefloe.virtual.parsers.hdf5.dimensions import (
    HIDDEN_ATTRIBUTES,
    Dimensions,
    UnlimitedDimensions,
    get_shown_name,
    is_bare_dimension,
)
from icefloe.virtual.sources import SourceFile, check_ends
from icefloe.virtual.variables import (
    ChunkReferences,
    Values,
    VirtualVariable,
    make_contiguous_chunks,
    make_loaded_variable,
)
from icefloe.virtual.zarr_metadata import (
    configure_bytes,
    encode_attributes,
    get_zarr_type,
    to_json_fill_value,
)

if TYPE_CHECKING:
    import h5py

    from icefloe.virtual.parsers.hdf5.chunked import StoredFilter

_TEXTS: Final = np.dtypes.StringDType()
_FLAGS: Final = ("flag_values", "flag_meanings")
_N_BIT: Final = 5
"""The HDF5 filter id of n-bit, which packs integers that have unused bits."""
_IGNORED_ATTRIBUTES: Final = HIDDEN_ATTRIBUTES - {"CLASS", "NAME", "DIMENSION_LIST", "_Netcdf4Coordinates"}
"""Internal netCDF attributes to skip. Some have one value per variable of the file."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A dataset in an open HDF5 file."""

    dataset: h5py.Dataset
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    """The shape of the variable, which may exceed the dataset along unlimited dimensions."""
    attributes: Mapping[str, Any]
    """The attributes, as returned by `read_attributes`."""


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The members of a group in an open HDF5 file."""

    variables: Mapping[str, Member]
    attributes: Mapping[str, Any]
    is_whole: bool
    """True if every member became a variable or a group of the same name."""


@contextmanager
def open_hdf5(file: SourceFile, options: ParseOptions) -> Iterator[tuple[VirtualDataset, Members]]:
    """Parse an HDF5 file into a virtual dataset, and keep it open so that member values can be read.

    All chunks are in source 0.
    """
    import h5py

    location = file.location if file.local_path is None else file.local_path
    try:
        opened = _open(file)
    except OSError as error:
        raise CannotVirtualizeError(f"{location} cannot be read as HDF5: {error}") from None
    with opened:
        root = opened if options.group is None else _follow_link(opened, options.group)
        if not isinstance(root, h5py.Group):
            names = ", ".join(name for name, each in opened.items() if isinstance(each, h5py.Group))
            raise CannotVirtualizeError(
                f"{location} has no group {options.group!r}; its groups are {names or 'none'}"
            )
        try:
            parser = _Parser(file, options)
            dataset = parser.parse_group(root, "")
        except IcechunkError:
            raise
        except DAMAGE as error:
            raise CannotVirtualizeError(
                f"{location} is damaged, or changed during parsing: {error}"
            ) from None
        yield dataset, parser.members


def _open(file: SourceFile) -> h5py.File:
    import h5py

    if file.local_path is not None:
        # HDF5 rejects a path that this process has open with other locking flags, for example in a notebook.
        with suppress(OSError):
            return h5py.File(file.local_path, "r", locking=False)
    return h5py.File(file.as_binary(), "r")


def _follow_link(group: h5py.Group, name: str) -> Any:
    """Resolve a hard or soft link in an HDF5 file. Return None for external or dangling links."""
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
        """The members of the root group, which is completed last."""

    def parse_group(self, group: h5py.Group, path: str) -> VirtualDataset:
        import h5py

        dimensions = Dimensions()
        variables: dict[str, VirtualVariable] = {}
        groups: dict[str, VirtualDataset] = {}
        refused: list[Refused] = []
        members: dict[str, Member] = {}
        self._above.append(h5py.h5o.get_info(group.id).addr)
        for name in group:
            shown = get_shown_name(name)
            full = f"{path}/{shown}" if path else shown
            if self._options.is_excluded(full):
                continue
            member = _follow_link(group, name)
            if isinstance(member, h5py.Dataset):
                attributes = read_attributes(member)
                if is_bare_dimension(attributes):
                    continue
                try:
                    members[name], variables[shown] = self._parse_dataset(
                        member, attributes, full, dimensions
                    )
                except RefusedVariable as refusal:
                    refused.append(refusal.named(shown))
            elif isinstance(member, h5py.Group):
                if h5py.h5o.get_info(member.id).addr not in self._above:  # hard links can form cycles
                    groups[shown] = self.parse_group(member, full)
            elif member is None:
                refused.append(
                    RefusedVariable(
                        RefusalReason.EXTERNAL_STORAGE, "it is an external or dangling link"
                    ).named(shown)
                )
        self._above.pop()
        own = read_attributes(group)
        self.members = Members(members, own, not refused and members.keys() == variables.keys())
        return VirtualDataset(variables, (), _to_json_attributes(own), groups, tuple(refused))

    def _parse_dataset(
        self, dataset: h5py.Dataset, stored: Mapping[str, Any], path: str, dimensions: Dimensions
    ) -> tuple[Member, VirtualVariable]:
        own_shape = dataset.shape
        if own_shape is None:
            raise RefusedVariable(RefusalReason.UNSUPPORTED_LAYOUT, "it has a null dataspace")
        properties = dataset.id.get_create_plist()
        filters = [properties.get_filter(position) for position in range(properties.get_nfilters())]
        found = _find_native_type(dataset)
        dtype, inner = _find_stored_type(found, dataset, filters)
        names = dimensions.name_axes(dataset, (*own_shape, *inner), stored)
        attributes = encode_attributes(
            {**_drop_internal_attributes(stored), **_describe_flags(found, stored)}, dtype
        )
        shape = (*self._unlimited.shape_of(dataset, stored), *inner)
        member = Member(dataset, names, shape, stored)
        if dtype.kind == "T":
            return member, make_loaded_variable(names, _pad(_read_strings(dataset), shape, ""), attributes)
        get_zarr_type(dtype)
        if self._options.should_load(path, names, dataset.size * dtype.itemsize) and _can_decode(filters):
            values = _pad(np.asarray(dataset[()], dtype), shape, dataset.fillvalue)
            return member, make_loaded_variable(names, values, attributes)
        if dataset.external is not None or dataset.is_virtual:
            raise RefusedVariable(RefusalReason.EXTERNAL_STORAGE, "its values are in other files")
        chunk_shape, codecs, chunks = self._find_chunks(
            dataset, properties.get_layout(), filters, dtype, shape, inner
        )
        check_ends(self._file, dataset.name, chunks.offsets, chunks.lengths)
        return member, VirtualVariable(
            names,
            shape,
            dtype.newbyteorder("="),
            chunk_shape,
            (configure_bytes(dtype), *codecs),
            _find_fill_value(dataset, dtype),
            attributes,
            chunks,
        )

    def _find_chunks(
        self,
        dataset: h5py.Dataset,
        layout: int,
        filters: Sequence[StoredFilter],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        inner: tuple[int, ...],
    ) -> tuple[tuple[int, ...], list[dict[str, Any]], ChunkReferences]:
        """Return the chunk shape, filter codecs and chunk references of an HDF5 dataset."""
        from h5py import h5d

        if layout == h5d.CHUNKED:
            from icefloe.virtual.parsers.hdf5.chunked import refer_to_chunks  # imports the decoders

            codecs, chunks = refer_to_chunks(dataset, filters, dtype, inner)
            return (*dataset.chunks, *inner), codecs, chunks
        if layout == h5d.CONTIGUOUS:
            chunk_shape = self._options.choose_contiguous_chunks(shape, dtype.itemsize)
            start = dataset.id.get_offset()
            if start is None or not dataset.size:
                return chunk_shape, [], ChunkReferences.of(np.empty((0, len(shape))), [], [])
            return chunk_shape, [], make_contiguous_chunks(start, shape, chunk_shape, dtype.itemsize)
        values = np.asarray(dataset[()])
        inline = {(0,) * values.ndim: values.tobytes()} if values.size else {}
        chunks = ChunkReferences.of(np.empty((0, values.ndim)), [], [], inline=inline)
        return tuple(max(size, 1) for size in shape), [], chunks


def _can_decode(filters: Sequence[StoredFilter]) -> bool:
    """Return True if the installed HDF5 library has all required filters. Otherwise, our codecs decode
    values.
    """
    from h5py import h5z

    return all(h5z.filter_avail(number) for number, *_ in filters)


def _pad(values: Values, shape: tuple[int, ...], fill: Any) -> Values:
    """Pad values with the fill value to the given shape."""
    if values.shape == shape:
        return values
    padded = np.full(shape, fill, values.dtype)
    padded[tuple(slice(size) for size in values.shape)] = values
    return padded


def _read_strings(dataset: h5py.Dataset) -> Values:
    if dataset.size * 16 > INLINE_BYTES:
        raise RefusedVariable(
            RefusalReason.VARIABLE_LENGTH, "its variable-length strings are too large to be stored inline"
        )
    try:
        return np.asarray(dataset.asstr()[()], dtype=_TEXTS)
    except UnicodeDecodeError as error:
        raise RefusedVariable(
            RefusalReason.VARIABLE_LENGTH, f"its strings are not valid UTF-8: {error}"
        ) from None


def _find_fill_value(dataset: h5py.Dataset, dtype: np.dtype[Any]) -> Any:
    """Return a fill value as a scalar. The elements of an array-valued fill value must all be equal."""
    values = np.asarray(dataset.fillvalue)
    flat = values.reshape(-1)
    if values.ndim and (flat != flat[0]).any():
        raise RefusedVariable(
            RefusalReason.UNSUPPORTED_TYPE, "its fill value is an array with different elements"
        )
    return to_json_fill_value(flat[0] if values.ndim else values[()], dtype)


def group_attributes(group: h5py.Group) -> dict[str, Any]:
    """Return the attributes of an HDF5 group as JSON values, without netCDF's internal attributes."""
    return _to_json_attributes(read_attributes(group))


def _to_json_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return encode_attributes(_drop_internal_attributes(attributes))


def _drop_internal_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Remove HDF5 references and netCDF's internal attributes from the attributes of an HDF5 object."""
    import h5py

    return {
        name: "" if isinstance(value, h5py.Empty) else value
        for name, value in attributes.items()
        if name not in HIDDEN_ATTRIBUTES and not isinstance(value, h5py.Reference | h5py.RegionReference)
    }


def read_attributes(owner: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    """Read the attributes of an HDF5 object, except attributes without an equivalent numpy type.

    Internal netCDF attributes that are skipped have the value None.
    """
    found: dict[str, Any] = {}
    attributes = owner.attrs
    for name in attributes:
        try:
            found[name] = None if name in _IGNORED_ATTRIBUTES else attributes[name]
        except (OSError, TypeError, KeyError):
            if name in HIDDEN_ATTRIBUTES:
                raise
            continue  # numpy has no equivalent type, for example for opaque values
    return found


def _find_native_type(dataset: h5py.Dataset) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = dataset.dtype
    except (TypeError, ValueError) as error:
        raise RefusedVariable(
            RefusalReason.UNSUPPORTED_TYPE, f"numpy has no equivalent data type: {error}"
        ) from None
    return found


def _find_stored_type(
    found: np.dtype[Any], dataset: h5py.Dataset, filters: Sequence[StoredFilter]
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the stored data type of an HDF5 dataset with its byte order, and the shape of each element.

    Variable-length strings have the type `_TEXTS`. Raise RefusedVariable if no numpy type has the same binary
    representation.
    """
    import h5py

    if h5py.check_string_dtype(found) is not None and found.kind == "O":
        return _TEXTS, ()
    if found.kind == "O":
        if h5py.check_ref_dtype(found) is not None:
            raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, "its values are HDF5 references")
        raise RefusedVariable(RefusalReason.VARIABLE_LENGTH, "its values are variable-length lists")
    shape: tuple[int, ...] = ()
    stored = dataset.id.get_type()
    if found.subdtype is not None:
        found, shape = found.subdtype
        stored = stored.get_super()
    if found.names is not None:
        return _check_compound(found), shape
    plain = _strip_metadata(found)
    _check_width(plain, stored, filters)
    return plain, shape


def _describe_flags(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Describe an HDF5 enumeration with CF flag attributes."""
    import h5py

    names = h5py.check_enum_dtype(dtype)
    if not names or any(name in attributes for name in _FLAGS):
        return {}
    ordered = sorted(names, key=names.__getitem__)
    meanings = " ".join(name.replace(" ", "_") for name in ordered)
    return dict(zip(_FLAGS, ([names[name] for name in ordered], meanings), strict=True))


def _strip_metadata(found: np.dtype[Any]) -> np.dtype[Any]:
    """Strip h5py's metadata from a numpy data type."""
    return np.dtype(found.str) if found.kind != "b" else np.dtype(bool)


def _check_compound(found: np.dtype[Any]) -> np.dtype[Any]:
    """Return a compound type if Zarr supports it: all fields little-endian, no padding."""
    fields: list[Any] = []
    end = 0
    for name, (part, start, *_) in (found.fields or {}).items():
        if start != end:
            raise _make_refusal(found, "has padding between its fields")
        end = start + part.itemsize
        if part.kind == "O" or part.subdtype is not None or part.str.startswith(">"):
            raise _make_refusal(found, "has array, variable-length or big-endian fields")
        fields.append((name, _check_compound(part) if part.names else _strip_metadata(part)))
    if end != found.itemsize:
        raise _make_refusal(found, "has padding between its fields")
    return np.dtype(fields)


def _make_refusal(found: np.dtype[Any], what: str) -> RefusedVariable:
    return RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, f"its compound type {what} ({found})")


def _check_width(plain: np.dtype[Any], stored: Any, filters: Sequence[StoredFilter]) -> None:
    """Check that an HDF5 number type has no unused bits, unless the n-bit filter expands them."""
    from h5py import h5t

    if isinstance(stored, h5t.TypeEnumID):
        stored = stored.get_super()
    if isinstance(stored, h5t.TypeFloatID | h5t.TypeIntegerID) and plain.kind in "iuf":
        if h5t.py_create(plain).equal(stored):
            return
        whole = stored.get_size() == plain.itemsize and stored.get_offset() == 0
        if plain.kind in "iu" and whole and _N_BIT in [number for number, *_ in filters]:
            return
    elif stored.get_size() == plain.itemsize:
        return
    raise RefusedVariable(
        RefusalReason.UNSUPPORTED_TYPE, f"the bit width of its values differs from that of {plain}"
    )
