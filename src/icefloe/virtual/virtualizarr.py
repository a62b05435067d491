"""Convert virtual datasets from and to VirtualiZarr."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np

from icefloe._internal.private_imports import get_manifest_columns
from icefloe.virtual.dataset import VirtualDataset, with_sources
from icefloe.virtual.sources import Source, to_location
from icefloe.virtual.variables import ChunkReferences, VirtualVariable, make_document, make_loaded_variable
from icefloe.virtual.zarr_documents import convert_v3_array
from icefloe.virtual.zarr_metadata import encode_attributes, parse_array_metadata

_TEXTS: Final = np.dtypes.StringDType()
_INLINED: Final = "__inlined__"


def from_virtualizarr(dataset: Any) -> VirtualDataset:
    """Convert a VirtualiZarr dataset to a `VirtualDataset`.

    VirtualiZarr does not record checksums or modification times of the referenced files, so the references
    have no checksums.

    Parameters
    ----------
    dataset
        An `xarray.Dataset` of `ManifestArray` objects. Variables in memory become loaded variables.

    Returns
    -------
    VirtualDataset
        A virtual dataset with the same variables.
    """
    from virtualizarr.manifests import ManifestArray

    rows: dict[str, int] = {}
    variables: dict[str, VirtualVariable] = {}
    for name, variable in dataset.variables.items():
        if isinstance(variable.data, ManifestArray):
            attributes = {**variable.encoding, **variable.attrs}
            attributes = {
                key: attributes[key] for key in (*variable.attrs, "_FillValue") if key in attributes
            }
            variables[str(name)] = _convert_array(variable.data, variable.dims, attributes, rows)
        else:
            import xarray

            encoded = xarray.conventions.encode_cf_variable(variable)
            values = np.asarray(encoded.values)
            texts = values.astype(_TEXTS) if values.dtype.kind in "OU" else values
            plain = encode_attributes(encoded.attrs, texts.dtype)
            variables[str(name)] = make_loaded_variable(tuple(map(str, encoded.dims)), texts, plain)
    sources = tuple(Source(location, None) for location in rows)
    return VirtualDataset(variables, sources, encode_attributes(dataset.attrs))


def from_manifest_group(group: Any) -> VirtualDataset:
    """Convert a VirtualiZarr `ManifestGroup` and its subgroups to a virtual dataset, without checksums."""
    rows: dict[str, int] = {}
    found = _convert_group(group, rows)
    return with_sources(found, tuple(Source(location, None) for location in rows))


def _convert_group(group: Any, rows: dict[str, int]) -> VirtualDataset:
    variables = {
        str(name): _convert_array(
            array, array.metadata.dimension_names or (), array.metadata.attributes, rows
        )
        for name, array in group.arrays.items()
    }
    groups = {str(name): _convert_group(each, rows) for name, each in group.groups.items()}
    return VirtualDataset(variables, (), encode_attributes(group.metadata.attributes), groups)


def _convert_array(array: Any, dims: Any, attributes: Any, rows: dict[str, int]) -> VirtualVariable:
    document = {**array.metadata.to_dict(), "dimension_names": list(map(str, dims))}
    described = convert_v3_array(_to_json_types(document))
    fill = attributes.get("_FillValue")
    # A string is already encoded as in Zarr version 3.
    encoded = (
        {}
        if isinstance(fill, str) or fill is None
        else encode_attributes({"_FillValue": fill}, described.dtype)
    )
    described = replace(described, attributes={**encode_attributes(attributes), **encoded})
    rank = len(described.shape)
    grid = described.grid_shape
    paths, offsets, lengths, inlined = get_manifest_columns(array.manifest)
    coords = np.indices(grid, np.uint32).reshape(rank, math.prod(grid)).T
    inline = {tuple(place)[:rank]: data for place, data in inlined.items()}
    kept = (paths != "") & (paths != _INLINED)
    distinct, codes = np.unique(paths[kept], return_inverse=True)
    table = np.array([rows.setdefault(to_location(str(path)), len(rows)) for path in distinct], np.uint32)
    sources = table[codes] if len(table) else np.zeros(0, np.uint32)
    chunks = ChunkReferences.of(coords[kept], offsets[kept], lengths[kept], sources, inline)
    return replace(described, chunks=chunks)


def _to_json_types(value: Any) -> Any:
    """Convert tuples and numpy scalars in Zarr metadata to JSON types."""
    if isinstance(value, dict):
        return {key: _to_json_types(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_types(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def to_virtualizarr(dataset: VirtualDataset) -> Any:
    """Convert a virtual dataset to a VirtualiZarr dataset, without checksums.

    Parameters
    ----------
    dataset
        A virtual dataset without groups.

    Returns
    -------
    xarray.Dataset
        A dataset with a `ManifestArray` for each variable that is not loaded.
    """
    import xarray
    from virtualizarr.manifests import ChunkManifest, ManifestArray

    locations = np.array([source.location for source in dataset.sources], _TEXTS)
    variables: dict[str, Any] = {}
    for name, variable in dataset.variables.items():
        if variable.loaded:
            variables[name] = xarray.Variable(variable.dimensions, variable.values, dict(variable.attributes))
            continue
        references = variable.references
        grid = variable.grid_shape
        paths = np.full(grid, "", _TEXTS)
        offsets, lengths = np.zeros(grid, np.uint64), np.zeros(grid, np.uint64)
        # One-dimensional indices, because a 0-dimensional array cannot be indexed by columns.
        places = np.zeros(len(references.coords), np.int64)
        for axis, size in enumerate(grid):
            places = places * size + references.coords[:, axis]
        paths.reshape(-1)[places] = locations[references.sources]
        offsets.reshape(-1)[places] = references.offsets
        lengths.reshape(-1)[places] = references.lengths
        options: dict[str, Any] = {}
        if references.inline:
            inlined = dict(zip(map(tuple, references.inline_coords.tolist()), references.inline, strict=True))
            for place in inlined:
                paths[place], lengths[place] = _INLINED, len(inlined[place])
            options["inlined"] = inlined
        manifest = ChunkManifest.from_arrays(paths=paths, offsets=offsets, lengths=lengths, **options)
        metadata = parse_array_metadata({**make_document(variable), "attributes": {}})
        array = ManifestArray(metadata=metadata, chunkmanifest=manifest)
        variables[name] = xarray.Variable(variable.dimensions, array, dict(variable.attributes))
    coordinates = {name for name, each in variables.items() if each.dims == (name,)}
    return xarray.Dataset(
        {name: each for name, each in variables.items() if name not in coordinates},
        {name: each for name, each in variables.items() if name in coordinates},
        dict(dataset.attributes),
    )
