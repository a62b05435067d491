"""The meaning of chunks: all array metadata that determines how a chunk is decoded.

Statistics describe the values of a chunk under one meaning. They are only used for arrays with the same
meaning: data type, codecs, fill value, and CF attributes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from icefloe.cf import ValueCoding, find_value_coding

_METADATA: Final = ("data_type", "codecs", "fill_value")
_ATTRIBUTES: Final = (
    *("_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", "units", "calendar", "dtype"),
)
"""The attributes that affect the values that xarray and SQL show."""
_LOSSLESS: Final = frozenset(
    ("bytes", "zstd", "blosc", "gzip", "crc32c", "transpose", "sharding_indexed", "vlen-utf8", "vlen-bytes")
)
DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of an array's chunks: how they are decoded, and a digest that identifies it."""

    coding: ValueCoding
    digest: bytes
    fill_value: Any
    """The value of cells in missing chunks, as stored."""

    @property
    def has_extremes(self) -> bool:
        """True if statistics of such chunks contain a minimum and maximum, as for numbers and times."""
        return self.coding.effective.kind in "iufmM"

    @property
    def has_sums(self) -> bool:
        """True if statistics of such chunks contain sums, as for numbers."""
        return self.coding.effective.kind in "iuf" and self.coding.times is None

    @property
    def is_integer(self) -> bool:
        """True if statistics of such chunks contain exact integer sums."""
        return self.coding.effective.kind in "iu" and self.has_sums and not self.coding.is_scaled

    @property
    def extremes_dtype(self) -> np.dtype[Any]:
        """The data type in which minima and maxima are recorded: the stored type in little-endian order."""
        return self.coding.effective.newbyteorder("<") if self.has_extremes else np.dtype("<u1")


def find_meaning(user_data: bytes) -> Meaning | None:
    """Derive the meaning of an array's chunks from its zarr.json; None for data types without statistics."""
    return _find_meaning(bytes(user_data))


@lru_cache(256)
def _find_meaning(user_data: bytes) -> Meaning | None:
    from zarr.dtype import parse_dtype

    document = json.loads(user_data)
    if document.get("storage_transformers"):
        return None
    try:
        kind = parse_dtype(document["data_type"], zarr_format=3)
        stored = np.dtype(kind.to_native_dtype())
        fill = kind.from_json_scalar(document["fill_value"], zarr_format=3)
    except (ValueError, TypeError, KeyError):
        return None
    if stored.kind not in "biufcmMUTSO" or stored.fields:
        return None
    attributes = document.get("attributes", {})
    return Meaning(find_value_coding(stored, attributes), digest_meaning(document), fill)


def digest_meaning(document: Mapping[str, Any]) -> bytes:
    """Return the digest of everything in a zarr.json that determines the decoded values of a chunk."""
    attributes = document.get("attributes", {})
    said = {name: document.get(name) for name in _METADATA}
    said["attributes"] = {name: attributes[name] for name in _ATTRIBUTES if name in attributes}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def is_lossless(codecs: Sequence[Any]) -> bool:
    """Return True if the codecs are known to be lossless, so that decoding returns the written values."""
    for codec in codecs:
        name = codec if isinstance(codec, str) else codec.get("name")
        if name not in _LOSSLESS:
            return False
        if name == "sharding_indexed" and not is_lossless(codec["configuration"]["codecs"]):
            return False
    return True
