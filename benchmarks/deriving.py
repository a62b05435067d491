"""Benchmark derived arrays: plans of a million chunks, and daily means beside xarray and dask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from benchmarks import engines
from benchmarks.harness import Job, Row, Side
from icefloe.derive.arrays import get_array
from icefloe.derive.outputs import resolve_output
from icefloe.derive.plan import make_plan
from icefloe.derive.recipe import parse_recipe
from icefloe.derive.records import DerivedRecords
from icefloe.format.manifest import NATIVE, ArrayManifest

PLANNED = (100, 100, engines.scaled(100))
"""Chunks of the array whose derivation is planned: a million."""
DAYS = engines.scaled(60, least=4)
MAP = (721, 1440)
CHUNKS = (4, 181, 360)
DAILY = {
    "function": "mean",
    "inputs": {"t2m": "t2m"},
    "dimensions": {"time": {"group": "time.day"}},
    "chunks": {"time": 1, "lat": CHUNKS[1], "lon": CHUNKS[2]},
}


def setup(folder: Path) -> None:
    """Create six-hourly maps: 1 GB, in chunks of a day."""
    _create_maps(folder, DAYS)


def _create_maps(folder: Path, days: int) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    with repo.transaction("main", message="maps") as store:
        root = zarr.create_group(store)
        steps, names = 4 * days, ("time", "lat", "lon")
        array = root.create_array(
            "t2m", shape=(steps, *MAP), chunks=CHUNKS, dtype="f4", dimension_names=names, fill_value=np.nan
        )
        latitude = np.linspace(90, -90, MAP[0])[:, None]
        random = np.random.default_rng(0)
        for day in range(days):
            field = 270 + 30 * np.cos(np.radians(latitude)) + random.normal(0, 1, (4, *MAP)) + day / 100
            array[4 * day : 4 * day + 4] = field.round(2).astype("f4")
        time = root.create_array("time", shape=(steps,), dtype="i8", dimension_names=("time",))
        time[...] = 6 * np.arange(steps)
        time.attrs["units"] = "hours since 2025-01-01"


def _new_branch(repo: Any, name: str) -> None:
    if name in repo.list_branches():
        repo.delete_branch(name)
    repo.create_branch(name, repo.lookup_branch("main"))


def _recipe(folder: Path, branch: str) -> dict[str, Any]:
    return {"repository": str(folder / "repo"), "outputs": {"daily": {**DAILY, "branch": branch}}}


def _open(folder: Path) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder / "repo")))


def prepare_full(folder: Path, empty: Path) -> Job:
    """Derive all daily means with two processes that have imported their modules."""
    repo = _open(folder)
    _new_branch(repo, "ours")
    executor = icefloe.ProcessExecutor(engines.WORKERS)
    _create_maps(empty, 2)
    icefloe.derive_arrays(_recipe(empty, "main"), executor=executor)

    def job() -> Any:
        icefloe.derive_arrays(_recipe(folder, "ours"), executor=executor)
        return _open(folder).readonly_session("ours").store

    return job


def prepare_dask(folder: Path, _: Path) -> Job:
    """Resample with xarray and dask, reading and writing with the official package."""
    import icechunk
    import xarray as xr
    from icechunk.xarray import to_icechunk

    engines.dask()
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder / "repo")))
    _new_branch(repo, "theirs")

    def job() -> Any:
        session = repo.readonly_session("main")
        dataset = xr.open_zarr(session.store, consolidated=False, chunks={})
        daily = dataset[["t2m"]].resample(time="1D").mean().rename(t2m="daily")
        daily = daily.chunk(DAILY["chunks"])
        writable = repo.writable_session("theirs")
        to_icechunk(daily, writable, group="daily")
        writable.commit("daily means")
        return repo.readonly_session("theirs").store

    return job


def check(ours: Any, theirs: Any) -> None:
    """Check that both sides have the same daily means."""
    found: list[Any] = [zarr.open_array(each, path="daily/daily", mode="r") for each in (ours, theirs)]
    for day in (0, -1):
        np.testing.assert_allclose(found[0][day], found[1][day], rtol=1e-6)


def prepare_rerun(folder: Path, _: Path) -> Job:
    """Change one of a hundred chunks of the input, and derive again."""
    repo = _open(folder)
    _new_branch(repo, "rerun")
    recipe = _recipe(folder, "rerun")
    executor = icefloe.ThreadExecutor(engines.WORKERS)
    icefloe.derive_arrays(recipe, executor=executor)
    with repo.transaction("rerun", message="corrections") as store:
        array: Any = zarr.open_array(store, path="t2m")
        grid = [-(-size // chunk) for size, chunk in zip(array.shape, array.chunks, strict=True)]
        total = int(np.prod(grid))
        for number in np.linspace(0, total - 1, max(1, total // 100)).astype(int):
            corner = np.array(np.unravel_index(number, grid)) * array.chunks
            array[tuple(int(each) for each in corner)] = 300

    def job() -> Any:
        return icefloe.derive_arrays(recipe, executor=executor)

    return job


def prepare_all(folder: Path, _: Path) -> Job:
    """Derive everything again in this process."""
    repo = _open(folder)
    _new_branch(repo, "all")
    recipe = _recipe(folder, "all")
    executor = icefloe.ThreadExecutor(engines.WORKERS)

    def job() -> Any:
        return icefloe.derive_arrays(recipe, executor=executor)

    return job


def check_rerun(ours: Any, theirs: Any) -> None:
    """Check that the rerun computed only the chunks that changed."""
    assert 0 < ours.recomputed <= max(1, theirs.recomputed // 100) + 1, (ours, theirs)


def setup_planned(folder: Path) -> None:
    """Create an array of a million native references."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    session = repo.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array(
        "a", shape=PLANNED, chunks=(1, 1, 1), dtype="f4", dimension_names=("time", "y", "x"), fill_value=0
    )
    coords = np.stack(np.unravel_index(np.arange(np.prod(PLANNED)), PLANNED), axis=-1).astype(np.uint32)
    refs = ArrayManifest.of(coords, NATIVE)
    ids = np.random.default_rng(1).integers(0, 256, (len(coords), 12), dtype=np.uint8)
    session._workspace.put_refs(session._workspace.array("/a"), replace(refs, chunk_ids=ids))
    session.commit("a million references")


