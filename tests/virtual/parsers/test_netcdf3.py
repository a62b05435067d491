"""Decode NetCDF-3 files of the netCDF library through references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from icefloe.virtual import CannotVirtualizeError, virtualize
from tests.support.virtual.files import aged, assert_all_read_back

KINDS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]
TYPES = ["i1", "i2", "i4", "f4", "f8", "S1"]
MORE_TYPES = [*TYPES, "u1", "u2", "u4", "i8", "u8"]


def write(path: Path, kind: Any, records: list[str], fixed: list[str], count: int = 3) -> dict[str, Any]:
    """Create a file with two variables per type: one with the record dimension, one without."""
    values: dict[str, Any] = {}
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.title = "é"
        file.createDimension("time", None)
        file.createDimension("x", 5)
        for name in [*records, *fixed]:
            dimensions = ("time", "x") if name in records else ("x",)
            shape = (count, 5) if name in records else (5,)
            dtype = np.dtype(name.removeprefix("fixed "))
            values[name] = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
            variable = file.createVariable(name, dtype, dimensions)
            variable.set_auto_maskandscale(False)
            variable[:] = values[name]
            variable.note = "n"
    aged(path)
    return values


@pytest.mark.parametrize("kind", KINDS)
def test_all_types_are_parsed_with_and_without_records(tmp_path: Path, kind: str) -> None:
    types = MORE_TYPES if kind == "NETCDF3_64BIT_DATA" else TYPES
    values = write(tmp_path / "f.nc", kind, types, [f"fixed {name}" for name in types])

    dataset = virtualize(tmp_path / "f.nc", loadable_variables=())

    assert dataset.attributes == {"title": "é"}
    assert dataset.variables["f4"].chunk_shape == (1, 5)
    assert dataset.variables["fixed f4"].chunk_shape == (5,)
    assert dataset.variables["f4"].attributes["note"] == "n"
    assert_all_read_back(dataset, values)


def test_trailing_null_bytes_of_text_are_stripped(tmp_path: Path) -> None:
    path = tmp_path / "f.nc"
    write(path, "NETCDF3_CLASSIC", [], ["f4"])
    with netCDF4.Dataset(path, "r+") as file:
        file["f4"].note = "unit##"
    path.write_bytes(path.read_bytes().replace(b"unit##", b"un\0it\0"))
    aged(path)

    with netCDF4.Dataset(path) as file:
        assert virtualize(path).variables["f4"].attributes["note"] == file["f4"].note == "unit"


@pytest.mark.parametrize("name", ["i1", "i2", "S1", "f8"])
def test_records_of_only_variable_are_not_padded(tmp_path: Path, name: str) -> None:
    values = write(tmp_path / "f.nc", "NETCDF3_CLASSIC", [name], [])

    assert_all_read_back(virtualize(tmp_path / "f.nc"), values)
    assert_all_read_back(virtualize(tmp_path / "f.nc", loadable_variables=[name]), values)


def test_xarray_opens_characters_with_fill_value(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "f.nc", "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("x", 3)
        file.createVariable("text", "S1", ("x",), fill_value=b"b")[:] = np.array([b"a", b"b", b"c"])
    aged(tmp_path / "f.nc")

    opened = virtualize(tmp_path / "f.nc").to_xarray()

    assert opened["text"].item() == b"abc"  # xarray joins characters to strings


def test_file_without_records_is_parsed(tmp_path: Path) -> None:
    write(tmp_path / "f.nc", "NETCDF3_CLASSIC", ["i4", "f4"], [], count=0)

    dataset = virtualize(tmp_path / "f.nc")

    assert dataset.variables["i4"].shape == (0, 5)
    assert_all_read_back(dataset, {"i4": np.empty((0, 5), "i4")})


def test_streaming_record_count_follows_from_file_size(tmp_path: Path) -> None:
    values = write(tmp_path / "f.nc", "NETCDF3_CLASSIC", ["i4", "f8"], [])
    data = bytearray((tmp_path / "f.nc").read_bytes())
    data[4:8] = b"\xff" * 4
    (tmp_path / "f.nc").write_bytes(data)
    aged(tmp_path / "f.nc")

    assert_all_read_back(virtualize(tmp_path / "f.nc"), values)


def test_every_truncation_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "f.nc", "NETCDF3_64BIT_OFFSET", ["i4"], ["fixed f8"])
    data = (tmp_path / "f.nc").read_bytes()

    for kept in [*range(4, 300, 7), len(data) - 1]:
        (tmp_path / "f.nc").write_bytes(data[:kept])
        aged(tmp_path / "f.nc")
        with pytest.raises(CannotVirtualizeError, match=r"f\.nc"):
            virtualize(tmp_path / "f.nc")
