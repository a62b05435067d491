"""Exports: plain Zarr and NetCDF readers see the content of the repository."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe import Repository, Session
from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError
from icefloe.export import export_zarr
from icefloe.export.netcdf import export_netcdf
from icefloe.storage import in_memory_storage, local_filesystem_storage
from icefloe.testing.storages import PassingStorage


@cache
def weather() -> Session:
    """Ten days of a small grid, with coordinates, packed values, and a second group."""
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    time = np.arange("2024-01-01", "2024-01-11", dtype="M8[D]").astype("M8[ns]")
    values = np.arange(10 * 6 * 4, dtype="f4").reshape(10, 6, 4)
    values[3, 2, 1] = np.nan
    data = xr.Dataset(
        {"t2m": (("time", "y", "x"), values, {"units": "K"}), "count": ("time", np.arange(0, 20, 2.0))},
        {"time": time, "y": np.linspace(0, 50, 6), "x": np.arange(4.0)},
        {"title": "a test"},
    )
    encoding = {
        "t2m": {"chunks": (4, 3, 4), "_FillValue": -1.0},
        "count": {"chunks": (4,), "dtype": "i2", "scale_factor": 2.0, "_FillValue": -9},
    }
    data.to_zarr(session.store, consolidated=False, encoding=encoding)
    zarr.create_array(session.store, name="_icefloe/ledger/source", data=np.array([1]))  # of an ingest
    other = zarr.open_group(session.store, path="deep/er", mode="w")
    other.create_array("mask", data=np.eye(3, dtype=bool), chunks=(2, 2))
    other.create_array("scalar", data=np.array(7, "i4"))
    other.create_array("empty", shape=(5,), chunks=(2,), dtype="f8", fill_value=3.0)
    session.commit("weather")
    return repo.readonly_session("main")


def opened(folder: Path, **options: Any) -> xr.Dataset:
    """Return a plain Zarr folder, opened by xarray without icefloe."""
    found: xr.Dataset = xr.open_zarr(str(folder), consolidated=False, chunks=None, **options).load()
    return found


def original(session: Session) -> xr.Dataset:
    """Open the content of the repository with xarray."""
    found: xr.Dataset = xr.open_zarr(session.store, consolidated=False, chunks=None).load()
    return found


def test_whole_hierarchy_is_copied_byte_for_byte(tmp_path: Path) -> None:
    session = weather()

    report = export_zarr(session, local_filesystem_storage(str(tmp_path)))

    assert report.chunks_encoded == 0
    assert report.groups == 3
    xr.testing.assert_identical(opened(tmp_path), original(session))
    there = zarr.open_group(str(tmp_path), mode="r")
    assert np.asarray(there["deep/er/mask"][:]).tolist() == np.eye(3, dtype=bool).tolist()  # type: ignore[index]
    assert there["deep/er/scalar"][()] == 7  # type: ignore[index]
    assert np.asarray(there["deep/er/empty"][:]).tolist() == [3.0] * 5  # type: ignore[index]
    sizes = dict(in_storage(session))
    for path in tmp_path.rglob("*"):
        key = str(path.relative_to(tmp_path))
        if path.is_file():
            assert path.stat().st_size == sizes[key]


def in_storage(session: Session) -> list[tuple[str, int]]:
    """Return all keys of the session's store with their sizes."""
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import collect_aiterator, sync

    keys = collect_aiterator(session.store.list())
    found = [(key, sync(session.store.get(key, default_buffer_prototype()))) for key in keys]
    return [(key, len(data)) for key, data in found if data is not None]


SPANS = st.tuples(st.integers(0, 9), st.integers(0, 10)).map(sorted)


