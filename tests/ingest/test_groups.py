"""Files whose data is in groups: each group becomes a group of the repository."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr

import icefloe
from icefloe import InvalidInputError, Repository
from icefloe._internal.executor import ThreadExecutor
from icefloe.ingest.bad_files import ProblemsError
from icefloe.ingest.ledger import read_ledger
from tests.support.ingest.files import aged, days, new_repo, run, tree, write, write_groups
from tests.support.ingest.modes import modes, modes_in_turn
from tests.support.servers.files import file_server

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification"),
]
ENCODING = {"t2m": {"zlib": True, "chunksizes": (1, 5, 4)}}


def product(path: Path, first: int = 0, count: int = 2) -> str:
    """Write a NetCDF-4 file with all data in groups, as those of Sentinel-5P are."""
    xr.Dataset(attrs={"title": "invented"}).to_netcdf(path, engine="h5netcdf")
    data = days(first, count)
    data.to_netcdf(path, group="PRODUCT", mode="a", engine="h5netcdf", encoding=ENCODING)
    quality = data[["t2m"]].rename(t2m="quality") * 2
    quality.to_netcdf(path, group="PRODUCT/SUPPORT/DETAILS", mode="a", engine="h5netcdf")
    return str(aged(path))


def both(path: Path, first: int = 0, count: int = 2) -> str:
    """Write a file with data in its root and in a group, which has its coordinates from the root."""
    data = days(first, count)
    data.to_netcdf(path, engine="h5netcdf", encoding=ENCODING)
    with h5py.File(path, "a") as file:
        rain = file.create_dataset("wet/rain", data=data["t2m"].values + 1)
        for axis, name in enumerate(data["t2m"].dims):
            rain.dims[axis].attach_scale(file[str(name)])
    return str(aged(path))


def radar(path: Path, first: int = 0, count: int = 2) -> str:
    """Write an HDF5 file with data two groups deep and no coordinates, as ODIM radar files are."""
    with h5py.File(path, "w") as file:
        file.create_group("what").attrs["object"] = "PVOL"
        for scan in (1, 2):
            for quantity in (1, 2):
                values = np.arange(12, dtype="u1").reshape(3, 4) + scan * 20 + quantity + first
                file.create_dataset(f"dataset{scan}/data{quantity}/data", data=values, chunks=(3, 4))
    return str(aged(path))


def stores(path: Path, first: int = 0, count: int = 2) -> str:
    """Write a Zarr store with data in its root and in a group."""
    days(first, count).to_zarr(path, consolidated=False, zarr_format=3)
    days(first, count).to_zarr(path, group="air/surface", consolidated=False, zarr_format=3, mode="a")
    return str(path)


LAYOUTS = [
    (product, "{}.nc", {"PRODUCT", "PRODUCT/SUPPORT/DETAILS"}),
    (both, "{}.nc", {"", "wet"}),
    (radar, "{}.h5", {f"dataset{scan}/data{quantity}" for scan in (1, 2) for quantity in (1, 2)}),
    (stores, "{}.zarr", {"", "air/surface"}),
]


def wanted(file: str) -> dict[str, xr.Dataset]:
    """Return what xarray shows of the groups of a file that have data, each with inherited coordinates."""
    options: dict[str, Any] = {"engine": "zarr", "consolidated": False}
    if not file.endswith(".zarr"):
        options = {"engine": "h5netcdf", "phony_dims": "sort"}
    with xr.open_datatree(file, **options) as opened:
        found = {node.path.strip("/"): node.to_dataset().load() for node in opened.subtree if node.data_vars}
    return {
        path: each.drop_vars([name for name in each.coords if name not in each.dims])
        for path, each in found.items()
    }


def assert_same(found: dict[str, xr.Dataset], expected: dict[str, xr.Dataset]) -> None:
    assert found.keys() == expected.keys()
    for path, dataset in expected.items():
        xr.testing.assert_identical(found[path].drop_attrs(), dataset.drop_attrs())
        assert found[path].attrs == dataset.attrs


@modes("native", "virtual")
@pytest.mark.parametrize(
    ("make", "name", "groups"), LAYOUTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_file_group_with_data_becomes_a_repository_group(
    tmp_path: Path, make: Callable[..., str], name: str, groups: set[str], mode: str
) -> None:
    file = make(tmp_path / name.format("a"))
    repo = new_repo(tmp_path)

    report = run(repo, file, mode=mode)

    found = tree(repo)
    assert found.keys() == groups
    assert_same(found, wanted(file))
    assert report.plan is not None
    assert report.plan.files == 1
    assert len(report.commits) == 1
    assert {row.target_group for row in read_ledger(repo.readonly_session("main"), "")} == groups


@modes_in_turn("make", [product, both])
def test_files_are_concatenated_in_every_group(tmp_path: Path, make: Callable[..., str], mode: str) -> None:
    files = [make(tmp_path / f"{day}.nc", day, 2) for day in (0, 2, 4)]
    repo = new_repo(tmp_path)

    run(repo, files[1:], mode=mode, commit_every=1)
    run(repo, files, mode=mode)
    again = run(repo, files, mode=mode)

    parts = [wanted(file) for file in files]
    expected = {path: xr.concat([part[path] for part in parts], "time") for path in parts[0]}
    assert_same(tree(repo), expected)
    assert [source.url for source in again.outcome.sources.known] == files
    rows = read_ledger(repo.readonly_session("main"), "")
    assert sorted((row.source, row.target_group) for row in rows) == sorted(
        (file, path) for file in files for path in expected
    )


@modes("virtual")
def test_groups_are_created_below_the_target_group(tmp_path: Path, mode: str) -> None:
    file = product(tmp_path / "a.nc")
    repo = new_repo(tmp_path)

    for _ in range(2):
        report = run(repo, file, mode=mode, group="/satellite/s5p/")

    assert tree(repo).keys() == {"satellite/s5p/PRODUCT", "satellite/s5p/PRODUCT/SUPPORT/DETAILS"}
    assert [source.url for source in report.outcome.sources.known] == [file]


@modes("native", "virtual")
def test_one_group_can_be_selected(tmp_path: Path, mode: str) -> None:
    file = product(tmp_path / "a.nc")
    repo = new_repo(tmp_path)

    run(repo, file, mode=mode, source_group="PRODUCT")

    assert_same(tree(repo), {"": wanted(file)["PRODUCT"]})


@modes("hybrid")
def test_radar_files_add_a_dimension_in_every_group(tmp_path: Path, mode: str) -> None:
    files = [radar(tmp_path / f"{number}.h5", number) for number in range(3)]
    repo = new_repo(tmp_path)

    run(repo, files[:2], mode=mode, concat_dim="scan")
    run(repo, files, mode=mode, concat_dim="scan")

    parts = [wanted(file) for file in files]
    expected = {path: xr.concat([part[path] for part in parts], "scan") for path in parts[0]}
    found = {
        path: each.rename(dict(zip(each.dims, expected[path].dims, strict=True)))
        for path, each in tree(repo).items()
    }
    assert_same(found, expected)


def test_file_with_one_bad_group_is_skipped_in_all_groups(tmp_path: Path) -> None:
    files = [product(tmp_path / f"{day}.nc", day, 2) for day in (0, 2, 4)]
    with h5py.File(files[1], "a") as file:
        file["PRODUCT/SUPPORT/DETAILS/quality"].attrs["units"] = "m"
    for other in (files[0], files[2]):
        with h5py.File(other, "a") as file:
            file["PRODUCT/SUPPORT/DETAILS/quality"].attrs["units"] = "K"
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=r"2\.nc: quality: is in m"):
        run(repo, files)
    report = run(repo, files, on_bad_file="skip")

    assert [each.source.url for each in report.bad] == [files[1]]
    assert {each.sizes["time"] for each in tree(repo).values()} == {4}


@modes("virtual")
def test_changed_file_replaces_its_data_in_every_group(tmp_path: Path, mode: str) -> None:
    files = [product(tmp_path / f"{day}.nc", day, 2) for day in (0, 2)]
    repo = new_repo(tmp_path)
    run(repo, files, mode=mode)
    with h5py.File(files[1], "a") as file:
        file["PRODUCT/t2m"][...] = 7

    run(repo, files, mode=mode, on_change="ingest")

    assert (tree(repo)["PRODUCT"]["t2m"][2:] == 7).all()
    assert len(read_ledger(repo.readonly_session("main"), "")) == 4


def test_changed_file_without_a_former_group_is_reported_as_bad(tmp_path: Path) -> None:
    files = [product(tmp_path / f"{day}.nc", day, 2) for day in (0, 2)]
    repo = new_repo(tmp_path)
    run(repo, files)
    with h5py.File(files[1], "a") as file:
        del file["PRODUCT/SUPPORT"]

    with pytest.raises(InvalidInputError, match=r"was in PRODUCT/SUPPORT/DETAILS when"):
        run(repo, files, on_change="ingest")


@modes("virtual")
def test_moved_file_is_recognized_with_all_its_groups(tmp_path: Path, mode: str) -> None:
    files = [product(tmp_path / f"{day}.nc", day, 2) for day in (0, 2)]
    repo = new_repo(tmp_path)
    run(repo, files, mode=mode)
    (tmp_path / "elsewhere").mkdir()
    moved = [shutil.move(file, tmp_path / "elsewhere") for file in files]

    report = run(repo, moved, mode=mode)

    assert [each.was for each in report.outcome.renamed] == files
    assert {each.sizes["time"] for each in tree(repo).values()} == {4}


def test_groups_accept_chunks_per_dimension(tmp_path: Path) -> None:
    file = product(tmp_path / "a.nc")
    repo = new_repo(tmp_path)

    report = icefloe.ingest_files(
        file, repo, executor=ThreadExecutor(1), chunks={"time": 1, "lat": 2}, checks=["monotone", "source"]
    )

    assert report.plan is not None
    chunks = {array.name: array.chunks for array in report.plan.arrays}
    assert chunks["PRODUCT/t2m"] == chunks["PRODUCT/SUPPORT/DETAILS/quality"] == (1, 2, 4)


def test_mistyped_dimension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="'tme', which is not a dimension"):
        run(new_repo(tmp_path), product(tmp_path / "a.nc"), chunks={"tme": 1})


def test_file_without_groups_has_no_group_columns(tmp_path: Path) -> None:
    file = write(tmp_path / "a.nc", days(0, 2))
    repo = new_repo(tmp_path)

    run(repo, file)

    assert tree(repo).keys() == {""}
    store = repo.readonly_session("main").store
    columns = set(xr.open_zarr(store, group="_icefloe/ledger", consolidated=False).variables)
    assert columns.isdisjoint({"target_group", "source_group"})


@modes()
def test_image_overviews_are_not_ingested(tmp_path: Path, mode: str) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(np.arange(4096, dtype="u2").reshape(64, 64), subifds=1, tile=(16, 16))
        file.write(np.arange(1024, dtype="u2").reshape(32, 32), subfiletype=1, tile=(16, 16))
    aged(tmp_path / "a.tif")
    repo = new_repo(tmp_path)

    run(repo, tmp_path / "a.tif", mode=mode)

    assert tree(repo).keys() == {""}


# Icechunk repositories


def stored(folder: Path) -> Repository:
    """Create a repository with two versions: the tag v1 has one group less, and other values."""
    repo = Repository.create(icefloe.local_filesystem_storage(str(folder)))
    session = repo.writable_session("main")
    days(0, 2).to_zarr(session.store, group="air", consolidated=False)
    repo.create_tag("v1", session.commit("one"))
    session = repo.writable_session("main")
    (days(0, 2) + 1).to_zarr(session.store, group="air", consolidated=False, mode="w")
    days(0, 2).to_zarr(session.store, group="soil", consolidated=False)
    session.commit("two")
    return repo


@modes_in_turn("is_remote", [False, True])
def test_groups_of_a_repository_version_are_ingested(tmp_path: Path, mode: str, is_remote: bool) -> None:
    stored(tmp_path / "source")
    with file_server(tmp_path) as url:
        name = f"{url}/source" if is_remote else str(tmp_path / "source")
        now, then = new_repo(tmp_path), new_repo(tmp_path)

        run(now, name, mode=mode)
        run(then, f"{name}@v1", mode=mode)
        again = run(now, name, mode=mode)

        assert again.outcome.wanted == ()
        assert_same(tree(now), {"air": days(0, 2) + 1, "soil": days(0, 2)})
        assert_same(tree(then), {"air": days(0, 2)})


VOLUME_ATTRIBUTES = {
    "": {"title": "volume"},
    "what": {"object": "PVOL"},
    "air/how": {"gain": 0.5, "levels": [1, 2]},
    "nothing": {},
}


@modes_in_turn("concat_dim", [None, "time"])
def test_groups_with_only_static_data_are_stored_once(
    tmp_path: Path, mode: str, concat_dim: str | None
) -> None:
    files = [write_groups(tmp_path / f"{day}.nc", day) for day in (0, 2, 4)]
    repo = new_repo(tmp_path)

    run(repo, files[:2], mode=mode, group="radar", concat_dim=concat_dim, commit_every=1)
    run(repo, files, mode=mode, group="radar", concat_dim=concat_dim)

    found, first = tree(repo), wanted(files[0])
    assert found.keys() == {"radar/air", "radar/fixed/land"}
    xr.testing.assert_equal(found["radar/fixed/land"], first["fixed/land"])
    air = xr.concat([wanted(file)["air"] for file in files], "time")
    xr.testing.assert_equal(found["radar/air"], air)
    below = zarr.open_group(repo.readonly_session("main").store, path="radar", mode="r")
    for path, attrs in VOLUME_ATTRIBUTES.items():
        group = below[path] if path else below
        assert isinstance(group, zarr.Group)
        assert dict(group.attrs) == attrs
    assert sorted(below.array_keys()) == ["lat", "lon"]


def test_selecting_variables_excludes_groups_without_them(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)

    run(repo, write_groups(tmp_path / "a.nc"), variables=["orog"])

    root = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert sorted(root.group_keys()) == ["_icefloe", "fixed"]
    assert dict(root.attrs) == {"title": "volume"}


def test_error_for_differing_static_group_contains_the_file(tmp_path: Path) -> None:
    files = [write_groups(tmp_path / f"{day}.nc", day) for day in (0, 2)]
    with h5py.File(files[1], "a") as file:
        file["fixed/land/orog"][0, 0] = -1
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=r"2.nc: fixed/land/orog: differs from that of .*0.nc"):
        run(repo, files)
    run(repo, files, compat="override")

    assert float(tree(repo)["fixed/land"]["orog"][0, 0]) == 0


def partly_named(path: Path, dtype: str) -> str:
    """Write a file of which some dimensions have names, which not all libraries can read."""
    with h5py.File(path, "w") as file:
        for group in ("", "a/", "a/b/"):
            scale = file.create_dataset(f"{group}x", data=np.arange(4.0))
            scale.make_scale("x")
            for name, shape in {"u": (3, 4), "v": (4, 4), "w": (2, 4, 3)}.items():
                values = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
                file.create_dataset(group + name, data=values)
            file[f"{group}w"].dims[1].attach_scale(scale)
    return str(aged(path))


@modes_in_turn("dtype", ["f2", "f4"])
def test_named_and_unnamed_dimensions_can_be_mixed(tmp_path: Path, mode: str, dtype: str) -> None:
    file = partly_named(tmp_path / "a.h5", dtype)
    repo = new_repo(tmp_path)

    run(repo, file, mode=mode)

    found = tree(repo)
    assert found.keys() == {"", "a", "a/b"}
    with h5py.File(file) as stored:
        for path, dataset in found.items():
            for name in ("u", "v", "w"):
                np.testing.assert_array_equal(dataset[name].values, stored[f"{path}/{name}"][()])


def swath(path: Path, first: int, count: int) -> str:
    """Write one time of a satellite swath in a group; files have different numbers of scanlines."""
    data = days(first, 1).rename(lat="scanline").drop_vars("scanline").isel(scanline=slice(count))
    data = data.assign_coords(scanline=np.arange(count))
    xr.Dataset().to_netcdf(path, engine="h5netcdf")
    data.to_netcdf(path, group="PRODUCT", mode="a", engine="h5netcdf")
    return str(aged(path))


def test_problem_in_a_group_names_the_group(tmp_path: Path) -> None:
    files = [swath(tmp_path / f"{number}.nc", number, 3 + number) for number in range(2)]

    with pytest.raises(ProblemsError) as caught:
        run(new_repo(tmp_path), files, concat_dim="time")

    assert [(each.variable, each.source.url) for each in caught.value.bad] == [("PRODUCT/scanline", files[1])]


def test_files_with_different_labels_offer_remedies(tmp_path: Path) -> None:
    files = [swath(tmp_path / f"{number}.nc", number, 3 + number) for number in range(2)]

    with pytest.raises(ProblemsError, match=r"1\.nc: PRODUCT/scanline: has different labels") as caught:
        run(new_repo(tmp_path), files)

    assert caught.value.hint is not None
    assert {name for name, _ in caught.value.hint.options} == {"concat_dim", "join", "on_bad_file"}
