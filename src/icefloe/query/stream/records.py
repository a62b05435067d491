"""List the commits and changed chunks between two stream positions as Arrow record batches, without reading
chunks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.comparison.versions import compare
from icefloe.core.reference_columns import to_absolute_locations
from icefloe.core.workspace import Workspace
from icefloe.format import coordinates
from icefloe.query.metadata_tables import CHUNKS, TABLES, make_chunk_batch
from icefloe.query.stream.rows import CHANGE, REMOVED, WRITTEN, add_change
from icefloe.session import Session
from icefloe.snapshots import SnapshotInfo

_SNAPSHOTS: Final = TABLES["snapshots"].schema
COMMIT_SCHEMA: Final = pa.schema([field for field in _SNAPSHOTS if field.name != "commits_before"])
CHUNK_SCHEMA: Final = CHUNKS.append(pa.field(CHANGE, pa.string()))


def make_commit_batch(commits: Sequence[SnapshotInfo]) -> pa.RecordBatch:
    """Return a record batch with one row per commit."""
    rows = [
        (each.id, each.parent_id, each.written_at, each.message, json.dumps(each.metadata, default=str))
        for each in commits
    ]
    columns = zip(*rows, strict=True) if rows else ([] for _ in COMMIT_SCHEMA)
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns, COMMIT_SCHEMA.types)), schema=COMMIT_SCHEMA)


def list_changed_arrays(
    before: Session | None, after: Session, group: str, variables: Sequence[str] | None
) -> list[str]:
    """List the arrays of a group whose chunk references differ between two versions."""
    if before is None:
        space = after._workspace
        paths = [node.path for node in space.arrays_with_chunks(space.paths())]
    else:
        paths = list(compare(before, after).chunks)
    prefix = group.rstrip("/") + "/"
    wanted = None if variables is None else {prefix + name for name in variables}
    return [path for path in paths if (path.startswith(prefix) if wanted is None else path in wanted)]


def read_changed_chunks(before: Session | None, after: Session, path: str) -> Iterator[pa.RecordBatch]:
    """Yield record batches of the chunk references of an array that changed between two versions."""
    space = after._workspace
    if before is None:
        yield from _make_batches(space, path, None, WRITTEN)
        return
    found = compare(before, after, path=path).chunks.get(path)
    if found is None:
        return
    written = np.concatenate([found.added, found.changed])
    yield from _make_batches(space, path, written, WRITTEN)
    yield from _make_batches(before._workspace, path, found.removed, REMOVED)


def _make_batches(
    space: Workspace, path: str, coords: coordinates.Coords | None, change: str
) -> Iterator[pa.RecordBatch]:
    if coords is not None and not len(coords):
        return
    refs = space.refs(space.array(path))
    if coords is not None:
        refs = refs.take(coordinates.contains(refs.coords, coordinates.keep_last_of_equal(coords)[0]))
    locations = to_absolute_locations(refs.locations, space.assets.virtual.containers)
    etags = pa.array([tag.decode() for tag in refs.etags.tolist()], pa.string())
    yield add_change(make_chunk_batch(path, refs, pa.array(locations, pa.string()), etags), change)


def count_changed_bytes(before: Session | None, after: Session, group: str) -> int:
    """Count the bytes of all chunks in a group that were written between two versions."""
    total = 0
    for path in list_changed_arrays(before, after, group, None):
        for batch in read_changed_chunks(before, after, path):
            written = batch.filter(pc.equal(batch.column(CHANGE), WRITTEN))
            total += pc.sum(written.column("length")).as_py() or 0
    return total
