"""Sources in other formats, through xarray's engines, or through references without an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import eccodes
import h5py
import numpy as np
import pytest
import tifffile
import xarray as xr

from icefloe import Credentials, InvalidInputError, Repository, local_filesystem_storage
from icefloe.xarray import to_icechunk
from tests.support.ingest.files import archive, days, expected, new_repo, run, write
from tests.support.ingest.modes import modes, modes_in_turn
from tests.support.virtual import formats
from tests.support.virtual.formats import geo_tiff

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),
]


def read(repo: Repository, **options: Any) -> xr.Dataset:
    prefixes = Repository.open(repo.storage).config.virtual_chunk_containers or {}
    allowed = {prefix: Credentials.LocalFileSystemAccess() for prefix in prefixes}
    opened = Repository.open(repo.storage, authorize_virtual_chunk_access=allowed)
    store = opened.readonly_session("main").store
    found: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None, **options)
    return found.load()


@pytest.mark.parametrize("mode", ["native", "hybrid"])
@pytest.mark.parametrize(
    "make",
    [
        formats.netcdf3,
        formats.tiff(tile=(16, 16), compression="zlib"),
        formats.zarr_store(2, attributes={"_ARRAY_DIMENSIONS": ["y", "x"]}),
        formats.zarr_store(3, dimension_names=["y", "x"]),
        formats.kerchunk,
    ],
    ids=["netcdf3", "tiff", "zarr2", "zarr3", "kerchunk"],
)
def test_ingested_values_equal_the_file(
    tmp_path: Path, make: Callable[[Path], formats.Written], mode: str
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    wanted = make(folder)
    (file,) = [path for path in folder.iterdir() if path.name.startswith("f.")]
    repo = new_repo(tmp_path)

    run(repo, file, mode=mode)

    found = read(repo, decode_cf=False)
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name].values, values, name)


def test_timedelta_coordinates_are_ingested(tmp_path: Path) -> None:
    """Such as the steps of a forecast, which cfgrib returns decoded."""
    step = np.timedelta64(6, "h").astype("m8[ns]")
    files = [write(tmp_path / f"{n}.nc", days(3 * n, 3).assign_coords(step=step)) for n in range(2)]
    repo = new_repo(tmp_path)

    run(repo, files)

    assert read(repo)["step"].values == step


def test_static_variables_of_virtual_files_can_be_copied_for_each_step(tmp_path: Path) -> None:
    """They gain the concatenation dimension, and are copied."""
    packed = {"t2m": {"chunksizes": (2, 5, 4), "zlib": True}, "area": {"chunksizes": (5,), "zlib": True}}
    parts = [days(2 * n, 2).assign(area=("lat", np.arange(5.0) + n)) for n in range(2)]
    files = [write(tmp_path / f"{n}.nc", part, packed) for n, part in enumerate(parts)]
    repo = new_repo(tmp_path)

    run(repo, files, mode="hybrid", data_vars="all")

    xr.testing.assert_equal(read(repo), expected(files, data_vars="all"))


@modes_in_turn("stored", [{"dtype": "f2"}, {"dtype": "c8"}, {"dtype": "f4", "compression": "lzf"}])
def test_hdf5_with_foreign_filters_is_read(tmp_path: Path, stored: dict[str, Any], mode: str) -> None:
    """The netCDF library supports few filters and types, and crashes on some."""
    values = np.arange(24).reshape(4, 6)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("v", data=values.astype(stored["dtype"]), chunks=(2, 6), **stored)
    repo = new_repo(tmp_path)

    report = run(repo, tmp_path / "f.h5", mode=mode)

    found = read(repo)["v"]
    assert report.published
    assert (found.dtype, found.values.tolist()) == (np.dtype(stored["dtype"]), values.tolist())


def test_compound_values_are_not_copied(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["v"] = np.ones(3, [("a", "<f4"), ("b", "<i4")])
        file["w"] = np.arange(3)
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=r'v has a compound or opaque type.* with mode="virtual"'):
        run(repo, tmp_path / "f.h5")
    run(repo, tmp_path / "f.h5", variables=["w"])

    assert list(read(repo).data_vars) == ["w"]


@pytest.mark.parametrize("mode", ["virtual", "hybrid"])
def test_small_compound_variables_are_referenced(tmp_path: Path, mode: str) -> None:
    values = np.array([(1, 2.5), (2, 3.5), (3, 4.5)], [("a", "<i4"), ("b", "<f8")])
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["v"] = values
        file["w"] = np.arange(3)
    repo = new_repo(tmp_path)

    run(repo, tmp_path / "f.h5", mode=mode)

    assert read(repo)["v"].values.tolist() == values.tolist()
    assert read(repo)["w"].values.tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", ["native", "virtual", "hybrid"])
def test_booleans_of_h5py_stay_booleans(tmp_path: Path, mode: str) -> None:
    """netCDF4 reads them as 8-bit integers."""
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"] = np.arange(4)
        file["x"].make_scale("x")
        for name, data in {"flag": np.array([True, False, False, True]), "v": np.arange(4.0)}.items():
            file.create_dataset(name, data=data).dims[0].attach_scale(file["x"])
        file["alone"] = np.True_
    repo = new_repo(tmp_path)

    run(repo, tmp_path / "f.h5", mode=mode)

    found = read(repo)
    assert (found["flag"].dtype, found["alone"].dtype) == (np.dtype(bool), np.dtype(bool))
    assert found["flag"].values.tolist() == [True, False, False, True]
    assert found["alone"].item() is True


def test_unnamed_dimensions_in_files_with_groups_match(tmp_path: Path) -> None:
    """netCDF numbers the unnamed dimensions of all groups in its own order."""
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["group/w"] = np.zeros((3, 5))
        file["v"] = np.arange(8.0).reshape(2, 4)
    repo = new_repo(tmp_path)

    run(repo, tmp_path / "f.h5", mode="virtual")

    xr.testing.assert_equal(read(repo), xr.open_dataset(tmp_path / "f.h5"))


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_grib_leaves_no_index_files(tmp_path: Path, mode: str) -> None:
    """2-D coordinates, which the file does not contain, are copied."""
    fields = formats.steps_of_grib(tmp_path / "files")
    repo = new_repo(tmp_path)

    run(repo, tmp_path / "files/f.grib", mode=mode)

    assert read(repo)["t"].values.tolist() == fields.tolist()
    assert read(repo)["valid_time"].shape == (2, 2)
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["f.grib"]


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_absent_tiles_have_no_data(tmp_path: Path, mode: str) -> None:
    values = np.full((32, 32), 7, "i2")
    values[:16] = 3
    tags = [(42113, "s", 0, "7", True)]
    tiles = (values[y : y + 16, x : x + 16] if y == 0 else None for y in (0, 16) for x in (0, 16))
    tifffile.imwrite(tmp_path / "f.tif", tiles, shape=(32, 32), dtype="i2", tile=(16, 16), extratags=tags)
    repo = new_repo(tmp_path)

    run(repo, tmp_path / "f.tif", mode=mode)

    assert read(repo, decode_cf=False)["image"].values.tolist() == values.tolist()


def test_unreadable_variables_are_not_skipped_silently(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "f.tif", np.ones((16, 16), bool), photometric="minisblack")
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=r"image: .*; select other variables"):
        run(repo, tmp_path / "f.tif")


def test_variables_skipped_by_cfgrib_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "f.grib").open("wb") as file:
        for name in ("2t", "10u"):
            handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
            eccodes.codes_set(handle, "shortName", name)
            eccodes.codes_write(handle, file)
            eccodes.codes_release(handle)
    repo, others = new_repo(tmp_path), archive(tmp_path)
    assert run(new_repo(tmp_path), others, chunks={"time": -1}).ok  # several files are open at once

    selected = {"filter_by_keys": {"stepType": "instant"}}
    report = run(repo, tmp_path / "f.grib", engine="cfgrib", open_options=selected)

    assert [(each.variable, each.text[:12]) for each in report.findings] == [("u10", "is left out:")]
    assert list(read(repo).data_vars) == ["t2m"]
    assert "Traceback" not in capfd.readouterr().err
    assert not run(new_repo(tmp_path), others).findings


@modes("native", "virtual")
def test_the_reference_system_of_rasters_is_a_grid_mapping(tmp_path: Path, mode: str) -> None:
    keys = {1024: 1, 1025: 1, 3072: 32633}
    left = geo_tiff(tmp_path / "left.tif", keys, photometric="minisblack")
    repo = new_repo(tmp_path)

    run(repo, left, mode=mode)

    found = read(repo)
    assert found["image"].attrs["grid_mapping"] == "spatial_ref"
    assert list(found.data_vars) == ["image"]
    assert found["spatial_ref"].attrs["spatial_ref"].endswith('ID["EPSG",32633]]')
    assert found["spatial_ref"].attrs["GeoTransform"] == "100.0 10.0 0.0 900.0 0.0 -20.0"


def test_adjacent_rasters_have_no_common_transform(tmp_path: Path) -> None:
    keys = {1024: 1, 1025: 1, 3072: 32633}
    repo = new_repo(tmp_path)
    run(repo, geo_tiff(tmp_path / "left.tif", keys))

    run(repo, geo_tiff(tmp_path / "right.tif", keys, x=740.0))

    found = read(repo)
    assert found.sizes == {"y": 48, "x": 128}
    assert found["spatial_ref"].attrs["grid_mapping_name"] == "transverse_mercator"
    assert "GeoTransform" not in found["spatial_ref"].attrs


@modes("hybrid")
def test_version_of_a_repository_is_ingested(tmp_path: Path, mode: str) -> None:
    source = Repository.create(local_filesystem_storage(str(tmp_path / "source")))
    session = source.writable_session("main")
    to_icechunk(days(0, 3), session)
    source.create_tag("v1", session.commit("three days"))
    session = source.writable_session("main")
    to_icechunk(days(3, 2), session, append_dim="time")
    session.commit("two more")
    tagged, newest = new_repo(tmp_path), new_repo(tmp_path)

    run(tagged, f"{tmp_path}/source@v1", mode=mode)
    run(newest, tmp_path / "source", mode=mode)
    again = run(newest, tmp_path / "source", mode=mode)

    xr.testing.assert_equal(read(tagged), days(0, 3))
    xr.testing.assert_equal(read(newest), days(0, 5))
    assert not again.outcome.wanted