@example(time=[0, 4], y=[0, 3])
@given(time=SPANS, y=st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_exported_region_equals_xarray_selection(time: list[int], y: list[int], tmp_path: Path) -> None:
    session, target = weather(), tmp_path / "region"
    shutil.rmtree(target, ignore_errors=True)
    region = {"time": slice(*time), "y": slice(*y)}

    report = export_zarr(session, local_filesystem_storage(str(target)), isel=region)

    expected = original(session).isel(region)
    found = opened(target)
    for name in ("t2m", "count", "time", "y", "x"):
        np.testing.assert_array_equal(found[name].values, expected[name].values)
    aligned = time[0] % 4 == 0 and time[1] in (4, 8, 10) and y[0] % 3 == 0 and y[1] % 3 == 0
    if aligned and time[1] > time[0] and y[1] > y[0]:
        # The coordinates have one chunk each, which is re-encoded if it is exported in part.
        assert report.chunks_encoded == (time != [0, 10]) + (y != [0, 6])


def test_label_slices_include_both_ends(tmp_path: Path) -> None:
    session = weather()
    labels = {"time": slice("2024-01-03", "2024-01-06"), "y": 10.0}

    export_zarr(session, local_filesystem_storage(str(tmp_path)), variables=["t2m"], sel=labels)

    expected = original(session).sel(time=labels["time"], y=[10.0])
    found = opened(tmp_path)
    assert set(found.variables) == {"t2m", "time", "x", "y"}
    np.testing.assert_array_equal(found["t2m"].values, expected["t2m"].values)
    np.testing.assert_array_equal(found["time"].values, expected["time"].values)


def test_exported_group_becomes_the_root(tmp_path: Path) -> None:
    export_zarr(weather(), local_filesystem_storage(str(tmp_path)), group="deep/er")

    assert sorted(zarr.open_group(str(tmp_path), mode="r").array_keys()) == ["empty", "mask", "scalar"]


def test_shards_and_unusual_names_are_exported() -> None:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    data = np.arange(64, dtype="i8").reshape(8, 8)
    zarr.create_array(session.store, name="a °C", data=data, shards=(4, 4), chunks=(2, 2))
    target = in_memory_storage()

    report = export_zarr(session, target)

    assert (report.chunks_copied, report.chunks_encoded) == (4, 0)
    assert {key for key, _ in target.list_objects()} >= {"zarr.json", "a °C/zarr.json", "a °C/c/1/1"}


def test_file_names_equal_zarr_keys(tmp_path: Path) -> None:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a °C", data=np.arange(3))

    export_zarr(session, local_filesystem_storage(str(tmp_path)))

    assert (tmp_path / "a °C" / "zarr.json").exists()


def test_region_inside_shards_is_exported(tmp_path: Path) -> None:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    data = np.arange(100, dtype="i8").reshape(10, 10)
    zarr.create_array(
        session.store, name="a", data=data, shards=(4, 4), chunks=(2, 2), dimension_names=("y", "x")
    )

    report = export_zarr(
        session, local_filesystem_storage(str(tmp_path)), isel={"y": slice(4, 9), "x": slice(1, None)}
    )

    assert report.chunks_copied == 0
    found = zarr.open_array(str(tmp_path), path="a", mode="r")
    assert found.shards == (4, 4)
    np.testing.assert_array_equal(np.asarray(found[:]), data[4:9, 1:])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"group": "nowhere"}, NodeNotFoundError, "nowhere"),
        ({"group": "t2m"}, InvalidInputError, "array"),
        ({"variables": ["nope"]}, NodeNotFoundError, "nope"),
        ({"isel": {"z": 1}}, InvalidInputError, "'z'"),
        ({"isel": {"time": 99}}, InvalidInputError, "10 elements"),
        ({"isel": {"time": slice(0, 9, 2)}}, InvalidInputError, "steps"),
        ({"isel": {"time": 1}, "sel": {"time": "2024-01-01"}}, InvalidInputError, "by index and by label"),
        ({"sel": {"y": 11.5}}, InvalidInputError, "not found"),
        ({"sel": {"time": "yesterday"}}, InvalidInputError, "yesterday"),
    ],
)
def test_invalid_selections_are_rejected(options: dict[str, Any], error: type[Exception], words: str) -> None:
    target = in_memory_storage()

    with pytest.raises(error, match=words):
        export_zarr(weather(), target, **options)

    assert target.list_objects() == []


def test_nonempty_target_is_rejected() -> None:
    target = in_memory_storage()
    target.put("notes", b"mine")

    with pytest.raises(InvalidInputError, match="notes"):
        export_zarr(weather(), target)

    export_zarr(weather(), target, overwrite=True)
    assert target.exists("zarr.json")


