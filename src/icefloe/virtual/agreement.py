"""What two arrays must have in common to be one: all that decoding their chunks needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from icefloe.virtual.variables import VirtualVariable
from icefloe.virtual.zarr_metadata import data_type_json

DECODING_ATTRIBUTES: Final = (
    "_FillValue",
    "missing_value",
    "scale_factor",
    "add_offset",
    "units",
    "calendar",
    "_Unsigned",
    "dtype",
)
"""Attributes that say what stored values stand for."""
GEO_TRANSFORM: Final = "GeoTransform"
"""Attribute of a grid mapping that places one raster on Earth: rasters side by side have none in common."""
_IRRELEVANT: Final = ("level", "clevel", "blocksize", "typesize", "nthreads", "checksum")
"""Settings of compressors that decoding does without."""
_SELF_DESCRIBED: Final = ("blosc", "numcodecs.blosc")
"""Compressors whose chunks say themselves how they were made."""


def document_of(variable: VirtualVariable) -> dict[str, Any]:
    """The zarr.json of a variable."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(variable.shape),
        "data_type": data_type_json(variable.dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(variable.chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": variable.fill_value,
        "codecs": [dict(codec) for codec in variable.codecs],
        "attributes": dict(variable.attributes),
        "dimension_names": list(variable.dimensions),
        "storage_transformers": [],
    }


def properties_of(document: Mapping[str, Any], *, loaded: bool) -> dict[str, Any]:
    """What must agree, by name. Values that were loaded can be stored anew: their chunks need not."""
    attributes = document.get("attributes", {})
    found: dict[str, Any] = {
        "dimensions": document.get("dimension_names"),
        "dtype": document["data_type"],
    }
    if not loaded:
        found["chunk shape"] = document["chunk_grid"]["configuration"].get("chunk_shape")
        found["codecs"] = [_essential(codec) for codec in document["codecs"]]
        found["fill value"] = document["fill_value"]
    return found | {name: attributes[name] for name in DECODING_ATTRIBUTES if name in attributes}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Names of properties that differ, with both values; None where one has none."""
    names = [*one, *(name for name in other if name not in one)]
    return [
        (name, one.get(name), other.get(name))
        for name in names
        if json.dumps(one.get(name)) != json.dumps(other.get(name))
    ]


def mismatches_with(document: Mapping[str, Any], variable: VirtualVariable) -> list[str]:
    """Sentences on how a variable differs from an array that is there already."""
    there = properties_of(document, loaded=variable.loaded)
    here = properties_of(document_of(variable), loaded=variable.loaded)
    return [f"its {name} is {was}, and that of the data {now}" for name, was, now in differences(there, here)]


def _essential(codec: Mapping[str, Any]) -> dict[str, Any]:
    configuration = codec.get("configuration") or {}
    if codec["name"] in _SELF_DESCRIBED:
        configuration = {}
    kept = {name: value for name, value in configuration.items() if name not in _IRRELEVANT}
    return {"name": codec["name"], "configuration": kept}
