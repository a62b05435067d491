"""Convert datasets from and to VirtualiZarr."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser

from icefloe.virtual import virtualize
from icefloe.virtual.virtualizarr import from_virtualizarr, to_virtualizarr
from tests.support.virtual.files import aged

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")  # a warning of zarr 3.1


def write(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(4.0)
        file["x"].make_scale("x")
        for name, dtype in (("packed", "i2"), ("plain", "f4")):
            values = np.arange(12, dtype=dtype).reshape(3, 4)
            file.create_dataset(name, data=values, chunks=(2, 2), compression="gzip")
            file[name].dims[1].attach_scale(file["x"])
            file[name].attrs["_FillValue"] = np.array(3, dtype)
        file["packed"].attrs["scale_factor"] = 0.5
        file["scalar"] = 1.5
    return aged(path)


def test_dataset_is_converted_to_virtualizarr_and_back(tmp_path: Path) -> None:
    dataset = virtualize(write(tmp_path / "f.nc"))

    again = from_virtualizarr(to_virtualizarr(dataset))

    xarray.testing.assert_identical(again.to_xarray(), dataset.to_xarray())
    assert [source.checksum for source in again.sources] == [None]


def test_virtualizarr_dataset_decodes_to_the_same_values(tmp_path: Path) -> None:
    path = write(tmp_path / "f.nc")
    registry = ObjectStoreRegistry({"file://": LocalStore("/")})

    theirs = open_virtual_dataset(f"file://{path}", registry=registry, parser=HDFParser())

    found = from_virtualizarr(theirs).to_xarray()
    xarray.testing.assert_equal(found, virtualize(path).to_xarray())
