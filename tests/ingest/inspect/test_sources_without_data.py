"""A file that contributes no data variable is a bad file: refused or skipped, and not in the ledger."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import eccodes
import h5py
import numpy as np
import pytest
import xarray as xr

from icefloe import InvalidInputError, Repository
from icefloe.cli import main as app
from icefloe.ingest.ledger import read_ledger
from icefloe.ingest.records import RESERVED_NAMES
from tests.support.ingest.files import START, aged, archive, days, new_repo, run, write
from tests.support.ingest.modes import modes, modes_in_turn

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def product(path: Path) -> str:
    """Write a NetCDF-4 file with all data in a group, as those of Sentinel-5P are."""
    days(0, 2).to_netcdf(path, group="PRODUCT", engine="h5netcdf")
    return str(aged(path))


def radar(path: Path) -> str:
    """Write an HDF5 file with data two groups deep, as ODIM radar files are."""
    with h5py.File(path, "w") as file:
        for scan in (1, 2):
            file.create_dataset(f"dataset{scan}/data1/data", data=np.zeros((3, 4), "u1"))
    return str(aged(path))


def levels(path: Path) -> str:
    """Write GRIB messages on two level types; its name is one that xarray has no engine for."""
    for level_type, level in (("isobaricInhPa", 500), ("heightAboveGround", 2)):
        handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
        eccodes.codes_set(handle, "typeOfLevel", level_type)
        eccodes.codes_set(handle, "level", level)
        eccodes.codes_set(handle, "shortName", "t")
        with path.open("ab") as file:
            eccodes.codes_write(handle, file)
        eccodes.codes_release(handle)
    return str(aged(path))


def coordinates(path: Path) -> str:
    return write(path, days(0, 2).drop_vars("t2m"))


def bounds(path: Path) -> str:
    """Write coordinates with their bounds, and a description of the grid."""
    dataset = days(0, 2).drop_vars("t2m")
    edges = np.stack([dataset["time"].values, dataset["time"].values + np.timedelta64(1, "D")], axis=1)
    dataset["time"].attrs["bounds"] = "time_bnds"
    crs = ((), np.int32(0), {"grid_mapping_name": "latitude_longitude"})
    units = {"time": {"units": "days since 2024-01-01"}}
    return write(path, dataset.assign(time_bnds=(("time", "nv"), edges), crs=crs), units)


def nothing(path: Path) -> str:
    return write(path, xr.Dataset())


LAYOUTS = [
    (coordinates, "a.nc", "only time, lat, lon"),
    (bounds, "a.nc", "time_bnds"),
    (nothing, "a.nc", "no data variables and no groups"),
]


def known(repo: Repository) -> list[str]:
    return [row.source for row in read_ledger(repo.readonly_session("main"), "")]


@modes_in_turn("make,name,said", LAYOUTS)
def test_ingest_of_file_without_data_lists_its_content(
    tmp_path: Path, make: Callable[[Path], str], name: str, said: str, mode: str
) -> None:
    file = make(tmp_path / name)
    repo = new_repo(tmp_path)
    before = repo.lookup_branch("main")

    for options in ({}, {"on_bad_file": "skip"}, {"dry_run": True}):
        with pytest.raises(InvalidInputError) as caught:
            run(repo, file, mode=mode, **options)

        assert file in str(caught.value)
        assert said in str(caught.value)
        assert repo.lookup_branch("main") == before
        assert set(repo.list_branches()) == {"main"}


@modes_in_turn("make,name,said", LAYOUTS)
def test_file_without_data_is_skipped_among_good_files(
    tmp_path: Path, make: Callable[[Path], str], name: str, said: str, mode: str
) -> None:
    files = archive(tmp_path)
    bad = make(tmp_path / name)
    repo = new_repo(tmp_path)
    with pytest.raises(InvalidInputError):
        run(repo, [*files, bad], mode=mode)

    report = run(repo, [*files, bad], mode=mode, on_bad_file="skip")

    assert [each.source.url for each in report.bad] == [bad]
    assert said in report.bad[0].sentence
    assert known(repo) == files


@modes("virtual")
def test_run_with_known_sources_only_succeeds(tmp_path: Path, mode: str) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    run(repo, files, mode=mode)

    report = run(repo, files, mode=mode)

    assert report.ok
    assert report.bad == ()
    assert [source.url for source in report.outcome.sources.known] == files


@modes("virtual")
def test_changed_file_without_data_does_not_replace_old_data(tmp_path: Path, mode: str) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    run(repo, files, mode=mode)
    rows, before = read_ledger(repo.readonly_session("main"), ""), repo.lookup_branch("main")
    shutil.copy(product(tmp_path / "other.nc"), files[1])

    with pytest.raises(InvalidInputError, match="PRODUCT"):
        run(repo, files, mode=mode, on_change="ingest")
    report = run(repo, files, mode=mode, on_change="ingest", on_bad_file="skip")

    assert [each.source.url for each in report.bad] == [files[1]]
    assert read_ledger(repo.readonly_session("main"), "") == rows
    assert repo.lookup_branch("main") == before


@modes_in_turn(
    "make,name,group,variable",
    [
        (product, "a.nc", "PRODUCT", "t2m"),
        (radar, "a.h5", "dataset1/data1", "data"),
        (levels, "a.grib1", "isobaricInhPa", "t"),
    ],
)
def test_suggested_source_group_works(
    tmp_path: Path, make: Callable[[Path], str], name: str, group: str, variable: str, mode: str
) -> None:
    repo = new_repo(tmp_path)

    report = run(repo, make(tmp_path / name), mode=mode, source_group=group)

    assert report.plan is not None
    assert variable in {array.name for array in report.plan.arrays}


def test_groups_below_the_source_group_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"the group dataset1 has no data.* dataset1/data1 \(data\)"):
        run(new_repo(tmp_path), radar(tmp_path / "a.h5"), source_group="dataset1")


@modes_in_turn(
    "make,name,said",
    [
        (product, "a.nc", "PRODUCT (t2m)"),
        (radar, "a.h5", "dataset2/data1 (data)"),
        (levels, "a.grib1", "(t)"),
    ],
)
def test_unknown_source_group_is_refused(
    tmp_path: Path, make: Callable[[Path], str], name: str, said: str, mode: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        run(new_repo(tmp_path), make(tmp_path / name), source_group="PRODUKT", mode=mode)

    assert "it has no group 'PRODUKT'; its groups with data are" in str(caught.value)
    assert said in str(caught.value)


def test_selected_bounds_are_treated_as_data(tmp_path: Path) -> None:
    report = run(new_repo(tmp_path), bounds(tmp_path / "a.nc"), variables=["time_bnds"])

    assert report.published is not None


def test_failed_command_leaves_no_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, place = coordinates(tmp_path / "a.nc"), tmp_path / "repo"

    for words in ([], ["--on-bad-file", "skip"], ["--virtual"], ["--hybrid"], ["--dry-run"]):
        assert app.main(["ingest", file, str(place), "--executor", "threads", *words]) == 2

        error = capsys.readouterr().err
        assert "it has no data variables, only time, lat, lon" in error
        assert not place.exists()


# Named variables


@modes("native", "virtual")
def test_mistyped_variable_is_not_reported_per_file(tmp_path: Path, mode: str) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)

    for options in ({}, {"on_bad_file": "skip"}, {"dry_run": True}):
        with pytest.raises(InvalidInputError) as caught:
            run(repo, files, mode=mode, variables=["t2m", "t2n"], **options)
        assert str(caught.value) == "no file has the variable 't2n'; did you mean t2m?"
        with pytest.raises(InvalidInputError) as caught:
            run(repo, files, mode=mode, variables=["humidity"], **options)
        assert str(caught.value) == "no file has the variable 'humidity'; the files have t2m"


@modes("native", "virtual")
def test_variable_missing_from_some_files_is_filled(tmp_path: Path, mode: str) -> None:
    rain = ("time", np.ones(3, "f4"))
    files = [write(tmp_path / "0.nc", days(0, 3, rain=rain)), write(tmp_path / "1.nc", days(3, 3))]
    repo = new_repo(tmp_path)

    report = run(repo, files, mode=mode, variables=["t2m", "rain"], join="outer")

    assert report.bad == ()
    assert report.plan is not None
    assert {array.name for array in report.plan.arrays} >= {"t2m", "rain"}


def test_file_with_none_of_the_variables_is_bad(tmp_path: Path) -> None:
    rain = xr.Dataset({"rain": ("time", np.ones(2))}, {"time": START + np.arange(2)})
    files = [*archive(tmp_path), write(tmp_path / "rain.nc", rain)]

    with pytest.raises(
        InvalidInputError, match=r"rain\.nc: no data variable was selected by t2m: it has rain"
    ):
        run(new_repo(tmp_path), files, variables=["t2m"])
    report = run(new_repo(tmp_path), files, variables=["t2m"], on_bad_file="skip")

    assert [each.source.url for each in report.bad] == files[-1:]


def test_variable_only_in_the_repository_is_not_mistyped(tmp_path: Path) -> None:
    rain = ("time", np.ones(3, "f4"))
    files = [write(tmp_path / "0.nc", days(0, 3, rain=rain)), write(tmp_path / "1.nc", days(3, 3))]
    repo = new_repo(tmp_path)
    run(repo, files[0], variables=["t2m", "rain"])

    report = run(repo, files, variables=["t2m", "rain"], join="outer")

    assert known(repo) == files
    assert report.bad == ()


def test_damaged_files_are_not_reported_as_mistyped_variable(tmp_path: Path) -> None:
    files = archive(tmp_path)
    for file in files:
        Path(file).write_bytes(b"no NetCDF")

    with pytest.raises(InvalidInputError, match="3 files cannot be ingested"):
        run(new_repo(tmp_path), files, variables=["t2m"])


def test_selecting_only_coordinates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="selected by lat, lon: they are coordinates"):
        run(new_repo(tmp_path), archive(tmp_path), variables=["lat", "lon"])


@modes("native", "virtual")
def test_reserved_names_are_refused(tmp_path: Path, mode: str) -> None:
    data = days(0, 2)
    taken = [write(tmp_path / f"{at}.nc", data.rename(t2m=name)) for at, name in enumerate(RESERVED_NAMES)]
    grouped = tmp_path / "grouped.nc"
    data.to_netcdf(grouped, engine="h5netcdf")
    data.to_netcdf(grouped, group="zarr.json", mode="a", engine="h5netcdf")
    both = write(tmp_path / "both.nc", data.assign({"zarr.json": data["t2m"]}))
    repo = new_repo(tmp_path)

    for file in [*taken, both, str(aged(grouped))]:
        with pytest.raises(InvalidInputError, match=r"its name is reserved for .*; select"):
            run(repo, file, mode=mode)
    with pytest.raises(InvalidInputError, match=r"the group zarr\.json is reserved"):
        run(repo, both, mode=mode, variables="t2m", group="zarr.json")
    report = run(repo, [both, taken[0]], mode=mode, variables="t2m", on_bad_file="skip")

    assert [row.source for row in read_ledger(repo.readonly_session("main"), "")] == [both]
    assert [bad.source.url for bad in report.bad] == [taken[0]]


def test_missing_package_is_reported_and_the_file_is_considered_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = levels(tmp_path / "levels.grib")
    monkeypatch.setitem(sys.modules, "eccodes", None)

    with pytest.raises(InvalidInputError) as caught:
        run(new_repo(tmp_path), file)

    assert "this needs eccodes: pip install 'eccodes" in str(caught.value)
    assert "repair" not in str(caught.value)
