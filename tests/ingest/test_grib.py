"""GRIB files are split like in cfgrib, into groups that later files join, in all modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cfgrib
import numpy as np
import pytest
import xarray as xr

from icefloe import InvalidInputError, Repository
from tests.support.ingest.files import new_repo, run, tree
from tests.support.ingest.grib import COLUMNS, ROWS, height, pressure, surface, write_grib
from tests.support.ingest.modes import modes, modes_in_turn

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
STEPS = (0, 6, 12)


def forecast(path: Path, date: int = 20240101) -> str:
    """Write a file as weather services do: several types of level, and fields that are accumulated."""
    return write_grib(
        path,
        *(surface("sp", step=step, date=date) for step in STEPS),
        *(surface("tp", step=step, date=date) for step in STEPS[1:]),
        *(pressure("t", level, step=step, date=date) for level in (850, 500) for step in STEPS),
        *(height("2t", step=step, date=date) for step in STEPS),
        *(height("10u", step=step, date=date) for step in STEPS),
    )


GROUPS = {
    "surface/instant": ["sp"],
    "surface/accum": ["tp"],
    "isobaricInhPa": ["t"],
    "heightAboveGround/2": ["t2m"],
    "heightAboveGround/10": ["u10"],
}


def by_name(repo: Repository) -> dict[str, list[str]]:
    return names(tree(repo))


def names(groups: Mapping[str, xr.Dataset]) -> dict[str, list[str]]:
    return {path: sorted(map(str, each.data_vars)) for path, each in groups.items()}


def assert_values(found: xr.Dataset, wanted: xr.Dataset) -> None:
    """Assert that variables and coordinates are equal; attributes are those of another library."""
    for name in (*wanted.data_vars, *wanted.dims):
        if name in wanted.variables:
            xr.testing.assert_equal(found[name].drop_vars(_others(found[name])), _plain(wanted[name]))


def _plain(array: xr.DataArray) -> xr.DataArray:
    return array.drop_vars(_others(array))


def _others(array: xr.DataArray) -> list[Any]:
    return [name for name in array.coords if name not in array.dims]


def by_cfgrib(file: str) -> list[xr.Dataset]:
    return [each.load() for each in cfgrib.open_datasets(file, backend_kwargs={"indexpath": ""})]


@modes()
def test_parts_of_a_grib_file_become_groups(tmp_path: Path, mode: str) -> None:
    file = forecast(tmp_path / "a.grib2")
    repo = new_repo(tmp_path)

    report = run(repo, file, mode=mode)

    found = tree(repo)
    assert names(found) == GROUPS
    for dataset in by_cfgrib(file):
        (path,) = [path for path, each in GROUPS.items() if each == sorted(map(str, dataset.data_vars))]
        assert_values(found[path], dataset)
    assert len(report.commits) == 1


@modes("virtual")
def test_group_names_do_not_depend_on_message_order(tmp_path: Path, mode: str) -> None:
    file = Path(forecast(tmp_path / "a.grib2"))
    parts = file.read_bytes().split(b"GRIB")[1:]
    other = write_grib(tmp_path / "b.grib2", *(b"GRIB" + part for part in reversed(parts)))
    repo = new_repo(tmp_path)

    run(repo, other, mode=mode)

    assert by_name(repo) == GROUPS


@modes("hybrid")
def test_later_files_join_existing_groups(tmp_path: Path, mode: str) -> None:
    """Also an analysis without accumulated variables, and one that is ingested first."""
    analysis = write_grib(
        tmp_path / "0.grib2", surface("sp", date=20240101), pressure("t", 850), pressure("t", 500)
    )
    later = forecast(tmp_path / "1.grib2", 20240102)
    last = write_grib(
        tmp_path / "2.grib2",
        *(surface("sp", step=step, date=20240103) for step in STEPS),
        *(pressure("t", level, step=step, date=20240103) for level in (850, 500) for step in STEPS),
    )
    together, one_by_one = new_repo(tmp_path), new_repo(tmp_path)

    run(together, [later, last], mode=mode)
    run(one_by_one, later, mode=mode)
    run(one_by_one, last, mode=mode)
    fresh = new_repo(tmp_path)
    run(fresh, analysis, mode=mode)

    found, expected = tree(one_by_one), tree(together)
    assert names(found) == names(expected) == GROUPS
    for path, each in expected.items():
        xr.testing.assert_identical(found[path], each)
    assert expected["surface/instant"]["sp"].sizes["time"] == 2
    assert expected["surface/accum"].sizes.get("time", 1) == 1
    assert by_name(fresh) == {"surface": ["sp"], "isobaricInhPa": ["t"]}


@modes("native")
def test_group_of_one_step_grows_with_the_other_groups(tmp_path: Path, mode: str) -> None:
    """Accumulated variables begin with the second file of a forecast: their group has one step at first."""
    files = [
        write_grib(
            tmp_path / f"{step}.grib2",
            *(surface(name, step=step) for name in (["sp", "tp"] if step else ["sp"])),
            height("2t", step=step),
            height("10u", step=step),
        )
        for step in STEPS
    ]
    together, one_by_one = new_repo(tmp_path), new_repo(tmp_path)

    run(together, files, mode=mode)
    run(one_by_one, files[:2], mode=mode)
    run(one_by_one, files, mode=mode)

    found, expected = tree(one_by_one), tree(together)
    assert expected["surface/accum"]["tp"].sizes["step"] == 2
    for path, each in expected.items():
        xr.testing.assert_equal(found[path], each)


@modes("native")
def test_new_step_type_does_not_rename_groups(tmp_path: Path, mode: str) -> None:
    first = write_grib(
        tmp_path / "0.grib2",
        *(surface("sp", step=step) for step in STEPS),
        *(pressure("t", level, step=step) for level in (850, 500) for step in STEPS),
    )
    repo = new_repo(tmp_path)
    run(repo, first, mode=mode)

    run(repo, forecast(tmp_path / "1.grib2", 20240102), mode=mode)

    found = tree(repo)
    assert found["surface"]["sp"].sizes["time"] == 2
    assert list(found["surface_accum"].data_vars) == ["tp"]
    xr.open_datatree(repo.readonly_session("main").store, engine="zarr", consolidated=False).close()  # type: ignore[arg-type]


@modes("native", "virtual")
def test_file_that_fits_into_one_dataset_has_no_groups(tmp_path: Path, mode: str) -> None:
    file = write_grib(tmp_path / "a.grib2", surface("sp", step=6), surface("tp", step=6))
    repo = new_repo(tmp_path)

    run(repo, file, mode=mode)

    found = tree(repo)
    assert names(found) == {"": ["sp", "tp"]}
    (wanted,) = by_cfgrib(file)
    assert_values(found[""], wanted)


@modes("hybrid")
def test_later_grib_files_keep_variables_in_the_root_group(tmp_path: Path, mode: str) -> None:
    first = write_grib(tmp_path / "0.grib2", *(surface("sp", step=step) for step in STEPS))
    repo = new_repo(tmp_path)
    run(repo, first, mode=mode)

    run(repo, forecast(tmp_path / "1.grib2", 20240102), mode=mode)

    found = tree(repo)
    assert found[""]["sp"].sizes["time"] == 2
    assert {path for path in found if path} == {
        "surface_accum",
        "isobaricInhPa",
        "heightAboveGround/2",
        "heightAboveGround/10",
    }


@modes_in_turn(
    "group", ["surface/accum", "heightAboveGround/10", "isobaricInhPa", "heightAboveGround/instant/2"]
)
def test_one_group_can_be_selected(tmp_path: Path, mode: str, group: str) -> None:
    repo = new_repo(tmp_path)

    run(repo, forecast(tmp_path / "a.grib2"), mode=mode, source_group=group)

    (found,) = by_name(repo).values()
    assert found == GROUPS[group.replace("/instant", "")]


def test_selection_by_messages_is_stable_across_files(tmp_path: Path) -> None:
    """A file of an archive may lack the parts that make group names longer in others."""
    files = [
        forecast(tmp_path / "0.grib2"),
        write_grib(tmp_path / "1.grib2", *(surface("sp", step=step, date=20240102) for step in STEPS)),
    ]
    repo = new_repo(tmp_path)

    run(repo, files, source_group="surface/instant")

    assert tree(repo)[""]["sp"].sizes["time"] == 2


def test_source_group_of_several_datasets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="surface/accum"):
        run(new_repo(tmp_path), forecast(tmp_path / "a.grib2"), source_group="surface")


@modes("virtual")
def test_group_numbers_are_stable(tmp_path: Path, mode: str) -> None:
    """Variables are on other levels, and in another order in another file."""

    def file(number: int, names: Sequence[str]) -> str:
        levels: Mapping[str, Sequence[int]] = {"t": (850, 700, 500), "u": (850, 500)}
        date = 20240101 + number
        fields = [pressure(name, level, date=date) for name in names for level in levels[name]]
        return write_grib(tmp_path / f"{number}.grib2", *fields)

    repo = new_repo(tmp_path)

    run(repo, file(0, "tu"), mode=mode)
    run(repo, file(1, "ut"), mode=mode)
    run(repo, file(2, "u"), mode=mode)

    found = tree(repo)
    assert names(found) == {"isobaricInhPa": ["t"], "isobaricInhPa_2": ["u"]}
    assert found["isobaricInhPa"].sizes["time"] == 2
    assert found["isobaricInhPa_2"].sizes["time"] == 3
    assert not np.isnan(found["isobaricInhPa_2"]["u"].values).any()


def test_selected_grib_variables_determine_the_groups(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)

    run(repo, forecast(tmp_path / "a.grib2"), variables=["tp", "t"])

    assert by_name(repo) == {"surface/accum": ["tp"], "isobaricInhPa": ["t"]}


# Many small files


def per_step(folder: Path, names: Sequence[str], steps: Sequence[int], date: int = 20240101) -> list[str]:
    """Write a file for each variable and step."""
    make = {"sp": surface, "tp": surface, "2t": height, "10u": height}
    return [
        write_grib(folder / f"{date}-{name}-{step:03}.grib2", make[name](name, step=step, date=date))
        for name in names
        for step in steps
    ]


def merged(files: Sequence[str], dims: Sequence[str] = ("step",)) -> xr.Dataset:
    """Merge variables, the files of each put together along dimensions."""
    found = [xr.open_dataset(file, engine="cfgrib", backend_kwargs={"indexpath": ""}) for file in files]
    by_name: dict[str, list[xr.Dataset]] = {}
    for each in found:
        expanded = each.drop_vars("valid_time").expand_dims(list(dims))
        by_name.setdefault(str(next(iter(each.data_vars))), []).append(expanded)
    parts = [xr.combine_by_coords(some, combine_attrs="override") for some in by_name.values()]
    result = xr.merge([part for part in parts if isinstance(part, xr.Dataset)], join="outer")
    return result.load()


@modes("virtual")
def test_one_file_per_variable_and_step_is_ingested(tmp_path: Path, mode: str) -> None:
    files = per_step(tmp_path, ["sp", "tp"], [6, 12, 18])
    repo, later = new_repo(tmp_path), new_repo(tmp_path)

    run(repo, files, mode=mode)
    run(later, files[:1], mode=mode)
    run(later, files[:4], mode=mode)
    run(later, files, mode=mode)

    wanted = merged(files)
    for groups in (tree(repo), tree(later)):
        assert names(groups) == {"": ["sp", "tp"]}
        found = groups[""]
        assert_values(found, wanted)
        assert found["valid_time"].values.tolist() == (found["time"] + found["step"]).values.tolist()


@modes("native")
def test_one_file_per_variable_run_and_step_is_ingested(tmp_path: Path, mode: str) -> None:
    """The last run is incomplete."""
    files = [
        *per_step(tmp_path, ["sp", "tp"], [6, 12, 18], 20240101),
        *per_step(tmp_path, ["sp", "tp"], [6, 12], 20240102),
    ]
    repo, later = new_repo(tmp_path), new_repo(tmp_path)

    run(repo, files, mode=mode)
    for end in (6, 8, len(files)):
        run(later, files[:end], mode=mode)

    wanted = merged(files[:-4], ["time", "step"]).combine_first(merged(files, ["time", "step"]))
    for found in (tree(repo)[""], tree(later)[""]):
        assert_values(found, wanted)
        assert np.isnan(found["sp"].values[1, 2]).all()


@modes("virtual")
def test_variables_at_other_heights_go_to_groups(tmp_path: Path, mode: str) -> None:
    files = per_step(tmp_path, ["2t", "10u"], [0, 6])
    repo = new_repo(tmp_path)

    run(repo, files, mode=mode)

    found = tree(repo)
    assert names(found) == {"heightAboveGround/2": ["t2m"], "heightAboveGround/10": ["u10"]}
    assert_values(found["heightAboveGround/2"], merged(files[:2]))


@modes("native", "virtual")
def test_one_file_per_level_and_step_is_ingested(tmp_path: Path, mode: str) -> None:
    files = [
        write_grib(tmp_path / f"{level}-{step}.grib2", pressure("t", level, step=step))
        for level in (850, 500)
        for step in (0, 6)
    ]
    repo = new_repo(tmp_path)

    run(repo, files, mode=mode)

    found = tree(repo)[""]["t"]
    assert found.dims == ("step", "isobaricInhPa", "latitude", "longitude")
    for file in files:
        with xr.open_dataset(file, engine="cfgrib", backend_kwargs={"indexpath": ""}) as wanted:
            labels = {"step": wanted["step"].values, "isobaricInhPa": wanted["isobaricInhPa"].values}
            np.testing.assert_array_equal(found.sel(labels).values, wanted["t"].values)


@modes("hybrid")
def test_grib_ingest_accepts_a_concat_dim(tmp_path: Path, mode: str) -> None:
    files = per_step(tmp_path, ["sp", "tp"], [6, 12, 18])
    repo = new_repo(tmp_path)

    run(repo, files[:4], mode=mode, concat_dim="step")
    run(repo, files, mode=mode, concat_dim="step")

    assert_values(tree(repo)[""], merged(files))


@modes("native", "virtual")
def test_grid_has_the_same_dimensions_as_in_cfgrib(tmp_path: Path, mode: str) -> None:
    messages = [surface("sp", gridType="mercator", Ni=COLUMNS, Nj=ROWS, step=step) for step in STEPS]
    file = write_grib(tmp_path / "a.grib2", *messages)
    repo = new_repo(tmp_path)

    run(repo, file, mode=mode)

    (wanted,) = by_cfgrib(file)
    (found,) = tree(repo).values()
    assert found["sp"].dims == wanted["sp"].dims
    np.testing.assert_array_equal(found["sp"].values, wanted["sp"].values)
