"""Collect chunk statistics, either while decoded blocks are written or later by reading chunks.

A writer that has decoded blocks in memory adds them to a `Collector`, whose result is small and can be sent
to the process that commits. After the commit, `record_statistics` writes the statistics files for the new
manifests. `fill_statistics` reads chunks without statistics in parallel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import NodeId
from icefloe._internal.paths import LEDGERS, is_within
from icefloe._internal.printable import escape_control
from icefloe._internal.report import Report
from icefloe._internal.warnings import ignore_warnings
from icefloe.core.chunk_grid import Grid, count_item_bytes, get_stored_grid
from icefloe.core.fingerprints import fingerprint_refs
from icefloe.errors import IcechunkError
from icefloe.format import coordinates
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.maintenance.statistics.files import LOGGER, Rows, write_file
from icefloe.maintenance.statistics.lookup import (
    ArrayChunks,
    ChunkStatistics,
    find_statistics,
    list_chunks,
    to_rows,
)
from icefloe.maintenance.statistics.meaning import Meaning, find_meaning, is_lossless
from icefloe.maintenance.statistics.summarize import Row, summarize, to_statistics
from icefloe.session import Session

_TASK_BYTES: Final = 64 << 20
"""The decoded size in bytes of the chunks that each task reads."""


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """Chunk statistics of one array, collected by a writer."""

    path: str
    node: NodeId
    rows: Rows


class Collector:
    """Collects chunk statistics from the blocks that a session or fork writes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._arrays: dict[str, _WrittenArray | None] = {}

    def add(self, path: str, box: Sequence[slice], values: NDArray[Any]) -> None:
        """Collect statistics from a block of values that was written to a region of an array.

        Chunks that lie completely inside the region get statistics if the array's codecs are lossless.
        """
        path = "/" + path.strip("/")
        if path not in self._arrays:
            self._arrays[path] = _open_array(self._session, path)
        array = self._arrays[path]
        if array is not None:
            array.add(box, values)

    def finish(self) -> tuple[Collected, ...]:
        """Return the collected statistics with the fingerprints of the written chunk references."""
        found = (
            _join_references(self._session, path, array)
            for path, array in self._arrays.items()
            if array is not None
        )
        return tuple(each for each in found if each is not None)


@dataclass(frozen=True, slots=True)
class _WrittenArray:
    node: NodeSnapshot
    grid: Grid
    meaning: Meaning
    rows: dict[tuple[int, ...], Row]
    """The statistics of each chunk, by chunk coordinates."""

    def add(self, box: Sequence[slice], values: NDArray[Any]) -> None:
        if values.dtype != self.meaning.coding.stored:
            values = values.astype(self.meaning.coding.stored)  # as zarr does
        for coords in product(*self.grid.find_touched(box)):  # a block contains few chunks
            inside = self.grid.inside(coords)
            self.rows.pop(coords, None)
            if all(o.start <= i.start and i.stop <= o.stop for o, i in zip(box, inside, strict=True)):
                own: tuple[Any, ...] = tuple(
                    slice(i.start - o.start, i.stop - o.start) for o, i in zip(box, inside, strict=True)
                )
                self.rows[coords] = summarize(
                    values[(*own, ...)], self.meaning
                )  # indexing with ... returns scalars as arrays


def _open_array(session: Session, path: str) -> _WrittenArray | None:
    node = session._workspace.node(path)
    if node is None or not isinstance(node.node_data, ArrayNodeData):
        return None
    document, meaning = json.loads(node.user_data), find_meaning(node.user_data)
    if meaning is None or 0 in document["shape"] or not is_lossless(document["codecs"]):
        return None
    return _WrittenArray(node, get_stored_grid(document), meaning, {})


