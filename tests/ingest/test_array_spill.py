"""Spilled arrays: every chunk is read once, and no spilled object remains."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import Repository
from icefloe.ingest import rechunk
from icefloe.ingest.array_spill import ArraySpill, delete_spills, read_block, spill_block
from icefloe.ingest.plan.task_blocks import UnitGrid, choose_block, compute_read_factor, count_overlaps
from icefloe.storage.memory import MemoryStorage
from tests.support import processes
from tests.support.ingest.files import (
    DIMS,
    Travelling,
    assert_same,
    expected,
    map_files,
    new_repo,
    read,
    run,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

VALUES = np.random.default_rng(1).random((64, 33, 32))
SERIES = {"time": -1, "lat": 4, "lon": 4}
OBJECTS_BYTES = 1 << 17
"""An allowance for Python objects, such as references to blocks: a plan counts the bytes of arrays."""


def maps(folder: Path, values: Any = VALUES, **options: Any) -> Repository:
    """A repository with an array of maps."""
    repo = new_repo(folder)
    session = repo.writable_session("main")
    chunks = (1, *values.shape[1:])
    zarr.create_array(session.store, name="t", data=values, chunks=chunks, dimension_names=DIMS, **options)
    session.commit("maps")
    return repo


def stored(repo: Repository) -> set[str]:
    return {info.key for info in repo.storage.list_prefix("chunks")}


@st.composite
def edges(draw: st.DrawFn, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    inside = draw(st.sets(st.integers(1, size - 1))) if size > 1 else set()
    return np.array([0, *sorted(inside), size], np.int64)


@given(st.data())
def test_blocks_are_assembled_from_spilled_pieces(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    rows, columns = (tuple(data.draw(edges(size)) for size in shape) for _ in range(2))
    spill = ArraySpill("a", "<i4", rows, columns, data.draw(st.integers(1, 5)), "seed")
    values = np.arange(math.prod(shape), dtype="i4").reshape(shape)
    storage = MemoryStorage()

    for number in range(spill.blocks):
        box = spill.get_block(number).box
        spill_block(spill, number, values[tuple(slice(*span) for span in box)], storage)

    for index in np.ndindex(*(len(each) - 1 for each in columns)):
        box = tuple((int(each[i]), int(each[i + 1])) for each, i in zip(columns, index, strict=True))
        wanted = values[tuple(slice(*span) for span in box)]
        np.testing.assert_array_equal(read_block(spill, box, storage), wanted)
    assert {info.key for info in storage.list_prefix("chunks")} == set(spill.list_paths())
    delete_spills([spill], storage)
    assert not list(storage.list_prefix("chunks"))


@given(st.data())
def test_chosen_block_shapes_minimize_reads(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    unit, other = (tuple(data.draw(st.integers(1, size)) for size in shape) for _ in range(2))
    grain, budget = UnitGrid(shape, unit, 2), data.draw(st.integers(1, 2 * math.prod(shape)))

    found = choose_block(grain, other, budget)

    whole = [range(size, -(-full // size) * size + 1, size) for size, full in zip(unit, shape, strict=True)]
    fitting = [box for box in boxes_of(whole) if grain.count_block_bytes(box) <= budget]
    assert (found is None) == (not fitting)
    if found is not None:
        assert grain.count_block_bytes(found) <= budget
        assert count_overlaps(shape, other, found) == min(
            count_overlaps(shape, other, box) for box in fitting
        )


def boxes_of(extents: Sequence[range]) -> list[tuple[int, ...]]:
    grid = np.stack(np.meshgrid(*extents, indexing="ij"), axis=-1).reshape(-1, len(extents))
    return [tuple(box) for box in grid.tolist()]


def test_planned_read_factor_counts_reads_per_chunk() -> None:
    assert compute_read_factor(UnitGrid((10, 7), (1, 7), 4), (10, 2)) == 4
    assert compute_read_factor(UnitGrid((10, 7), (3, 7), 4), (5, 7)) == 5 / 4  # one of four lies across
    assert compute_read_factor(UnitGrid((0, 7), (1, 7), 4), (5, 7)) == 1


def test_rechunk_from_maps_to_time_series_reads_each_chunk_once(tmp_path: Path) -> None:
    repo = maps(tmp_path)
    before, executor = stored(repo), Travelling()

    report = rechunk(repo, "t", executor, chunks=SERIES, memory_bytes=1 << 17)

    assert executor.calls == ["spill_blocks", "write_blocks"]
    assert (report.read_factor, report.spilled_bytes) == (1, VALUES.nbytes)
    assert report.memory_bytes <= 1 << 17
    assert executor.home_bytes < VALUES.nbytes / 10
    array: Any = zarr.open_array(repo.readonly_session("main").store, path="t", mode="r")
    np.testing.assert_array_equal(array[...], VALUES)
    assert array.chunks == (64, 4, 4)
    assert len(stored(repo) - before) == array.nchunks  # and nothing else


@pytest.mark.parametrize("dtype", ["f4", ">i2", "?", "M8[s]", "U3", "V3", "c8"])
def test_values_of_all_types_are_spilled(dtype: str, tmp_path: Path) -> None:
    values = np.arange(32 * 15 * 16).reshape(32, 15, 16)
    typed = values.astype("S3").view("V3") if dtype == "V3" else values.astype(dtype)
    repo = maps(tmp_path, typed)

    memory = typed.nbytes * 2 // 3
    report = rechunk(repo, "t", Travelling(), chunks={"time": -1, "lat": 2, "lon": 3}, memory_bytes=memory)

    assert report.spilled_bytes == typed.nbytes
    array: Any = zarr.open_array(repo.readonly_session("main").store, path="t", mode="r")
    assert array[...].astype(typed.dtype).tobytes() == typed.tobytes()


def test_failed_job_leaves_no_spill(tmp_path: Path) -> None:
    repo = maps(tmp_path)
    before = stored(repo)

    class Failing(Travelling):
        def map(self, task: Any, items: Any, /) -> Any:
            if task.run.__name__ == "write_blocks":
                assert stored(repo) > before  # there is something to be cleared
                raise RuntimeError("lost")
            return super().map(task, items)

    with pytest.raises(RuntimeError, match="lost"):
        rechunk(repo, "t", Failing(), chunks=SERIES, memory_bytes=1 << 17)
    assert stored(repo) == before


def test_spill_of_a_killed_job_is_garbage(tmp_path: Path) -> None:
    repo = maps(tmp_path)
    before = stored(repo)
    place = repo.storage.describe()["path"]
    job = f"""
