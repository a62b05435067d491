"""Tests of reading HDF5 variables directly into a block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from icefloe.ingest.combine.pieces import Pieces
from icefloe.ingest.discover.sources import discover
from icefloe.ingest.inspect.open import open_raw
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.write.direct_read import open_hdf5_group, read_into

VALUES = np.arange(6 * 5 * 4, dtype="f4").reshape(6, 5, 4)
VALUES[2, 1, 1] = np.nan


def write(path: Path, group: str = "/", **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset(f"{group}/v", data=VALUES, **options)
    return path


def read(path: Path, piece: Pieces, dtype: str = "f4", **options: Any) -> tuple[bool, Any]:
    """Return whether a piece was read directly into a block of zeros, and the block."""
    (source,), reading = discover(str(path)).sources, ReadOptions(**options)
    data = np.zeros((8, 5, 4), dtype)
    with open_raw(source, reading) as raw, open_hdf5_group(source, reading) as group:
        return read_into(data, piece, group, "v", raw.variables["v"]), data


PIECE = Pieces.whole(0, (4, 3, 4), (2, 1, 0)).shift(0, 3)
"""Cells of the file from (2, 1, 0), which belong to the block from (3, 0, 0)."""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (1, 5, 4)},
        {"chunks": (4, 2, 3), "compression": "gzip", "shuffle": True, "fletcher32": True},
    ],
)
def test_piece_is_stored_where_it_belongs(tmp_path: Path, options: dict[str, Any]) -> None:
    direct, data = read(write(tmp_path / "a.nc", **options), PIECE)

    expected = np.zeros((8, 5, 4), "f4")
    expected[3:7, :3] = VALUES[2:6, 1:4]
    assert direct
    assert data.tobytes() == expected.tobytes()


def test_group_is_read_directly(tmp_path: Path) -> None:
    direct, data = read(write(tmp_path / "a.nc", "/inner"), PIECE, group="inner")

    assert direct
    assert data[3:7, :3].tobytes() == VALUES[2:6, 1:4].tobytes()


def test_chunks_that_were_never_written_have_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.create_dataset("v", (6, 5, 4), "f4", chunks=(1, 5, 4), fillvalue=-9)[0] = 1

    direct, data = read(tmp_path / "a.nc", Pieces.whole(0, (6, 5, 4)))

    assert direct
    assert [data[0, 0, 0], data[1, 0, 0], data[5, 4, 3], data[6, 0, 0]] == [1, -9, -9, 0]


def test_values_that_must_be_converted_are_left_to_xarray(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc")

    assert not read(path, PIECE, "f8")[0]
    assert not read(path, PIECE.reorder([0, 2, 1]))[0]
    assert not read(path, PIECE, engine="h5netcdf", open_options={"phony_dims": "access"})[0]


def test_other_formats_are_left_to_xarray(tmp_path: Path) -> None:
    xr.Dataset({"v": (("x", "y", "z"), VALUES)}).to_netcdf(tmp_path / "a.nc", format="NETCDF3_64BIT")

    assert not read(tmp_path / "a.nc", PIECE)[0]


def test_damaged_chunk_is_left_to_xarray(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", chunks=(6, 5, 4), fletcher32=True)
    with h5py.File(path) as file:
        offset = file["v"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)

    assert not read(path, PIECE)[0]