def _join_references(session: Session, path: str, array: _WrittenArray) -> Collected | None:
    """Join statistics with the chunk references that the session has written."""
    delta = session._workspace.changes.chunks.get(array.node.id)
    if delta is None or not array.rows:
        return None
    with session._workspace.exclusive():
        refs, _ = delta.resolve()
    if refs is None:
        return None
    coords = np.array(sorted(array.rows), np.uint32).reshape(len(array.rows), refs.rank)
    refs = refs.take(coordinates.contains(refs.coords, coords))
    written = list(map(tuple, refs.coords.tolist()))
    sizes = [
        [
            (box.stop - box.start, min(box.stop, size) - box.start)
            for box, size in zip(boxes, array.grid.shape, strict=True)
        ]
        for boxes in map(array.grid.box, written)
    ]
    shapes = np.array(sizes, np.uint32).reshape(len(written), refs.rank, 2)
    statistics = to_statistics([array.rows[each] for each in written], array.meaning)
    rows = Rows(fingerprint_refs(refs)[:, 1], shapes[..., 1], shapes[..., 0], statistics)
    return Collected(path, array.node.id, rows)


def record_statistics(session: Session, collected: Iterable[Collected]) -> int:
    """Write the statistics that tasks collected for a commit to files, and return the number of files.

    `session` is the session after its commit. Chunks keep statistics that other manifests had. A failure is
    only logged, because the data is already committed, and queries read chunks without statistics.
    """
    if session.has_uncommitted_changes:
        return 0  # another attempt of the same job has already committed
    by_array: dict[tuple[str, NodeId], list[Rows]] = {}
    for each in collected:
        by_array.setdefault((each.path, each.node), []).append(each.rows)
    written = 0
    try:
        for (path, node), parts in by_array.items():
            chunks = list_chunks(session, path)
            if chunks is not None and chunks.node.id == node:
                rows = Rows.concat(parts)
                found = find_statistics(session, chunks, [rows])
                new = np.isin(chunks.keys, rows.keys)
                written += _write_files(session, found, new)
    except IcechunkError as error:
        LOGGER.warning("statistics were not recorded: %s", escape_control(str(error)))
    return written


def _write_files(session: Session, found: ChunkStatistics, new: NDArray[np.bool_]) -> int:
    """Write a statistics file for each manifest that has new statistics."""
    chunks, storage, written = found.chunks, session._assets.storage, 0
    data = chunks.node.node_data
    for ref in data.manifests if isinstance(data, ArrayNodeData) else ():
        coords = session._workspace.manifest_refs(chunks.node, ref).coords
        mine = coordinates.contains(chunks.refs.coords, coords)
        if (mine & new).any():
            rows = to_rows(found, mine)
            write_file(storage, ref.id, chunks.node.id, chunks.grid.shape, chunks.meaning, rows)
            written += 1
    return written


def collect_after_commit(session: Session, paths: Sequence[str]) -> None:
    """Collect statistics from the new chunks of arrays after a commit. Failures are only logged."""
    try:
        fill_statistics(session, session.executor, [path for path in paths if _is_data(session, path)])
    except Exception as error:  # noqa: BLE001 - codecs raise anything, and the data are committed
        LOGGER.warning("statistics were not collected: %s", escape_control(str(error)))


def _is_data(session: Session, path: str) -> bool:
    """Return True if there is an array at the path and it is not one of icefloe's ledgers or records."""
    node = None if is_within(path, LEDGERS) else session._workspace.node(path)
    return node is not None and isinstance(node.node_data, ArrayNodeData)


@dataclass(frozen=True, slots=True)
class StatisticsReport(Report):
    """The result of collecting statistics."""

    chunks: int
    """The number of chunks that were read."""
    known: int
    """The number of chunks that already had statistics."""
    unchecked: int
    """The number of virtual chunks without a checksum, which cannot have statistics."""
    files: int
    """The number of statistics files that were written."""
    arrays: tuple[str, ...] = ()
    """The arrays whose chunks were read."""


def collect_statistics(
    sessions: Iterable[Session], executor: Executor, paths: Sequence[str] | None = None
) -> StatisticsReport:
    """Collect and record statistics of the chunks in several snapshots that have none, as `icefloe
    statistics` does.
    """
    reports = [fill_statistics(session, executor, paths) for session in sessions]
    arrays = dict.fromkeys(path for report in reports for path in report.arrays)
    names = ("chunks", "known", "unchecked", "files")
    counts = {name: sum(getattr(report, name) for report in reports) for name in names}
    return StatisticsReport(**counts, arrays=tuple(arrays))


