"""Zarr stores, version 2 or 3, sharded or not: a chunk, or a shard, is the whole of an object."""

from __future__ import annotations

from typing import Any

import numpy as np

from icefloe.virtual.access import Reach
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.errors import CannotVirtualizeError
from icefloe.virtual.parsers.zarr.hierarchy import METADATA, KeyedChunks, dataset_of, parsed
from icefloe.virtual.selection import Wanted
from icefloe.virtual.sources import Source, listed_files, open_file, wait_until_told_apart


def parse_zarr(location: str, wanted: Wanted, reach: Reach) -> VirtualDataset:
    """The dataset of all that lies below a location."""
    documents: dict[str, Any] = {}
    keys: list[str] = []
    sources: list[Source] = []
    for key, source in listed_files(location, reach):
        if key.rpartition("/")[2] in METADATA:
            file = open_file(source.location, *reach(source.location))
            documents[key] = parsed(key, file.read(0, file.size_bytes), location)
        elif source.size_bytes:
            keys.append(key)
            sources.append(source)
    if not documents:
        raise CannotVirtualizeError(f"{location} has no metadata of Zarr: no zarr.json, .zgroup or .zarray")
    wait_until_told_apart(sources)
    lengths = np.array([source.size_bytes for source in sources], np.uint64)
    numbers = np.arange(len(sources), dtype=np.uint32)
    chunks = KeyedChunks(keys, numbers, np.zeros(len(sources), np.uint64), lengths, {})
    return dataset_of(documents, chunks.by_array(documents), tuple(sources), wanted, location)
