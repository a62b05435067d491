"""Tasks stay within their memory: files are read in parts that consist of whole chunks."""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from icefloe._internal.executor import Executor, Task
from icefloe.ingest.combine.pieces import Pieces
from icefloe.ingest.job import ingest
from icefloe.ingest.options import Check, make_options
from tests.support.ingest.files import START, assert_same, expected, new_repo, read, write

MEMORY_BYTES = 1 << 20
OBJECTS_BYTES = 1 << 17
"""An allowance for Python objects, such as frames and dictionaries: a plan counts the bytes of arrays."""
TRACED = {"write_blocks", "compare_blocks", "count_boxes"}


@given(st.data())
def test_planned_parts_cover_a_block_without_dividing_chunks(data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 3))
    shape, unit, begin = (
        data.draw(st.lists(st.integers(low, 9), min_size=rank, max_size=rank)) for low in (1, 1, 0)
    )
    cells = data.draw(st.integers(0, 80))
    whole = Pieces.whole(3, shape, begin)

    parts = list(whole.split(unit, cells))

    filled = np.zeros(shape, int)
    for part in parts:
        start, stop = part.starts[0], part.starts[0] + part.shape[0]
        filled[tuple(map(slice, start.tolist(), stop.tolist()))] += 1
        assert (part.source_starts[0] - part.starts[0] == begin).all()
        for axis, (a, b) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
            assert a == 0 or (a + begin[axis]) % unit[axis] == 0
            assert b == shape[axis] or (b + begin[axis]) % unit[axis] == 0
        assert int(part.shape.prod()) <= max(cells, math.prod(unit))
    assert (filled == 1).all()


class Measuring(Executor):
    """An executor in this process that records the peak memory of each task."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}

    def map(self, task: Task[Any, Any], items: Iterable[Any], /) -> Iterator[Any]:
        name = getattr(task.run, "__name__", "")
        if name not in TRACED:
            yield from map(task.run, items)
            return
        gc.collect()  # so that the next collection does not depend on what ran before
        for item in items:
            tracemalloc.start()
            try:
                yield task.run(item)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            self.peaks[name] = max(peak, self.peaks.get(name, 0))


@pytest.mark.parametrize(("chunks", "packed"), [(None, False), ((6, 50, 100), True)])
def test_tasks_stay_within_their_memory(tmp_path: Path, chunks: tuple[int, ...] | None, packed: bool) -> None:
    """One file is twice as large as the memory, another stores its values differently."""
    files = []
    for number in range(2):
        values = np.random.default_rng(number).integers(0, 1000, (24, 200, 100)).astype("f4") / 4
        time = START + (np.arange(24) + 24 * number) * np.timedelta64(1, "h")
        encoding: dict[str, Any] = {"chunksizes": chunks} if chunks else {"contiguous": True}
        if packed:
            encoding |= {"dtype": "i2", "scale_factor": 0.25 / (number + 1), "_FillValue": -1}
        files.append(
            write(
                tmp_path / f"{number}.nc",
                xr.Dataset({"a": (("time", "y", "x"), values)}, {"time": time}),
                {"a": encoding},
            )
        )
    checks = (Check("source"), Check("range", "a", low=0, high=1000))
    options = make_options(chunks={"time": 4, "y": 50}, memory_bytes=MEMORY_BYTES, checks=checks)

    # Tracing also counts modules that a task loads, and threads of other tests: the lowest peak counts.
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        repo, measuring = new_repo(folder), Measuring()
        report = ingest(repo, files, options, measuring)
        if max(measuring.peaks.values()) < MEMORY_BYTES + OBJECTS_BYTES:
            break

    assert_same(read(repo), expected(files))
    assert report.plan is not None
    assert report.plan.memory_bytes <= MEMORY_BYTES
    assert set(measuring.peaks) == TRACED
    assert max(measuring.peaks.values()) < MEMORY_BYTES + OBJECTS_BYTES, measuring.peaks