def fill_statistics(
    session: Session, executor: Executor, paths: Sequence[str] | None = None
) -> StatisticsReport:
    """Collect and record statistics of the chunks that have none in the given arrays.

    Parameters
    ----------
    session
        A session without uncommitted changes, on the snapshot to describe.
    executor
        The executor that runs the tasks, each of which reads some of the chunks.
    paths
        The paths of arrays; all arrays by default.
    """
    session._assets.storage.check_writable()
    read = known = unchecked = files = 0
    done: list[str] = []
    for path in _list_arrays(session) if paths is None else paths:
        chunks = list_chunks(session, path)
        if chunks is None:
            continue
        found = find_statistics(session, chunks)
        lacking = ~found.known[chunks.numbers]
        unchecked += int((~chunks.is_checked).sum())
        wanted = chunks.numbers[lacking & chunks.is_checked]
        known += int((~lacking).sum())
        parts = read_statistics(session, chunks, wanted, executor)
        if len(wanted):
            done.append(path)
            read += len(wanted)
            found = find_statistics(
                session, chunks, [to_rows(found), *(rows for rows, _ in parts)], use_files=False
            )
        own = find_statistics(session, chunks, only_own=True)
        new = found.known[chunks.numbers] & ~own.known[chunks.numbers]
        files += _write_files(session, found, new)
    return StatisticsReport(read, known, unchecked, files, tuple(done))


def _list_arrays(session: Session) -> list[str]:
    """List the arrays that have chunks, except icefloe's own ledgers and records."""
    workspace = session._workspace
    paths = [path for path in workspace.paths() if not is_within(path, LEDGERS)]
    return [node.path for node in workspace.arrays_with_chunks(paths)]


def read_statistics(
    session: Session, chunks: ArrayChunks, numbers: NDArray[np.int64], executor: Executor
) -> list[tuple[Rows, NDArray[np.int64]]]:
    """Compute statistics from the values of chunks, which are given by their numbers in the grid.

    Returns the statistics in several parts, each with the numbers of its chunks.
    """
    tasks = list(_make_tasks(session, chunks, numbers))
    found = executor.map(Task(_read_chunks, "chunk batches"), tasks) if tasks else ()
    return [(rows, task.numbers) for rows, task in zip(found, tasks, strict=True)]


@dataclass(frozen=True, slots=True)
class _ReadTask:
    session: Session
    path: str
    numbers: NDArray[np.int64]


def _make_tasks(session: Session, chunks: ArrayChunks, numbers: NDArray[np.int64]) -> Iterator[_ReadTask]:
    size = count_item_bytes(chunks.meaning.coding.stored) * int(
        np.prod([int(np.diff(edges).max(initial=1)) for edges in chunks.grid.edges], dtype=np.int64)
    )
    share = max(1, min(_TASK_BYTES // max(size, 1), 4096))
    for start in range(0, len(numbers), share):
        yield _ReadTask(session, chunks.path, numbers[start : start + share])


def _read_chunks(task: _ReadTask) -> Rows:
    """Read chunks and compute their statistics, on an executor."""
    import zarr

    chunks = list_chunks(task.session, task.path)
    if chunks is None:
        raise ValueError(f"{task.path} has no statistics")
    with ignore_warnings():
        array: Any = zarr.open_array(task.session.store, path=task.path, mode="r")
        rows = []
        for number in task.numbers.tolist():  # each is a read of a chunk
            coords = tuple(map(int, np.unravel_index(number, chunks.counts))) if chunks.counts else ()
            values = np.asarray(array[chunks.grid.inside(coords)], chunks.meaning.coding.stored)
            rows.append(summarize(values, chunks.meaning))
    where = np.searchsorted(chunks.numbers, task.numbers)
    return Rows(
        chunks.keys[where],
        chunks.clips(task.numbers),
        chunks.shapes(task.numbers),
        to_statistics(rows, chunks.meaning),
    )
