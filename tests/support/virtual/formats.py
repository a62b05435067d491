"""Create a file of every supported format, with known values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eccodes
import h5py
import hdf5plugin
import netCDF4
import numcodecs
import numpy as np
import tifffile
import zarr

from tests.support.virtual.files import aged

SMOOTH = np.add.outer(np.arange(20.0), np.arange(30.0)).astype("f4")
Written = dict[str, Any]


def hdf5(folder: Path) -> Written:
    filters: dict[str, Any] = {
        "contiguous": {},
        "chunked": {"chunks": (7, 11)},
        "deflate": {"chunks": (7, 11), "compression": "gzip", "shuffle": True, "fletcher32": True},
        "lzf": {"chunks": (7, 11), "compression": "lzf"},
        "szip": {"chunks": (7, 11), "compression": "szip"},
        "scale-offset": {"chunks": (7, 11), "scaleoffset": 2},
        "zstd": {"chunks": (7, 11), **hdf5plugin.Zstd()},
        "blosc2": {"chunks": (7, 11), **hdf5plugin.Blosc2()},
        "bitshuffle": {"chunks": (7, 11), **hdf5plugin.Bitshuffle()},
    }
    with h5py.File(folder / "f.h5", "w") as file:
        for name, options in filters.items():
            file.create_dataset(name, data=SMOOTH, **options)
        file.create_dataset("big", data=SMOOTH.astype(">i8"), chunks=(7, 11))
        file.create_dataset("pairs", data=np.ones(6, [("a", "<i4"), ("b", "<f8")]), chunks=(4,))
        return {name: each[()] for name, each in file.items()}


def netcdf4(folder: Path) -> Written:
    with netCDF4.Dataset(folder / "f.nc", "w") as file:
        file.createDimension("y", None)
        file.createDimension("x", 30)
        file.createVariable("x", "f8", ("x",))[:] = np.arange(30.0)
        file.createVariable("v", "f4", ("y", "x"), zlib=True, chunksizes=(3, 30))[:] = SMOOTH
    return {"v": SMOOTH, "x": np.arange(30.0)}


def netcdf3(folder: Path) -> Written:
    with netCDF4.Dataset(folder / "f.nc", "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.createDimension("time", None)
        file.createDimension("x", 30)
        file.createVariable("record", "f4", ("time", "x"))[:] = SMOOTH
        file.createVariable("narrow", "i2", ("time",))[:] = np.arange(20)
        file.createVariable("fixed", "f8", ("x",))[:] = np.arange(30)
    return {"record": SMOOTH, "narrow": np.arange(20, dtype="i2"), "fixed": np.arange(30.0)}


def grib(edition: int) -> Callable[[Path], Written]:
    def write(folder: Path) -> Written:
        fields = np.random.default_rng(0).integers(0, 1 << 12, (2, 31, 16)).astype("f4")
        with (folder / "f.grib").open("wb") as file:
            for level, values in zip((850, 500), fields, strict=True):
                handle = eccodes.codes_grib_new_from_samples(f"regular_ll_pl_grib{edition}")
                for key, value in {"shortName": "t", "level": level, "bitsPerValue": 16}.items():
                    eccodes.codes_set(handle, key, value)
                eccodes.codes_set_values(handle, values.reshape(-1).astype("f8"))
                eccodes.codes_write(handle, file)
                eccodes.codes_release(handle)
        return {"t": fields}

    return write


def steps_of_grib(folder: Path) -> Any:
    """Create a file with two times of two steps each, and return its values."""
    folder.mkdir()
    fields = np.random.default_rng(0).integers(0, 1 << 12, (2, 2, 31, 16)).astype("f4")
    with (folder / "f.grib").open("wb") as file:
        for (day, step), _ in np.ndenumerate(fields[..., 0, 0]):
            handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
            told = {"shortName": "t", "dataDate": 20240101 + day, "step": 6 * step, "bitsPerValue": 16}
            for key, value in told.items():
                eccodes.codes_set(handle, key, value)
            eccodes.codes_set_values(handle, fields[day, step].reshape(-1).astype("f8"))
            eccodes.codes_write(handle, file)
            eccodes.codes_release(handle)
    return fields


def tiff(**options: Any) -> Callable[[Path], Written]:
    def write(folder: Path) -> Written:
        values = SMOOTH.astype("u2")
        tifffile.imwrite(folder / "f.tif", values, photometric="minisblack", **options)
        return {"image": values}

    return write


def zarr_store(version: Any, **options: Any) -> Callable[[Path], Written]:
    def write(folder: Path) -> Written:
        array = zarr.create_array(
            folder / "f.zarr",
            name="v",
            shape=SMOOTH.shape,
            chunks=(7, 10),
            dtype="f4",
            zarr_format=version,
            **options,
        )
        array[...] = SMOOTH
        return {"v": SMOOTH}

    return write


def kerchunk(folder: Path) -> Written:
    (folder / "raw").write_bytes(SMOOTH.tobytes())
    document = {
        "zarr_format": 2,
        "shape": [20, 30],
        "chunks": [10, 30],
        "dtype": "<f4",
        "compressor": None,
        "filters": None,
        "order": "C",
        "fill_value": None,
    }
    url = f"file://{folder}/raw"
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "v/.zarray": json.dumps(document),
        "v/.zattrs": '{"_ARRAY_DIMENSIONS": ["y", "x"]}',
        "v/0.0": [url, 0, 1200],
        "v/1.0": [url, 1200, 1200],
    }
    (folder / "f.json").write_text(json.dumps({"version": 1, "refs": refs}))
    return {"v": SMOOTH}


FORMATS: dict[str, tuple[str, Callable[[Path], Written]]] = {
    "hdf5": ("f.h5", hdf5),
    "netcdf4": ("f.nc", netcdf4),
    "netcdf3": ("f.nc", netcdf3),
    "grib1": ("f.grib", grib(1)),
    "grib2": ("f.grib", grib(2)),
    "tiff-strips": ("f.tif", tiff(rowsperstrip=7)),
    "tiff-deflate": ("f.tif", tiff(tile=(16, 16), compression="deflate")),
    "tiff-zstd": ("f.tif", tiff(tile=(16, 16), compression="zstd")),
    "tiff-lzw": ("f.tif", tiff(tile=(16, 16), compression="lzw", predictor=2)),
    "zarr2": ("f.zarr", zarr_store(2)),
    "zarr2-blosc": ("f.zarr", zarr_store(2, compressors=numcodecs.Blosc())),
    "zarr3": ("f.zarr", zarr_store(3)),
    "zarr3-shards": ("f.zarr", zarr_store(3, shards=(14, 20))),
    "kerchunk": ("f.json", kerchunk),
}


VALUES = np.arange(48 * 64, dtype="u2").reshape(48, 64)


def geo_tiff(
    path: Path, keys: dict[int, Any], x: float = 100.0, turned: bool = False, **options: Any
) -> Path:
    """Write a GeoTIFF file with keys: numbers that are codes, floats, or texts."""
    directory, doubles, text = [1, 1, 0, len(keys)], list[float](), ""
    for key, value in sorted(keys.items()):
        if isinstance(value, int):
            directory += [key, 0, 1, value]
        elif isinstance(value, float):
            directory += [key, 34736, 1, len(doubles)]
            doubles.append(value)
        else:
            directory += [key, 34737, len(value) + 1, len(text)]
            text += f"{value}|"
    tags: list[Any] = [(34735, "H", len(directory), directory, False)]
    if doubles:
        tags.append((34736, "d", len(doubles), doubles, False))
    if text:
        tags.append((34737, "s", 0, text, False))
    if turned:
        matrix = (8.0, 5.0, 0.0, x, 1.0, -17.0, 0.0, 900.0, *(0.0,) * 7, 1.0)
        tags.append((34264, "d", 16, matrix, False))
    else:
        tags.append((33550, "d", 3, (10.0, 20.0, 0.0), False))
        tags.append((33922, "d", 6, (0.0, 0.0, 0.0, x, 900.0, 0.0), False))
    with tifffile.TiffWriter(path) as file:
        file.write(VALUES, tile=(16, 16), subifds=1, extratags=tags, **options)
        file.write(VALUES[::2, ::2], tile=(16, 16), subfiletype=1)
    return aged(path)
