"""Run extractions in this process, on threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

import pyarrow as pa

from icefloe.query.extract.points import PointPlan, read_points
from icefloe.query.extract.zones import ZonePlan, read_zones

_THREADS: Final = 4
Extraction: TypeAlias = PointPlan | ZonePlan


def read_slice(job: Extraction, number: int) -> Iterator[pa.RecordBatch]:
    """Read the values of one block along the dimensions that are not looked up."""
    return read_points(job, number) if isinstance(job, PointPlan) else read_zones(job, number)


def collect(job: Extraction) -> pa.Table:
    """Read the values of all blocks."""
    with ThreadPoolExecutor(_THREADS, "icefloe-extract") as pool:
        parts = pool.map(lambda number: list(read_slice(job, number)), range(job.slices.count))
        return pa.Table.from_batches([batch for part in parts for batch in part], job.schema)
