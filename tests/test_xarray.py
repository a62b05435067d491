"""xarray over a session: its own functions, and ours."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe.errors import ReadOnlyError
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage import in_memory_storage
from icefloe.xarray import to_icechunk
from tests.support.xarray import dataset, opened

# Some releases of zarr warn of dtypes that have no specification yet.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest) -> Repository:
    return Repository.create(in_memory_storage(), spec_version=request.param)


@pytest.fixture
def session(repo: Repository) -> Session:
    return repo.writable_session("main")


def test_dataset_round_trips(repo: Repository, session: Session) -> None:
    dataset().to_zarr(session.store, consolidated=False)
    session.commit("written by xarray")

    xr.testing.assert_identical(opened(repo.readonly_session("main")), dataset())


def test_xarray_opens_without_the_consolidated_option(repo: Repository, session: Session) -> None:
    dataset().to_zarr(session.store)
    session.commit("written by xarray")

    found = xr.open_zarr(repo.readonly_session("main").store, chunks=None)
    xr.testing.assert_identical(found.load(), dataset())


def test_dataset_is_appended(repo: Repository, session: Session) -> None:
    to_icechunk(dataset(), session)
    session.commit("the first days")
    more = repo.writable_session("main")
    to_icechunk(dataset(4, 3), more, append_dim="time")
    dataset(7, 2).to_zarr(more.store, append_dim="time", consolidated=False)
    more.commit("more days")

    whole = xr.concat([dataset(), dataset(4, 3), dataset(7, 2)], "time", data_vars="minimal")
    xr.testing.assert_equal(opened(repo.readonly_session("main")), whole)


@pytest.mark.parametrize("region", [{"time": slice(1, 3)}, "auto"])
def test_region_is_written(repo: Repository, session: Session, region: Any) -> None:
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


def test_modes_match_xarray(session: Session) -> None:
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
def test_data_array_round_trips(session: Session, name: str | None) -> None:
    array = dataset()["temperature"].rename(name)

    to_icechunk(array, session)

    found = xr.open_dataarray(session.store, engine="zarr", consolidated=False)  # type: ignore[arg-type]
    xr.testing.assert_identical(found.load(), array)


def test_tree_written_by_xarray_round_trips(repo: Repository, session: Session) -> None:
    tree = xr.DataTree.from_dict({"/": dataset(), "/a": dataset()[["count"]], "/a/b": xr.Dataset({"z": 3})})

    tree.to_zarr(session.store, consolidated=False, mode="w")
    session.commit("a tree")

    store: Any = repo.readonly_session("main").store
    found = xr.open_datatree(store, engine="zarr", consolidated=False, chunks=None)
    xr.testing.assert_identical(found.load(), tree)


def test_encodings_are_applied(session: Session) -> None:
    scaled = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1, "chunks": (2, 1, 3)}
    to_icechunk(dataset(), session, encoding={"temperature": scaled})

    found = opened(session)
    xr.testing.assert_equal(found, dataset())
    assert found["temperature"].encoding["dtype"] == np.dtype("i2")
    assert found["temperature"].encoding["chunks"] == (2, 1, 3)


def test_signature_starts_with_the_official_one() -> None:
    parameters = inspect.signature(to_icechunk).parameters

    assert list(parameters) == [
        *("obj", "session", "group", "mode", "safe_chunks", "align_chunks", "append_dim"),
        *("region", "encoding", "chunkmanager_store_kwargs", "split_every"),
        *("collect_statistics", "solver"),  # ours
    ]
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == list(parameters)[2:]


def test_invalid_writes_are_rejected(repo: Repository) -> None:
    session = repo.writable_session("main")
    with pytest.raises(ValueError, match=r"pass in an icefloe\.Session"):
        to_icechunk(dataset(), session.store)  # type: ignore[arg-type]
    with pytest.raises((ReadOnlyError, ValueError), match="read-only"):
        to_icechunk(dataset(), repo.readonly_session("main"))


def tree(start: int = 0, days: int = 4) -> xr.DataTree:
    """Return two levels of groups that inherit `time`; one has no variables, and one no time."""
    above = dataset(start, days)
    coarse = xr.Dataset({"mean": (("time", "band"), np.arange(days * 2.0).reshape(days, 2) + start)})
    deep = xr.Dataset({"peak": ("time", np.arange(days) + start)}, attrs={"level": 2})
    static = xr.Dataset({"height": ("station", [1.0, 2.0])}, {"station": ["a", "b"]})
    return xr.DataTree.from_dict(
        {"/": above, "/coarse": coarse, "/coarse/deep": deep, "/empty": xr.Dataset(), "/static": static},
        name=None,
    )


def opened_tree(session: Session, **options: Any) -> xr.DataTree:
    store: Any = session.store
    found: xr.DataTree = xr.open_datatree(store, engine="zarr", consolidated=False, **options)
    return found.load()


@pytest.mark.parametrize("chunks", [None, 2])
def test_tree_round_trips(repo: Repository, session: Session, chunks: int | None) -> None:
    given = tree() if chunks is None else tree().chunk(time=chunks)

    to_icechunk(
        given, session, encoding={"/coarse": {"mean": {"chunks": (1, 2)}}} if chunks is None else None
    )
    session.commit("a tree")

    found = repo.readonly_session("main")
    xr.testing.assert_identical(opened_tree(found), tree())
    store: Any = found.store
    groups = xr.open_groups(store, engine="zarr", consolidated=False)
    assert set(groups) == {"/", "/coarse", "/coarse/deep", "/empty", "/static"}
    assert "time" in opened_tree(found)["coarse/deep"].coords
    assert "time" not in zarr.open_group(found.store, path="coarse", mode="r")
    if chunks is None:
        assert zarr.open_array(found.store, path="coarse/mean", mode="r").chunks == (1, 2)


def test_tree_is_written_below_a_group_and_replaced(repo: Repository, session: Session) -> None:
    to_icechunk(dataset(), session)
    to_icechunk(tree(), session, group="a/b")
    with pytest.raises(FileExistsError):
        to_icechunk(tree(), session, group="a/b")

    to_icechunk(xr.DataTree.from_dict({"/other": dataset()}), session, group="a/b", mode="w")
    session.commit("a tree")

    found = repo.readonly_session("main")
    assert set(opened_tree(found, group="a/b").groups) == {"/", "/other"}
    xr.testing.assert_identical(opened(found), dataset())


def test_subtree_keeps_inherited_coordinates(repo: Repository, session: Session) -> None:
    part = tree()["coarse"]
    assert isinstance(part, xr.DataTree)

    to_icechunk(part, session, encoding={"coarse/deep": {"peak": {"dtype": "i2"}}})

    found = opened_tree(session)
    xr.testing.assert_identical(found["deep"].to_dataset(), part["deep"].to_dataset())
    assert zarr.open_array(session.store, path="deep/peak", mode="r").dtype == np.dtype("i2")


@pytest.mark.parametrize("mode", [None, "a", "a-"])
@pytest.mark.parametrize("chunks", [None, 2])
def test_tree_is_appended(repo: Repository, session: Session, mode: Any, chunks: int | None) -> None:
    to_icechunk(tree(), session)
    more = tree(4, 2)
    more["static/height"] = more["static/height"] + 1

    to_icechunk(more if chunks is None else more.chunk(time=chunks), session, append_dim="time", mode=mode)

    found = opened_tree(session)
    np.testing.assert_array_equal(found["time"], np.concatenate([tree()["time"], more["time"]]))
    for name in ("/temperature", "/coarse/mean", "/coarse/deep/peak"):
        np.testing.assert_array_equal(found[name], np.concatenate([tree()[name], more[name]]))
    xr.testing.assert_equal(found["static/height"], (tree() if mode == "a-" else more)["static/height"])


def without_coordinates(given: xr.DataTree) -> xr.DataTree:
    found = given.map_over_datasets(lambda node: node.drop_vars(list(node.coords)))
    assert isinstance(found, xr.DataTree)
    return found


def test_region_of_a_tree_is_written(session: Session) -> None:
    given = without_coordinates(tree().drop_nodes(["static", "empty"]))
    to_icechunk(given, session)

    to_icechunk(given.isel(time=slice(1, 3)) + 100, session, region={"time": slice(1, 3)})

    found = opened_tree(session)
    assert found["coarse/deep"].to_dataset()["peak"].values.tolist() == [0, 101, 102, 3]
    assert found["coarse"].to_dataset()["mean"].values[:, 0].tolist() == [0, 102, 104, 6]


def test_unsupported_options_for_trees_are_rejected(session: Session) -> None:
    to_icechunk(tree(), session)

    with pytest.raises(ValueError, match="groups that are not in the tree: /fine"):
        to_icechunk(tree(), session, mode="a", encoding={"/fine": {}})
    with pytest.raises(ValueError, match='region="auto" is not supported for a DataTree: pass slices'):
        to_icechunk(tree(), session, region="auto")
    with pytest.raises(ValueError, match="no node of the tree has the dimension 'depth'"):
        to_icechunk(tree(), session, append_dim="depth")
    with pytest.raises(ValueError, match=r"the node /static has none of the dimensions \['time'\]"):
        to_icechunk(without_coordinates(tree()), session, region={"time": slice(0, 4)})
