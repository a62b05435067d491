"""Benchmark chunk statistics: the size of files, `max` over a million chunks, and the cost of collecting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from benchmarks import deriving
from benchmarks.harness import Job, Row, Side
from icefloe.maintenance.statistics.collect import Collector
from icefloe.maintenance.statistics.files import Rows, encode_rows, write_file
from icefloe.maintenance.statistics.lookup import list_chunks
from icefloe.maintenance.statistics.summarize import Statistics
from icefloe.query.local.scan import LocalScan, scan

WRITTEN = (32, 361, 720)
"""Shape of the array that is written with and without statistics: 33 MB."""


def setup(folder: Path) -> None:
    """Create a million references with statistics, which vary like those of weather data."""
    deriving.setup_planned(folder)
    session = _open(folder).readonly_session("main")
    chunks = list_chunks(session, "/a")
    assert chunks is not None
    random, count = np.random.default_rng(0), len(chunks.refs)
    found = Statistics.empty(chunks.meaning, count)
    middle = 280 + 20 * np.sin(np.arange(count) / 500) + random.normal(0, 3, count)
    found.minimum[:], found.maximum[:] = (middle - 9).round(2), (middle + 9).round(2)
    found.total[:], found.m2[:] = middle * 1e5 + random.normal(0, 1, count), random.gamma(9, 1e5, count)
    rows = Rows(chunks.keys, chunks.clips(chunks.numbers), chunks.shapes(chunks.numbers), found)
    data: Any = chunks.node.node_data
    write_file(
        session._assets.storage, data.manifests[0].id, chunks.node.id, chunks.grid.shape, chunks.meaning, rows
    )
    size = len(encode_rows([chunks.node.id], chunks.grid.shape, chunks.meaning, rows))
    assert size <= 30_000_000 * count / 1_000_000, size


def _open(folder: Path) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder / "repo")))


def _load(folder: Path) -> LocalScan:
    found = scan(_open(folder), variables="a")
    assert found.statistics is not None
    found.statistics.get(found.table.column("a"))
    return found


def prepare_max(folder: Path, _: Path) -> Job:
    """Load the statistics of a million chunks."""
    found = _load(folder)
    return lambda: found.aggregate(a="max").to_pylist()


def prepare_load(folder: Path, _: Path) -> Job:
    """Open the repository and load the statistics of a million chunks."""
    return lambda: _load(folder)


def _prepare_writing(empty: Path, *, collects: bool) -> Job:
    values = np.random.default_rng(0).normal(280, 10, WRITTEN).round(2).astype("f4")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(empty / "repo")))

    def job() -> Any:
        session = repo.writable_session("main")
        array = zarr.create_array(
            session.store, name="a", shape=WRITTEN, chunks=(4, 361, 360), dtype="f4", overwrite=True
        )
        collector = Collector(session)
        array[...] = values
        if collects:
            collector.add("/a", tuple(slice(0, size) for size in WRITTEN), values)
            collector.finish()
        return session.has_uncommitted_changes

    return job


def prepare_collecting(_: Path, empty: Path) -> Job:
    """Write chunks, and collect their statistics."""
    return _prepare_writing(empty, collects=True)


def prepare_writing(_: Path, empty: Path) -> Job:
    """Write the same chunks without statistics."""
    return _prepare_writing(empty, collects=False)


ROWS = (
    Row(
        "statistics-max",
        f"max over {int(np.prod(deriving.PLANNED)):,} chunks, statistics loaded (target: 50 ms)",
        Side("plan and answer", prepare_max),
        setup=setup,
    ),
    Row(
        "statistics-load",
        f"load the statistics of {int(np.prod(deriving.PLANNED)):,} chunks (at most 30 MB on disk)",
        Side("read references and statistics, match them", prepare_load),
        setup=setup,
        repeat=3,
    ),
    Row(
        "statistics-collect",
        "write 33 MB in chunks of 2 MB with statistics, and without (target: at most 15 % more CPU)",
        Side("write and collect", prepare_collecting),
        Side("write", prepare_writing),
        cpu_ratio=0.87,
    ),
)
