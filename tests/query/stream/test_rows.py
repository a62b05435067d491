"""Apply the changed rows of a stream to a copy of the table: the copy must equal the table."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.query.scan.plan import scan_table
from icefloe.query.schema import find_tables
from icefloe.query.stream.rows import (
    CHANGE,
    REMOVED,
    WRITTEN,
    TableChanges,
    find_equal_values,
    find_table,
    match_labels,
)
from icefloe.xarray import to_icechunk
from tests.support.spark.weather import put, weather

COLUMNS = ["time", "lat", "lon", "t2m", "rain"]
Key = tuple[Any, ...]


def create_repository(dataset: xr.Dataset) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    put(repo, dataset, {name: {"chunks": (2, 3, 4)} for name in ("t2m", "rain")})
    return repo


def read_changes(repo: icefloe.Repository, before: str | None, after: str) -> list[dict[str, Any]]:
    """Read the changed rows between two snapshots, as the tasks of a micro-batch do."""

    def scan(snapshot_id: str) -> Any:
        session = repo.readonly_session(snapshot_id=snapshot_id)
        return scan_table(session, find_table(session, "/", COLUMNS, every_column=True))

    changes = TableChanges.between(None if before is None else scan(before), scan(after))
    plan = changes.new.plan()
    batches = list(changes.read_written(plan, changes.find_changed_blocks(plan).tolist()))
    for each in changes.removed():
        for partition in range(each.plan().partitions):
            batches += changes.read_removed(each, partition)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist() if batches else []
    return rows


def get_key(row: dict[str, Any]) -> Key:
    return row["time"], row["lat"], row["lon"]


def read_all(repo: icefloe.Repository, snapshot_id: str) -> dict[Key, Key]:
    rows = read_changes(repo, None, snapshot_id)
    return {get_key(row): (row["t2m"], row["rain"]) for row in rows}


def apply_changes(copy: dict[Key, Key], rows: list[dict[str, Any]]) -> None:
    keys = [get_key(row) for row in rows]
    assert len(set(keys)) == len(keys)
    for row in rows:
        if row[CHANGE] == REMOVED:
            assert (row["t2m"], row["rain"]) == (None, None)
            del copy[get_key(row)]
        else:
            assert copy.get(get_key(row)) != (row["t2m"], row["rain"])  # nothing is emitted without a reason
            copy[get_key(row)] = (row["t2m"], row["rain"])


def load(repo: icefloe.Repository) -> xr.Dataset:
    dataset: xr.Dataset = xr.open_zarr(repo.readonly_session("main").store, consolidated=False)
    return dataset.load()


def write_cell(repo: icefloe.Repository, random: np.random.Generator) -> None:
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="rain")
    at = tuple(int(random.integers(0, size)) for size in array.shape)
    array[at] = int(random.integers(0, 1000))
    session.commit("one cell")


def append_days(repo: icefloe.Repository, random: np.random.Generator) -> None:
    last = load(repo)["time"].values.max()
    later = weather(int(random.integers(1, 4)), (6, 8))
    later["time"] = last + (np.arange(later.sizes["time"]) + 1) * np.timedelta64(1, "D")
    session = repo.writable_session("main")
    to_icechunk(later, session, append_dim="time")
    session.commit("more days")


def rewrite(repo: icefloe.Repository, dataset: xr.Dataset, chunks: tuple[int, int, int]) -> None:
    for name in dataset.variables:
        dataset[name].encoding = {}
    session = repo.writable_session("main")
    encoding = {name: {"chunks": chunks} for name in ("t2m", "rain")}
    to_icechunk(dataset, session, mode="w", encoding=encoding)
    session.commit("written again")


def drop_days(repo: icefloe.Repository, random: np.random.Generator) -> None:
    dataset = load(repo)
    if dataset.sizes["time"] > 3:
        rewrite(repo, dataset.isel(time=slice(int(random.integers(1, 3)), None)), (2, 3, 4))


def change_chunks(repo: icefloe.Repository, random: np.random.Generator) -> None:
    rewrite(repo, load(repo), (3, 2, 8))


def reorder_latitudes(repo: icefloe.Repository, random: np.random.Generator) -> None:
    dataset = load(repo)
    rewrite(repo, dataset.isel(lat=random.permutation(dataset.sizes["lat"])), (2, 3, 4))


def move_label(repo: icefloe.Repository, random: np.random.Generator) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="lon")[int(random.integers(0, 8))] = float(
        random.integers(100, 10**6)
    )
    session.commit("another longitude")


def amend(repo: icefloe.Repository, random: np.random.Generator) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="t2m")[0, 0, :4] = random.normal(size=4)
    session.amend("amended")


def reset(repo: icefloe.Repository, random: np.random.Generator) -> None:
    history = [info.id for info in repo.ancestry(branch="main")]
    repo.reset_branch("main", history[min(1, len(history) - 2)])


def merge_branch(repo: icefloe.Repository, random: np.random.Generator) -> None:
    repo.create_branch("side", repo.lookup_branch("main"))
    session = repo.writable_session("side")
    zarr.open_array(session.store, path="t2m")[0] = float(random.normal())
    session.commit("on the side")
    write_cell(repo, random)
    repo.merge("side", "main", message="merged", strategy="ours")
    repo.delete_branch("side")


def shift(repo: icefloe.Repository, random: np.random.Generator) -> None:
    session = repo.writable_session("main")
    for name in ("/t2m", "/rain"):
        session.shift_array(name, (int(random.choice([-1, 1])), 0, 0))
    session.commit("shifted content, labels unchanged")


def change_packing(repo: icefloe.Repository, random: np.random.Generator) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="t2m").attrs["add_offset"] = float(random.integers(1, 9))
    session.commit("other values")


def change_fill_value(repo: icefloe.Repository, random: np.random.Generator) -> None:
    session = repo.writable_session("main")
    document = json.loads(asyncio.run(read_key(session, "rain/zarr.json")))
    document["fill_value"] = int(random.integers(0, 99))
    asyncio.run(write_key(session, "rain/zarr.json", json.dumps(document).encode()))
    session.commit("another fill value")


async def read_key(session: icefloe.Session, key: str) -> bytes:
    found = await session.store.get(key, default_buffer_prototype())
    assert found is not None
    return found.to_bytes()


async def write_key(session: icefloe.Session, key: str, value: bytes) -> None:
    await session.store.set(key, default_buffer_prototype().buffer.from_bytes(value))


STEPS: list[Callable[[icefloe.Repository, np.random.Generator], None]] = [
    *(write_cell, append_days, drop_days, change_chunks, reorder_latitudes, move_label, amend, reset),
    *(merge_branch, shift, change_packing, change_fill_value),
]


@pytest.mark.parametrize("seed", range(int(os.environ.get("ICEFLOE_STREAMS", "1"))))
def test_applying_streamed_changes_reproduces_the_table(seed: int) -> None:
    random = np.random.default_rng(seed)
    repo = create_repository(weather(5, (6, 8)))
    seen = repo.lookup_branch("main")
    copy = read_all(repo, seen)

    for _ in range(12):
        step = STEPS[int(random.integers(0, len(STEPS)))]
        step(repo, random)
        tip = repo.lookup_branch("main")
        apply_changes(copy, read_changes(repo, seen, tip))
        assert copy == read_all(repo, tip), step.__name__
        seen = tip


def test_shifted_content_with_new_labels_is_not_emitted() -> None:
    repo = create_repository(weather(6, (6, 8)))
    before = repo.lookup_branch("main")
    times = load(repo)["time"].values
    session = repo.writable_session("main")
    for name in ("/t2m", "/rain"):
        session.shift_array(name, (-1, 0, 0))
    stored = zarr.open_array(session.store, path="time")
    stored[:4] = stored[2:]
    stored[4:] = [1000, 1001]
    after = session.commit("two days forward")

    rows = read_changes(repo, before, after)

    removed = {row["time"] for row in rows if row[CHANGE] == REMOVED}
    written = {row["time"] for row in rows if row[CHANGE] == WRITTEN}
    assert removed == {time.astype("M8[us]").item() for time in times[:2]}
    assert len(written) == 2
    assert not written & {time.astype("M8[us]").item() for time in times}


def test_unchanged_chunks_are_not_read() -> None:
    repo = create_repository(weather(6, (6, 8)))
    before = repo.lookup_branch("main")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="rain")[0, 0, 0] = 7
    after = session.commit("one cell")

    sessions = [repo.readonly_session(snapshot_id=each) for each in (before, after)]
    old, new = (scan_table(each, find_tables(each).choose(None)) for each in sessions)
    changes = TableChanges.between(old, new)

    assert changes.find_changed_blocks(new.plan()).tolist() == [0]


def test_complex_numbers_are_compared_by_parts() -> None:
    kind = pa.struct([("real", pa.float32()), ("imag", pa.float32())])
    nan = float("nan")
    one, other = (
        pa.chunked_array([pa.array([{"real": r, "imag": i} for r, i in parts] + [None], kind)])
        for parts in ([(1, 2), (1, nan), (1, 2)], [(1, 2), (1, nan), (1, 3)])
    )

    assert find_equal_values(one, other).tolist() == [True, True, False, True]


def test_repeated_labels_match_in_order() -> None:
    found = match_labels(np.array([1, 2, 2, 3]), np.array([2, 3, 2, 2]))

    assert found.tolist() == [1, 3, 2, -1]


def test_new_variable_in_the_table_ends_the_stream() -> None:
    repo = create_repository(weather(3, (6, 8)))
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="snow", shape=(3, 6, 8), dtype="f4", dimension_names=("time", "lat", "lon")
    )
    session.commit("snow")

    with pytest.raises(InvalidInputError, match=r"schema of the table has changed in .*new columns snow"):
        find_table(repo.readonly_session("main"), "/", COLUMNS, every_column=True)
