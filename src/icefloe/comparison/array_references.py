"""The chunk references of an array in one version, in columnar form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import encode_column
from icefloe._internal.paths import normalize
from icefloe._internal.report import Report
from icefloe._internal.table import Table
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, NodeNotFoundError
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.session import Session

__all__ = ["CHUNK_KINDS", "ArrayReferences", "chunk_references"]

CHUNK_KINDS: Final = ("native", "virtual", "inline")
"""The names of reference kinds. `ArrayReferences.kinds` contains indices into this tuple."""
_CODES: Final = np.array([0, 0, 1, 2], np.uint8)
"""The index into CHUNK_KINDS for each kind in a manifest: NATIVE, VIRTUAL and INLINE."""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayReferences(Report):
    """The chunk references of an array in one version, as columns with one row per chunk, sorted by
    coordinates.
    """

    path: str
    """Path of the array."""
    grid: tuple[int, ...]
    """The number of chunks along each dimension."""
    coords: NDArray[np.uint32]
    """The chunk coordinates, of shape `(rows, dimensions)`."""
    kinds: NDArray[np.uint8]
    """The index into `CHUNK_KINDS`: 0 for native, 1 for virtual, 2 for inline chunks."""
    lengths: NDArray[np.uint64]
    """The stored size of each chunk in bytes."""
    offsets: NDArray[np.uint64]
    """The offset of the first byte in the chunk object or source file; 0 for inline chunks."""
    chunk_ids: NDArray[np.uint8]
    """The ids of chunk objects, of shape `(rows, 12)`; zeros for chunks that are not native."""
    locations: tuple[str, ...]
    """The distinct URLs of source files."""
    location_codes: NDArray[np.int64]
    """The index into `locations`; -1 for chunks that are not virtual."""

    def __len__(self) -> int:
        return len(self.coords)

    def table(self) -> Table:
        """Return the chunk references of the array as a table with one row per chunk.

        Returns
        -------
        Table
            The columns `chunk_0`, `chunk_1`, ... (coordinates), `kind`, `length_bytes`, `offset_bytes`,
            `chunk_id` and `location`; the last two are None where they do not apply.
        """
        columns: dict[str, Any] = to_coordinate_columns(self.coords)
        ids = np.array([None, *encode_column(self.chunk_ids)], object)[1:]
        ids[self.kinds != 0] = None
        locations = np.array([*self.locations, None], object)
        columns |= {
            "kind": np.array(CHUNK_KINDS, object)[self.kinds],
            "length_bytes": self.lengths,
            "offset_bytes": self.offsets,
            "chunk_id": ids,
            "location": locations[self.location_codes],
        }
        return Table(columns)

    def to_dict(self) -> dict[str, Any]:
        # docstring inherited
        return {"path": self.path, "grid": list(self.grid), "chunks": list(self.table().rows())}


def chunk_references(session: Session, path: str) -> ArrayReferences:
    """List the chunk references of an array in one version as columns, without reading chunks.

    Parameters
    ----------
    session
        A session on the version to list. Uncommitted changes of a writable session are included.
    path
        Path of the array.

    Returns
    -------
    ArrayReferences
        One row per chunk that exists.

    Raises
    ------
    NodeNotFoundError
        There is no array at the path.

    Examples
    --------
    >>> import numpy as np, zarr, icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="data") as store:
    ...     _ = zarr.create_array(store, name="a", data=np.arange(1, 4), chunks=2)
    >>> refs = icefloe.chunk_references(repo.readonly_session("main"), "a")
    >>> refs.coords.tolist(), refs.kinds.tolist()
    ([[0], [1]], [2, 2])
    """
    node = find_array(session._workspace, path)
    refs = session._workspace.refs(node)
    return _to_columns(node, refs)


def find_array(workspace: Workspace, path: str) -> NodeSnapshot:
    """Return the array at a path; raise NodeNotFoundError if there is none."""
    whole = normalize(f"/{path}")
    node = workspace.node(whole)
    if node is None or not isinstance(node.node_data, ArrayNodeData):
        problem = "no node" if node is None else "a group, not an array,"
        raise NodeNotFoundError(f"{whole} cannot be compared: it is {problem}", kind=ErrorKind.NODE_NOT_FOUND)
    return node


def count_chunks(node: NodeSnapshot) -> tuple[int, ...]:
    """Return the number of chunks of an array along each dimension."""
    data = node.node_data
    return tuple(each.num_chunks for each in data.shape) if isinstance(data, ArrayNodeData) else ()


def to_coordinate_columns(coords: Coords) -> dict[str, Any]:
    """Return chunk coordinates as one column per dimension."""
    return {f"chunk_{axis}": coords[:, axis] for axis in range(coords.shape[1])}


def _to_columns(node: NodeSnapshot, refs: ArrayManifest) -> ArrayReferences:
    virtual, inline, native = (refs.kind == kind for kind in (VIRTUAL, INLINE, NATIVE))
    used, codes = np.unique(refs.location_codes[virtual], return_inverse=True)
    location_codes = np.full(len(refs), -1, np.int64)
    location_codes[virtual] = codes
    lengths = np.where(inline, refs.inline.lengths.astype(np.uint64), refs.lengths)
    return ArrayReferences(
        path=node.path,
        grid=count_chunks(node),
        coords=refs.coords,
        kinds=_CODES[refs.kind],
        lengths=lengths,
        offsets=np.where(inline, np.uint64(0), refs.offsets),
        chunk_ids=np.where(native[:, None], refs.chunk_ids, np.uint8(0)),
        locations=tuple(each.decode("utf-8", "replace") for each in refs.locations.take(used).tolist()),
        location_codes=location_codes,
    )