def prepare_plan(folder: Path, _: Path) -> Job:
    """Plan an elementwise output of a million chunks whose records exist."""
    output = {"function": {"expression": "a * 2"}, "inputs": {"a": "a"}}
    recipe = parse_recipe({"repository": str(folder / "repo"), "outputs": {"b": output}}, folder, "plan")

    def job() -> Any:
        session = _open(folder).readonly_session("main")
        array = get_array(session, "/a", "plan")
        (found,) = resolve_output(recipe.outputs[0], "/b", {"a": array}, str(folder), session)
        first = make_plan(found, None, None)
        own = array.fingerprints()
        digests = first.digests.copy()
        digests[::100, 0, 0] += np.uint64(1)
        records = DerivedRecords(digests, own, np.zeros(found.grid, np.uint8), {})
        plan = make_plan(found, records, own)
        return len(plan.recomputed), int(plan.kept.sum())

    return job


ROWS = (
    Row(
        "derive-plan",
        f"plan an output of {int(np.prod(PLANNED)):,} chunks twice: the first run, and a rerun",
        Side("references, fingerprints, digests, comparison with records", prepare_plan),
        memory_bytes=500_000_000,
        setup=setup_planned,
        repeat=3,
    ),
    Row(
        "derive-daily",
        f"daily means of {4 * DAYS} maps of {MAP[0]} x {MAP[1]} float32 (1 GB)",
        Side("icefloe.derive_arrays on two processes that run already", prepare_full),
        Side("resample of xarray with dask, to_icechunk, on a LocalCluster that runs already", prepare_dask),
        cpu_ratio=1.0,
        setup=setup,
        check=check,
        repeat=3,
    ),
    Row(
        "derive-rerun",
        "the same daily means after 1 % of the chunks changed; 20 x less CPU than a full run is 5 %",
        Side("icefloe.derive_arrays after the change", prepare_rerun),
        Side("icefloe.derive_arrays of everything", prepare_all),
        cpu_ratio=20.0,
        setup=setup,
        check=check_rerun,
        repeat=3,
    ),
)
