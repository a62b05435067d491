"""User metadata of snapshots and repositories: JSON-like values by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import Ragged, encode_text, to_splits
from icefloe.encoding.flatbuffers.row_builder import Row
from icefloe.encoding.flatbuffers.tables import Tables
from icefloe.encoding.json_values import canonicalize
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.spec import Spec

Metadata: TypeAlias = Mapping[str, Any]


def normalize_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Convert user metadata to the form in which it would be read back; raise TypeError if a value cannot be
    stored.
    """
    if not isinstance(metadata, Mapping):
        raise TypeError(f"'{type(metadata).__name__}' object is not an instance of 'dict'")
    plain: Any = canonicalize(metadata)
    return dict(plain)


def make_metadata_rows(metadata: Metadata, spec: Spec) -> list[Row]:
    """Encode user metadata as `MetadataItem` tables, sorted by the bytes of their names."""
    names = sorted(metadata, key=encode_text)
    return [{"name": name, "value": spec.dump_metadata(metadata[name])} for name in names]


def make_single_list(items: Tables | NDArray[Any]) -> Ragged:
    """Return a column with a single row, whose list contains all items of the user metadata."""
    return Ragged(items, to_splits(np.array([len(items)])))


def read_metadata(items: Sequence[Row], spec: Spec, place: str) -> dict[str, Any]:
    """Decode user metadata from `MetadataItem` tables to a dict."""
    metadata: dict[str, Any] = {}
    for item in items:
        name = item["name"]
        if name in metadata:
            raise FormatError(f"{place}: duplicate metadata {name!r}", kind=ErrorKind.INVALID_FILE_FORMAT)
        try:
            metadata[name] = spec.load_metadata(item["value"])
        except FormatError as error:
            raise FormatError(f"{place}: metadata {name!r}: {error.message}", kind=error.kind) from None
    return dict(sorted(metadata.items(), key=lambda item: item[0].encode()))