def test_interrupted_export_is_not_a_zarr_hierarchy() -> None:
    class FullError(Exception):
        pass

    class Full(PassingStorage):
        left = 6

        def writing(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise FullError

    target = in_memory_storage()

    with pytest.raises(FullError):
        export_zarr(weather(), Full(target), max_concurrent_requests=1)

    assert target.list_objects()
    assert not target.exists("zarr.json")


def test_dry_run_counts_and_writes_nothing() -> None:
    target = in_memory_storage()

    planned = icefloe.export_zarr(weather(), target, isel={"time": slice(0, 6)}, dry_run=True)

    assert target.list_objects() == []
    done = icefloe.export_zarr(weather(), target, isel={"time": slice(0, 6)})
    assert (planned.chunks_copied, planned.chunks_encoded) == (done.chunks_copied, done.chunks_encoded)
    assert planned.chunks_copied > 0
    assert planned.chunks_encoded > 0


# NetCDF


def test_netcdf_export_has_the_same_values_attributes_and_groups(tmp_path: Path) -> None:
    session, file = weather(), tmp_path / "out" / "weather.nc"

    report = icefloe.export_netcdf(session, file)

    with xr.open_dataset(file, engine="h5netcdf") as found:
        xr.testing.assert_equal(found.load(), original(session))
        assert found.attrs == {"title": "a test"}
        assert found["t2m"].attrs == {"units": "K"}
    with h5netcdf.File(file) as raw:
        assert raw["count"].dtype == np.dtype("i2")
        assert raw["deep/er/mask"][:].tolist() == np.eye(3).tolist()
        assert raw["deep/er/scalar"][...] == 7
        assert raw["deep/er/empty"][:].tolist() == [3.0] * 5
    assert report.bytes_written == file.stat().st_size
    assert [path.name for path in file.parent.iterdir()] == ["weather.nc"]


@pytest.mark.parametrize("time", [slice(0, 4), slice(1, 9), slice(5, 5)])
def test_region_is_exported_to_netcdf(tmp_path: Path, time: slice) -> None:
    session, file = weather(), tmp_path / "weather.nc"

    export_netcdf(session, file, variables=["t2m"], isel={"time": time, "x": 2})

    with xr.open_dataset(file, engine="h5netcdf") as found:
        expected = original(session)["t2m"].isel(time=time, x=[2])
        np.testing.assert_array_equal(found["t2m"].values, expected.values)


def test_netcdf_files_are_overwritten_only_on_request(tmp_path: Path) -> None:
    file = tmp_path / "weather.nc"
    file.write_bytes(b"mine")

    with pytest.raises(AlreadyExistsError, match=r"weather\.nc"):
        export_netcdf(weather(), file)

    export_netcdf(weather(), file, overwrite=True)
    with h5netcdf.File(file) as raw:
        assert "t2m" in raw.variables


def test_unsupported_netcdf_type_is_named(tmp_path: Path) -> None:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", data=np.zeros(3, "c16"))

    with pytest.raises(InvalidInputError, match="/a has the data type complex128"):
        export_netcdf(session, tmp_path / "x.nc")

    assert list(tmp_path.iterdir()) == []


def test_inconsistent_dimension_is_named(tmp_path: Path) -> None:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    for name, size in (("a", 3), ("b", 4)):
        zarr.create_array(session.store, name=name, data=np.zeros(size), dimension_names=("x",))

    with pytest.raises(InvalidInputError, match="along x"):
        export_netcdf(session, tmp_path / "x.nc")

    export_netcdf(session, tmp_path / "x.nc", variables=["a"])


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("name", ["x" * 1000, "deep/" + "é" * 130])
def test_overlong_names_are_rejected_before_writing(tmp_path: Path, dry_run: bool, name: str) -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="x") as store:
        zarr.create_array(store, name=name, data=np.arange(4))
        zarr.create_array(store, name="short", data=np.arange(4))
    session = repo.readonly_session("main")
    folder, file = tmp_path / "plain", tmp_path / "file.nc"

    with pytest.raises(InvalidInputError, match=r"\.\.\.' of .* bytes is too long for .*255 bytes"):
        export_zarr(session, local_filesystem_storage(str(folder)), dry_run=dry_run)
    with pytest.raises(InvalidInputError, match=r"too long for NetCDF .at most 256 bytes"):
        export_netcdf(session, file, dry_run=dry_run)

    assert list(tmp_path.iterdir()) == []
    export_zarr(session, local_filesystem_storage(str(folder)), variables=["short"])
    export_netcdf(session, file, variables=["short"])
    export_zarr(session, in_memory_storage())


def test_overlong_path_of_a_target_is_rejected(tmp_path: Path) -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="x") as store:
        zarr.create_group(store)
    target = local_filesystem_storage(str(tmp_path / ("x" * 300)))

    with pytest.raises(InvalidInputError, match="the path of the target is too long"):
        export_zarr(repo.readonly_session("main"), target)
