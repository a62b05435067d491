"""Repositories of older formats, put where they can be opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr

from icefloe._internal.ids import SnapshotId
from icefloe.legacy.codec.ids import parse_file_name
from icefloe.legacy.codec.structures import shorten_id
from icefloe.session import Session
from icefloe.storage import in_memory_storage
from icefloe.storage.base import Storage


def place(files: Mapping[str, bytes]) -> Storage:
    """Return a storage with these files."""
    storage: Storage = in_memory_storage()
    for path, data in files.items():
        storage.put(path, data)
    return storage


def contents(storage: Storage) -> dict[str, bytes]:
    """Return all files of a storage."""
    return {info.key: storage.get(info.key)[0] for info in storage.list_prefix("")}


def present_id(name: str) -> str:
    """Return the id of today for one that a file is named after."""
    raw = parse_file_name(name)
    assert raw is not None
    return str(SnapshotId(raw if len(raw) == SnapshotId.SIZE else shorten_id(raw)))


def digest(session: Session, path: str) -> str:
    """Return the hash of an array's values."""
    array: Any = zarr.open_array(session.store, path=path, mode="r")
    return hashlib.sha256(np.ascontiguousarray(array[...]).tobytes()).hexdigest()
