"""Run an extraction, either completely in this process or as one of several tasks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final, TypeAlias

import pyarrow as pa

from icefloe.query.extract.array_cells import FETCHED_AHEAD, fetch_ahead
from icefloe.query.extract.cells import ExtractionArrays
from icefloe.query.extract.points import PointPlan, read_points
from icefloe.query.extract.zones import ZonePlan, read_zones

_BLOCKS_AHEAD: Final = 4
"""The number of blocks to prefetch, to hide the latency of a server. There is no prefetching from local
disks, because threads would cost a tenth more CPU time."""
Extraction: TypeAlias = PointPlan | ZonePlan


def divide_blocks(job: Extraction, slots: int) -> list[range]:
    """Divide the blocks of an extraction into tasks: one per slot, or more if a task would otherwise read
    more than the partition size.
    """
    count = job.slices.count
    size = max(job.slices.count_bytes(job.cells) * count, 1)
    tasks = min(max(slots, -(-size // job.scan.partition_bytes)), count)
    borders = [count * number // max(tasks, 1) for number in range(tasks + 1)]
    return [range(*pair) for pair in pairwise(borders)]


def read_extraction(job: Extraction, numbers: range) -> Iterator[pa.RecordBatch]:
    """Extract the values at points or over zones for some blocks of the other dimensions, such as time.

    Arrays are opened once. If the repository is on a server, blocks and chunks are prefetched.
    """
    session = job.scan.session
    is_local = session.store._at_once
    with (  # threads start on first use
        ThreadPoolExecutor(FETCHED_AHEAD, "icefloe-fetch") as fetching,
        ThreadPoolExecutor(_BLOCKS_AHEAD, "icefloe-extract") as reading,
    ):
        arrays = ExtractionArrays(session, job.slices, job.labels, None if is_local else fetching)

        def read(number: int) -> list[pa.RecordBatch]:
            found = (
                read_points(job, arrays, number)
                if isinstance(job, PointPlan)
                else read_zones(job, arrays, number)
            )
            return list(found)

        for _, batches in fetch_ahead(None if is_local else reading, read, numbers, _BLOCKS_AHEAD):
            yield from batches


def collect(job: Extraction) -> pa.Table:
    """Extract the values of all blocks in this process, and return them as one table."""
    return pa.Table.from_batches(read_extraction(job, range(job.slices.count)), job.schema)