import os, icefloe
from icefloe._internal.executor import Executor
from icefloe.ingest import rechunk
class Killed(Executor):
    def map(self, task, items):
        if task.run.__name__ == "write_blocks":
            os.kill(os.getpid(), 9)
        return map(task.run, items)
repo = icefloe.Repository.open(icefloe.local_filesystem_storage({place!r}))
rechunk(repo, "t", Killed(), chunks={SERIES!r}, memory_bytes=1 << 17)
"""
    code, printed = processes.run(job)

    assert code == -9, printed
    assert stored(repo) > before
    repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert stored(repo) == before


def test_files_of_maps_become_series(tmp_path: Path) -> None:
    files, repo = map_files(tmp_path, 20), new_repo(tmp_path)
    chunks = {"time": 10, "lat": 10, "lon": 10}

    first = run(repo, files[:12], chunks=chunks, memory_bytes=90_000)

    assert first.plan is not None
    assert (first.plan.spilled_bytes, first.plan.read_factor) == (12 * 40 * 50 * 4, 1)
    assert first.plan.memory_bytes <= 90_000
    assert_same(read(repo), expected(files[:12]))
    more = run(repo, files, memory_bytes=60_000)
    assert more.plan is not None
    assert more.plan.spilled_bytes == 10 * 40 * 50 * 4  # those that share a chunk with new ones, and the new
    assert_same(read(repo), expected(files))


def test_damaged_file_is_reported_and_only_the_inspection_is_kept(tmp_path: Path) -> None:
    files, repo = map_files(tmp_path, 9), new_repo(tmp_path)
    before = stored(repo)
    with h5py.File(files[7]) as file:
        place = file["t"].id.get_chunk_info(0).byte_offset
    data = bytearray(Path(files[7]).read_bytes())
    data[place : place + 40] = bytes(40)
    Path(files[7]).write_bytes(data)

    with pytest.raises(icefloe.IcechunkError, match=r"07\.nc.*t cannot be read"):
        run(repo, files, chunks={"time": -1, "lat": 10, "lon": 10}, memory_bytes=60_000)

    assert len(stored(repo) - before) == 1
    assert len(list(repo.ancestry(branch="main"))) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a task takes")
def test_tasks_stay_within_the_stated_memory(tmp_path: Path) -> None:
    """Measured in a separate process: the memory that a task adds."""
    values = np.random.default_rng(2).normal(280, 1, (48, 360, 720)).astype("f4")
    job = """
import icefloe, numpy, sys, zarr
from pathlib import Path
from icefloe._internal.executor import Executor
from icefloe.ingest import rechunk_job as rechunking
def held(what):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) << 10
class Measuring(Executor):
    def map(self, task, items):
        for item in items:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = held("VmRSS")
            yield task.run(item)
            print(held("VmHWM") - before)
zarr.create_array(zarr.storage.MemoryStore(), data=numpy.ones(9))[...]  # starts its threads
repo = icefloe.Repository.open(icefloe.local_filesystem_storage(sys.argv[1]))
report = rechunking.rechunk(
    repo, "t", Measuring(), chunks={"time": -1, "lat": 24, "lon": 24}, memory_bytes=24 << 20
)
print(report.memory_bytes)
"""
    # The resident memory also depends on when threads of the C library return pages.
    for _ in range(3):
        repo = maps(tmp_path, values, compressors=None)
        command = [sys.executable, "-c", job, repo.storage.describe()["path"]]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        *held, stated = map(int, done.stdout.split())
        if max(held) <= stated + OBJECTS_BYTES:
            break

    assert len(held) > 4
    assert max(held) <= stated + OBJECTS_BYTES
    assert stated <= 24 << 20
