"""The records of derived arrays: a digest of the inputs of each output chunk.

A record takes 33 bytes: a digest of everything on which the chunk depends (16), the fingerprint of the chunk
itself (16), and the index of the set of software versions that computed it (1). The records of an array are
stored in another array below `/_icefloe/derived`, which is part of the same commits and whose attributes
describe the recipe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata as packages
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe._internal.paths import DERIVED
from icefloe._internal.warnings import ignore_warnings
from icefloe.core.fingerprints import Lanes
from icefloe.derive.arrays import array_document, find_array
from icefloe.session import Session

WIDTH: Final = 33
RECORDS: Final = "/records"
"""The name of the array that stores records, in the records group of an output."""
_RECORDS_PER_CHUNK: Final = 1 << 16


def records_group(path: str) -> str:
    """Return the path of the group that contains the records of a derived array."""
    return f"{DERIVED}{path}"


@dataclass(frozen=True)
class DerivedRecords:
    """The records of a derived array, in the shape of its chunk grid: a digest of the inputs of each
    chunk.
    """

    digests: Lanes
    own: Lanes
    versions: NDArray[np.uint8]
    attributes: Mapping[str, Any]

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks along each dimension."""
        return self.versions.shape


def software_versions() -> dict[str, str]:
    """Return the package versions to store in records, because results may depend on them."""
    from icefloe._version import __version__

    return {"icefloe": __version__, **{name: packages.version(name) for name in ("numpy", "xarray")}}


def read_records(session: Session, path: str, rank: int) -> DerivedRecords | None:
    """Read the records of a derived array; return None if there are none, or if they are damaged."""
    found = find_array(session, path)
    if found is None or len(found.shape) != rank + 1 or found.shape[-1] != WIDTH:
        return None
    with ignore_warnings():
        data = np.ascontiguousarray(np.asarray(found.zarr[...], np.uint8))
    grid = data.shape[:-1]
    lanes = np.ascontiguousarray(data[..., :32]).view("<u8").astype(np.uint64).reshape(*grid, 4)
    return DerivedRecords(lanes[..., :2], lanes[..., 2:], data[..., 32], found.attributes)


def write_records(session: Session, path: str, records: DerivedRecords) -> None:
    """Store the records of a derived array. Only the parts that changed are written."""
    grid = records.grid
    rest = int(np.prod(grid[1:], dtype=np.int64)) if grid else 1
    rows = max(1, _RECORDS_PER_CHUNK // max(rest, 1)) if grid else 1
    data = np.concatenate(
        [
            np.concatenate([records.digests, records.own], axis=-1).astype("<u8").view(np.uint8),
            records.versions[..., None],
        ],
        axis=-1,
    )
    chunks = (rows, *grid[1:], WIDTH) if grid else (WIDTH,)
    names = (*(f"chunk_{axis}" for axis in range(len(grid))), "record")
    document = array_document(data.shape, chunks, np.dtype("u1"), names, records.attributes, 0, "none")
    before = find_array(session, path)
    if before is not None and before.document["chunk_grid"] != document["chunk_grid"]:
        session._workspace.delete_node(path)
        before = None
    set_document(session, path, document)
    with ignore_warnings():
        array: Any = zarr.open_array(session.store, path=path, mode="r+")
        if not grid:
            array[...] = data
            return
        for first in range(0, grid[0], rows):
            part = data[first : first + rows]
            if before is None or not np.array_equal(np.asarray(array[first : first + rows]), part):
                array[first : first + rows] = part


def set_document(session: Session, path: str, document: Mapping[str, Any]) -> None:
    """Set the `zarr.json` metadata of an array or group, and create missing parent groups."""
    workspace = session._workspace
    group = b'{"attributes":{},"zarr_format":3,"node_type":"group"}'
    for end in [at for at, letter in enumerate(path) if letter == "/" and at]:
        if workspace.node(path[:end]) is None:
            workspace.set_metadata(path[:end], group)
    if workspace.node("/") is None:
        workspace.set_metadata("/", group)
    workspace.set_metadata(path, json.dumps(document).encode())
