"""Archives at random: files that belong together, stored in all the ways that people store them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tests.support.ingest.files import aged

CALENDARS = ("standard", "proleptic_gregorian", "noleap", "360_day")
UNITS = ("days", "hours", "minutes", "seconds")
SIZES = {"time": 0, "lat": 5, "lon": 4, "level": 3}


class Archive:
    """Some files, and how xarray and an ingest are asked for them."""

    def __init__(self, folder: Path, seed: int, *, alike: bool = False) -> None:
        """With `alike` all files store a variable in the same way, and end with a chunk."""
        self._alike = alike
        self._random = random = np.random.default_rng(seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.options: dict[str, Any] = {}
        """Those of the ingest: chunks that fit nothing."""
        self.xarray_options: dict[str, Any] = {}
        self.packed_by_float32: list[str] = []
        self.calendar = str(random.choice(CALENDARS))
        self.variables = [self._variable(number) for number in range(random.integers(1, 4))]
        self.statics = [self._static(number) for number in range(random.integers(0, 3))]
        self.tiled = bool(random.random() < 0.25)
        self._extra = float(random.random()) if random.random() < 0.7 else None
        """Which coordinate there is beside; None for another one in each file."""
        counts = (random.integers(1, 5, random.integers(2, 5)) * (2 if alike else 1)).tolist()
        self._stored = {name: self._storing(dims, dtype) for name, dims, dtype in self.variables if alike}
        files: list[str] = []
        for number, count in enumerate(counts):
            part = self._part(sum(counts[:number]), count)
            if len(files) and random.random() < 0.25 and len(part.data_vars) > 1:
                gone = str(random.choice([name for name, _, _ in self.variables]))
                part = part.drop_vars(gone, errors="ignore")
            tiles = [part.isel(lat=slice(0, 2)), part.isel(lat=slice(2, None))] if self.tiled else [part]
            for tile in tiles:
                path = folder / f"{int(random.integers(10**6)):06}-{len(files)}.nc"
                tile.to_netcdf(path, engine="h5netcdf", encoding=self._encoding(tile))
                files.append(str(aged(path)))
        self.files = files
        self.texts = [name for name, _, dtype in self.variables if dtype == "text"]
        if random.random() < 0.8:
            sizes = {"time": sum(counts), "lat": 5, "lon": 4, "level": 3}
            dims = {dim for _, dims, _ in self.variables for dim in dims}
            self.options["chunks"] = {
                dim: int(random.integers(1, size + 2)) for dim, size in sizes.items() if dim in dims
            }

    def _variable(self, number: int) -> tuple[str, tuple[str, ...], str]:
        dims = [("time", "lat", "lon"), ("time", "lat"), ("time", "level", "lat", "lon"), ("lat", "time")]
        dtypes = [
            "f4",
            "f8",
            "i2",
            "i4",
            "u1",
            "i8",
            "packed",
            "packed8",
            *(() if self._alike else ("text",)),
        ]
        dtype = str(self._random.choice(dtypes))
        return f"v{number}", dims[self._random.integers(len(dims))], dtype

    def _static(self, number: int) -> tuple[str, tuple[str, ...], str]:
        # xarray gives the first two the times of the files, and then no file has them like that.
        dims: list[tuple[str, ...]] = [()] if self._alike else [("lat", "lon"), ("lat",), ()]
        return f"s{number}", dims[self._random.integers(len(dims))], str(self._random.choice(["f4", "i4"]))

    def _part(self, first: int, count: int) -> xr.Dataset:
        time = xr.date_range("2001-02-26", periods=first + count, freq="D", calendar=self.calendar)[first:]
        sizes = {**SIZES, "time": count}
        coords: dict[str, Any] = {
            "time": ("time", time.values),
            "lat": ("lat", np.linspace(-60, 60, 5), {"units": "degrees_north"}),
            "lon": ("lon", np.arange(4) * 90.0),
        }
        data: dict[str, Any] = {}
        for name, dims, dtype in self.variables:
            data[name] = (dims, self._values([sizes[dim] for dim in dims], dtype), {"long_name": name})
        for name, dims, dtype in self.statics:
            cells = np.arange(np.prod([sizes[dim] for dim in dims], dtype=int))
            data[name] = (dims, cells.reshape([sizes[dim] for dim in dims]).astype(dtype))
        dataset = xr.Dataset(data, coords, {"title": "invented"})
        kind = self._random.random() if self._extra is None else self._extra
        if kind < 0.2:
            dataset["time"].attrs["bounds"] = "time_bnds"
            dataset["time_bnds"] = (("time", "bnds"), np.stack([time.values, time.values], axis=1))
        elif kind < 0.4:
            dataset = dataset.assign_coords(height=2.0)
        elif kind < 0.5:
            dataset = dataset.assign_coords(month=("time", np.arange(first, first + count)))
        return dataset

    def _values(self, shape: list[int], dtype: str) -> Any:
        values = self._random.integers(0, 100, shape)
        if dtype == "text":
            return np.array([f"text {each}" for each in values.reshape(-1).tolist()], object).reshape(shape)
        if dtype.startswith("packed"):
            return values.astype("f4" if dtype == "packed" else "f8") / 2
        return values.astype(dtype)

    def _encoding(self, part: xr.Dataset) -> dict[str, Any]:
        """Another one for each file, as from different years of a centre."""
        random = self._random
        since = f"{random.choice(UNITS)} since {random.choice(['2000-01-01', '1970-01-01 12:00'])}"
        encoding: dict[str, Any] = {"time": {"units": since, "calendar": self.calendar, "dtype": "f8"}}
        for name, dims, dtype in self.variables:
            if name in part:
                encoding[name] = self._stored[name] if self._alike else self._storing(dims, dtype, part)
        return encoding

    def _storing(self, dims: tuple[str, ...], dtype: str, part: xr.Dataset | None = None) -> dict[str, Any]:
        """How a variable is stored; chunks are for a part, or for all of them."""
        random = self._random
        found: dict[str, Any] = {}
        if part is None:
            whole = {"time": 2, "lat": 1, "lon": int(random.choice([2, 4])), "level": 3}
            found = {"chunksizes": tuple(whole[dim] for dim in dims), "zlib": bool(random.random() < 0.7)}
            found["shuffle"] = found["zlib"] and bool(random.random() < 0.5)
        elif dtype != "text" and random.random() < 0.6:
            chunks = tuple(int(random.integers(1, part.sizes[dim] + 1)) for dim in dims)
            found = {"chunksizes": chunks, "zlib": True, "shuffle": bool(random.random() < 0.5)}
        if dtype.startswith("packed"):
            scale = float(random.choice([0.5, 0.25]))
            found |= {"dtype": "i2", "scale_factor": scale, "add_offset": 0.0, "_FillValue": -999}
        return found
