"""Dask arrays written through forks, with threads and with processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import ForkSession, Repository, Session
from icefloe.dask import session_merge_reduction, store_dask
from icefloe.distributed import extract_session
from icefloe.storage import local_filesystem_storage
from icefloe.xarray import to_icechunk
from tests.support.xarray import dataset, opened

# Some releases of zarr warn of dtypes that have no specification yet.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")

_dask: Any = dask
_array: Any = dask.array


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    made = Repository.create(local_filesystem_storage(str(tmp_path / "repo")))
    session = made.writable_session("main")
    for name in ("a", "b"):
        zarr.create_array(session.store, name=name, shape=(60, 40), chunks=(10, 10), dtype="f8")
    session.commit("arrays")
    return made


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    """Yield one process for all tests here: each new one takes seconds to import what it needs."""
    with ProcessPoolExecutor(1, get_context("spawn")) as made:
        yield made


@pytest.fixture(params=["threads", "processes"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    pool = {"pool": request.getfixturevalue("pool")} if request.param == "processes" else {}
    with _dask.config.set(scheduler=request.param, **pool):
        yield request.param


def numbers(chunks: Any = (20, 20)) -> Any:
    return _array.arange(2400, chunks=600).reshape(60, 40).rechunk(chunks).astype("f8")


def target(session: Session, name: str) -> Any:
    return zarr.open_array(session.store, path=name, mode="r+")


@pytest.mark.parametrize("split_every", [None, 2])
def test_dask_arrays_are_stored_through_forks(
    repo: Repository, scheduler: str, split_every: int | None
) -> None:
    session = repo.writable_session("main")
    fork = session.fork()

    merged = store_dask(
        sources=[numbers(), numbers()[:20] * 2],
        targets=[target(fork, "a"), target(fork, "b")],
        regions=[(slice(0, 60), slice(0, 40)), (slice(20, 40), slice(0, 40))],
        split_every=split_every,
    )
    assert isinstance(merged, ForkSession)
    session.merge(merged)
    session.commit("all")

    expected = np.arange(2400.0).reshape(60, 40)
    found: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert np.array_equal(found["a"][...], expected)
    assert np.array_equal(found["b"][20:40], expected[:20] * 2)
    assert not found["b"][:20].any()


def test_targets_outside_forks_are_rejected(repo: Repository) -> None:
    with pytest.raises(TypeError, match="does not belong to a fork"):
        store_dask(sources=[numbers()], targets=[target(repo.writable_session("main"), "a")])


def test_merge_reduction_rejects_arrays_that_are_not_dask_arrays() -> None:
    with pytest.raises(TypeError, match="Expected a dask array"):
        session_merge_reduction(np.arange(10), split_every=None)


def test_forks_in_blocks_are_merged(repo: Repository) -> None:
    fork = repo.writable_session("main").fork()
    stored = _array.store(
        numbers(), target(fork, "a"), lock=False, compute=False, return_stored=True, load_stored=False
    )

    merged = session_merge_reduction(stored, split_every=3, scheduler="synchronous")

    assert extract_session(target(merged, "a")).has_uncommitted_changes


def test_dataset_is_written_appended_to_and_changed_in_place(tmp_path: Path, scheduler: str) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path / "other")))
    session = repo.writable_session("main")

    to_icechunk(dataset().chunk(time=2), session, encoding={"temperature": {"chunks": (2, 2, 3)}})
    to_icechunk(dataset(4, 4).chunk(time=2), session, append_dim="time", split_every=2)
    changed = (dataset(2, 4) + 100).chunk(time=2)
    to_icechunk(
        changed[["temperature", "count"]].drop_vars(["x", "y", "name", "flag"]), session, region="auto"
    )
    session.commit("all")

    expected = xr.concat([dataset(), dataset(4, 4)], "time", data_vars="minimal", coords="minimal")
    expected["temperature"][2:6] = (dataset(2, 4)["temperature"] + 100).values
    expected["count"][2:6] = (dataset(2, 4)["count"] + 100).values
    xr.testing.assert_identical(opened(repo.readonly_session("main")), expected)


def test_unsafe_chunks_are_rejected_or_aligned(tmp_path: Path) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path / "other")))
    session = repo.writable_session("main")
    encoding = {"temperature": {"chunks": (3, 2, 3)}}
    lazy = dataset().chunk(time=2)

    with pytest.raises(ValueError, match="overlap"):
        to_icechunk(lazy, session, mode="w", encoding=encoding)
    to_icechunk(lazy, session, mode="w", encoding=encoding, align_chunks=True)

    xr.testing.assert_identical(opened(session), dataset())
    assert zarr.open_array(session.store, path="temperature", mode="r").chunks == (3, 2, 3)


@pytest.mark.parametrize("name", [None, "temperature", "x"])
def test_array_is_written_as_xarray_would(repo: Repository, name: str | None) -> None:
    array = dataset()["temperature"].rename(name).chunk(time=2)
    session = repo.writable_session("main")

    to_icechunk(array, session, group="one")
    array.compute().to_zarr(session.store, group="two", consolidated=False)

    xr.testing.assert_identical(opened(session, "one"), opened(session, "two"))


def test_fork_can_be_written_to(repo: Repository, scheduler: str) -> None:
    session = repo.writable_session("main")
    to_icechunk(dataset(), session, group="g")
    forks = [session.fork() for _ in range(2)]
    for number, fork in enumerate(forks):
        part = dataset()[["count"]].isel(time=[2 * number]) + 10
        to_icechunk(part.chunk(time=1), fork, group="g", region="auto", safe_chunks=False)

    session.merge(forks[0])

    assert opened(session, "g")["count"].values.tolist() == [10, 1, 2, 3]
    assert opened(forks[1], "g")["count"].values.tolist() == [0, 1, 12, 3]
