"""xarray over a session: its own functions, and ours."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe.errors import ReadOnlyError
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage import in_memory_storage
from icefloe.xarray import to_icechunk

# Some releases of zarr warn of dtypes that have no specification yet.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest) -> Repository:
    return Repository.create(in_memory_storage(), spec_version=request.param)


@pytest.fixture
def session(repo: Repository) -> Session:
    return repo.writable_session("main")


def dataset(start: int = 0, days: int = 4) -> xr.Dataset:
    """A small dataset of every kind of variable; time goes on from `start`."""
    values = np.arange(days * 6, dtype="f4").reshape(days, 2, 3) + start
    return xr.Dataset(
        {
            "temperature": (("time", "y", "x"), values, {"units": "K"}),
            "count": (("time",), np.arange(days, dtype="i2") + start),
        },
        coords={
            "time": np.arange(days).astype("m8[D]")
            + np.datetime64("2020-01-01", "ns")
            + np.timedelta64(start, "D"),
            "x": [1.5, 2.5, 3.5],
            "y": [0, 1],
            "name": ("x", ["a", "bé", "中"]),
            "flag": ("x", [True, False, True]),
        },
        attrs={"title": "sample"},
    )


def opened(session: Session, group: str | None = None) -> xr.Dataset:
    found: xr.Dataset = xr.open_zarr(session.store, group=group, consolidated=False, chunks=None)
    return found.load()


def test_a_dataset_comes_back(repo: Repository, session: Session) -> None:
    dataset().to_zarr(session.store, consolidated=False)
    session.commit("written by xarray")

    xr.testing.assert_identical(opened(repo.readonly_session("main")), dataset())


def test_xarray_needs_no_word_on_consolidation(repo: Repository, session: Session) -> None:
    dataset().to_zarr(session.store)
    session.commit("written by xarray")

    found = xr.open_zarr(repo.readonly_session("main").store, chunks=None)
    xr.testing.assert_identical(found.load(), dataset())


def test_a_dataset_is_appended_to(repo: Repository, session: Session) -> None:
    to_icechunk(dataset(), session)
    session.commit("the first days")
    more = repo.writable_session("main")
    to_icechunk(dataset(4, 3), more, append_dim="time")
    dataset(7, 2).to_zarr(more.store, append_dim="time", consolidated=False)
    more.commit("more days")

    whole = xr.concat([dataset(), dataset(4, 3), dataset(7, 2)], "time", data_vars="minimal")
    xr.testing.assert_equal(opened(repo.readonly_session("main")), whole)


@pytest.mark.parametrize("region", [{"time": slice(1, 3)}, "auto"])
def test_a_region_is_written(repo: Repository, session: Session, region: Any) -> None:
    to_icechunk(
        dataset(), session, encoding={"temperature": {"chunks": (1, 2, 3)}, "count": {"chunks": (1,)}}
    )
    session.commit("all days")
    part = dataset().isel(time=slice(1, 3))[["temperature", "count"]] * 0 + 9
    writer = repo.writable_session("main")
    to_icechunk(part.drop_vars(["x", "y", "name", "flag"]), writer, region=region)
    writer.commit("two of them")

    found = opened(repo.readonly_session("main"))
    assert found["temperature"].isel(time=slice(1, 3)).values.tolist() == np.full((2, 2, 3), 9).tolist()
    assert found["count"].values.tolist() == [0, 9, 9, 3]


def test_modes_are_those_of_xarray(session: Session) -> None:
    to_icechunk(dataset(), session, group="g")

    with pytest.raises(FileExistsError):
        to_icechunk(dataset(), session, group="g")
    to_icechunk(dataset(10), session, group="g", mode="w")
    xr.testing.assert_identical(opened(session, "g"), dataset(10))
    to_icechunk(dataset()[["count"]].drop_vars("time") + 1, session, group="g", mode="a")
    assert opened(session, "g")["count"].values.tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="append_dim"):
        to_icechunk(dataset(), session, group="g", mode="w", append_dim="time")


@pytest.mark.parametrize("name", ["temperature", None, "x"])
def test_an_array_comes_back(session: Session, name: str | None) -> None:
    array = dataset()["temperature"].rename(name)

    to_icechunk(array, session)

    found = xr.open_dataarray(session.store, engine="zarr", consolidated=False)  # type: ignore[arg-type]
    xr.testing.assert_identical(found.load(), array)


def test_a_tree_comes_back(repo: Repository, session: Session) -> None:
    tree = xr.DataTree.from_dict({"/": dataset(), "/a": dataset()[["count"]], "/a/b": xr.Dataset({"z": 3})})

    tree.to_zarr(session.store, consolidated=False, mode="w")
    session.commit("a tree")

    store: Any = repo.readonly_session("main").store
    found = xr.open_datatree(store, engine="zarr", consolidated=False, chunks=None)
    xr.testing.assert_identical(found.load(), tree)


def test_encodings_hold(session: Session) -> None:
    scaled = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1, "chunks": (2, 1, 3)}
    to_icechunk(dataset(), session, encoding={"temperature": scaled})

    found = opened(session)
    xr.testing.assert_equal(found, dataset())
    assert found["temperature"].encoding["dtype"] == np.dtype("i2")
    assert found["temperature"].encoding["chunks"] == (2, 1, 3)


def test_the_signature_is_the_official_one() -> None:
    parameters = inspect.signature(to_icechunk).parameters

    assert list(parameters) == [
        *("obj", "session", "group", "mode", "safe_chunks", "align_chunks", "append_dim"),
        *("region", "encoding", "chunkmanager_store_kwargs", "split_every"),
    ]
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == list(parameters)[2:]


def test_what_cannot_be_written_is_refused(repo: Repository) -> None:
    session = repo.writable_session("main")
    with pytest.raises(ValueError, match=r"pass in an icefloe\.Session"):
        to_icechunk(dataset(), session.store)  # type: ignore[arg-type]
    with pytest.raises((ReadOnlyError, ValueError), match="read-only"):
        to_icechunk(dataset(), repo.readonly_session("main"))
