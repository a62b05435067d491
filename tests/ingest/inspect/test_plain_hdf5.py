"""A file that is parsed for references is described as xarray describes it, or left to xarray."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from icefloe.ingest.discover.sources import find_sources
from icefloe.ingest.inspect.open import open_virtualized
from icefloe.ingest.inspect.plain_hdf5 import ReusedDescriptions, describe_plain_file
from icefloe.ingest.inspect.schema import inspect_file
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import FileSchema
from tests.support.ingest.files import aged, days, write

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def seen(path: Path, known: ReusedDescriptions, reading: ReadOptions = ReadOptions()) -> FileSchema | None:  # noqa: B008 - a value
    """Read the schema of a file from the members that its parser found."""
    (source,) = find_sources(aged(path))
    with open_virtualized(source, reading) as (_, members):
        assert members is not None
        return describe_plain_file(members, source, reading, "", known)


def facts(schema: FileSchema | None) -> Any:
    """All of a schema but its identity, to be compared, types of attributes included."""
    assert schema is not None
    values = {name: (each.dtype, each.shape, each.tolist()) for name, each in sorted(schema.values.items())}
    attrs = sorted((name, pickle.dumps(value)) for name, value in schema.attrs.items())
    variables = {
        each.name: (
            each.dims,
            each.raw_dims,
            each.raw_dtype,
            each.dtype,
            each.is_coordinate,
            each.chunks,
            sorted((name, _comparable(value)) for name, value in each.attrs.items()),
            sorted((name, _comparable(value)) for name, value in each.packing.items()),
        )
        for each in schema.variables
    }
    return variables, dict(sorted(schema.sizes.items())), values, attrs


def _comparable(value: Any) -> Any:
    return type(value).__name__, str(getattr(value, "dtype", "")), repr(np.asarray(value).tolist())


def by_xarray(path: Path, reading: ReadOptions = ReadOptions()) -> FileSchema:  # noqa: B008 - a value
    (source,) = find_sources(path)
    found = inspect_file(source, reading)
    assert isinstance(found, FileSchema)
    return found


def usual(first: int) -> xr.Dataset:
    """A bit of all that archives have: packed values, bounds, coordinates of their own, a grid mapping."""
    dataset = days(first, 4)
    edges = np.stack([dataset["time"].values, dataset["time"].values + np.timedelta64(1, "D")], axis=1)
    dataset["time"].attrs["bounds"] = "time_bnds"
    dataset["time_bnds"] = ("time", "nv"), edges
    dataset["packed"] = dataset["t2m"] * 2
    dataset["crs"] = (), 0, {"grid_mapping_name": "latitude_longitude", "earth": [6.37e6, 1.0]}
    dataset["step"] = "time", np.arange(4), {"units": "hours"}
    return dataset.assign_coords(
        height=((), 2.0, {"units": "m"}), area=(("lat", "lon"), np.ones((5, 4))), zone=("lat", np.arange(5))
    )


def written(path: Path, first: int, engine: Any, since: str = "2000-01-01") -> Path:
    encoding: dict[str, Any] = {
        "time": {"units": f"hours since {since}", "dtype": "f8"},
        "packed": {"dtype": "i2", "scale_factor": np.float32(0.5), "add_offset": 10.0, "_FillValue": -1},
        "t2m": {"zlib": True, "chunksizes": (2, 5, 4)},
    }
    usual(first).to_netcdf(path, engine=engine, encoding=encoding, unlimited_dims=["time"])
    return aged(path)


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
@pytest.mark.parametrize("reader", ["netcdf4", "h5netcdf", None])
def test_schemas_match_xarray(tmp_path: Path, engine: str, reader: str | None) -> None:
    """The first file is described in full, the next by its template, one of another kind in full."""
    known = ReusedDescriptions()
    paths = [written(tmp_path / f"{first}.nc", first, engine, f"2024-01-0{first + 1}") for first in (0, 4, 8)]
    write(tmp_path / "other.nc", days(12, 4))

    for path in (*paths, tmp_path / "other.nc"):
        for names in ((), ("t2m",)):
            reading = ReadOptions(engine=reader, variables=names)
            assert facts(seen(path, known, reading)) == facts(by_xarray(path, reading))
    assert len(known.templates) == 4


def test_schemas_with_other_calendars_match_xarray(tmp_path: Path) -> None:
    known = ReusedDescriptions()
    for number in range(2):
        path = tmp_path / f"{number}.nc"
        time = xr.date_range("2000-01-30", periods=3, freq="D", calendar="360_day", use_cftime=True)
        dataset = xr.Dataset({"a": ("time", np.arange(3.0))}, {"time": time.shift(number * 3, "D")})
        write(path, dataset)

        assert facts(seen(path, known)) == facts(by_xarray(path))


def text_values(file: h5py.File) -> None:
    file["name"] = np.array([b"ab", b"cd"])


def no_scales(file: h5py.File) -> None:
    file["loose"] = np.arange(3.0)


def a_flag(file: h5py.File) -> None:
    file.create_dataset("flag", (), h5py.enum_dtype({"no": 0, "yes": 1}, "i1"))


def big_endian(file: h5py.File) -> None:
    file.create_dataset("big", (), ">f4")


def texts_in_a_list(file: h5py.File) -> None:
    file["x"].attrs["names"] = ["a", "b"]


def nothing_in_a_text(file: h5py.File) -> None:
    file["x"].attrs["comment"] = h5py.Empty("S1")


def a_link(file: h5py.File) -> None:
    file["elsewhere"] = h5py.ExternalLink("other.nc", "/x")


def a_fill_of_another_type(file: h5py.File) -> None:
    file["x"].attrs["_FillValue"] = np.int16(-1)


def digits_that_were_kept(file: h5py.File) -> None:
    file["a"].attrs["least_significant_digit"] = 1


@pytest.mark.parametrize(
    "odd",
    [
        text_values,
        no_scales,
        a_flag,
        big_endian,
        texts_in_a_list,
        nothing_in_a_text,
        a_link,
        a_fill_of_another_type,
        digits_that_were_kept,
    ],
)
def test_unusual_files_are_read_by_xarray(tmp_path: Path, odd: Callable[[h5py.File], None]) -> None:
    path = tmp_path / "odd.nc"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3.0)
        file["x"].make_scale("x")
        plain = file.create_dataset("a", (3,), "f4")
        plain.dims[0].attach_scale(file["x"])
    assert facts(seen(path, ReusedDescriptions())) == facts(by_xarray(path))

    with h5py.File(path, "r+") as file:
        odd(file)

    assert seen(path, ReusedDescriptions()) is None
