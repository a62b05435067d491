"""Zarr documents to put into stores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from zarr.core.buffer import Buffer, cpu

GROUP = b'{"zarr_format":3,"node_type":"group","attributes":{}}'


def array_document(shape: Sequence[int], chunks: Sequence[int] | None = None, **changes: Any) -> bytes:
    """Return the zarr.json of an array of bytes."""
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "uint8",
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [1] * len(shape) if chunks is None else list(chunks)},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
    }
    return json.dumps(document | changes).encode()


def buffer(data: bytes) -> Buffer:
    """Return bytes as a zarr buffer."""
    return cpu.Buffer.from_bytes(data)
