"""Odder archives at random: types, coordinates, dimensions and grids that differ from file to file."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tests.support.ingest.files import aged

SIZES = {"lat": 5, "lon": 4, "level": 3}
TYPES = (
    *("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "bool"),
    *("packed", "packed4", "missing", "text", "chars", "bytes", "moment", "span", "complex"),
)
ODDITIES = (
    *("none", "rows", "types", "members", "lacks"),
    *("alone", "nested", "unnamed", "stations", "levels"),
)
HOLEY = ("f4", "f8", "packed", "missing")


class OddArchive:
    """Some files, and how xarray and an ingest are asked for them."""

    def __init__(self, folder: Path, seed: int, *, alike: bool = False) -> None:
        """With `alike` all files are cut and stored in the same way, and end with a chunk."""
        self._alike = alike
        self._random = random = np.random.default_rng(10_000 + seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.options: dict[str, Any] = {}
        self.xarray_options: dict[str, Any] = {}
        self.texts: list[str] = []
        self.files: list[str] = []
        self.calendar = str(random.choice(["standard", "noleap", "360_day", "julian"]))
        self.kinds = [str(random.choice(TYPES)) for _ in range(random.integers(1, 4))]
        self.dims = [self._dims() for _ in self.kinds]
        self.oddity = str(random.choice(ODDITIES))
        self.packed_by_float32 = [f"v{number}" for number, kind in enumerate(self.kinds) if kind == "packed4"]
        for number, part in enumerate(self._parts()):
            path = folder / f"{number:03}.nc"
            engine: Any = "h5netcdf"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # not all of it is NetCDF, and all of it is found in files
                part.to_netcdf(path, engine=engine, encoding=self._encoding(part), invalid_netcdf=True)
            self.files.append(str(aged(path)))
        if random.random() < 0.7:
            dims = {dim for dims in self.dims for dim in dims}
            self.options["chunks"] = {dim: int(random.integers(1, 7)) for dim in sorted(dims)}
        if self.oddity in ("nested", "unnamed"):
            self.options["concat_dim"] = "time"
            self.xarray_options = {"combine": "nested", "concat_dim": "time"}

    def _dims(self) -> tuple[str, ...]:
        all_dims = [("time", "lat", "lon"), ("time",), ("time", "lat"), ("lon", "time"), ("time", "level")]
        return all_dims[self._random.integers(len(all_dims))]

    def _parts(self) -> list[xr.Dataset]:
        random = self._random
        counts = (random.integers(1, 5, random.integers(2, 5)) * (2 if self._alike else 1)).tolist()
        whole = self._dataset(sum(counts))
        begins = np.cumsum([0, *counts])
        parts = [whole.isel(time=slice(int(a), int(b))) for a, b in pairwise(begins)]
        return [part for number, each in enumerate(parts) for part in self._made_odd(each, number)]

    def _made_odd(self, part: xr.Dataset, number: int) -> list[xr.Dataset]:
        random = self._random
        match self.oddity:
            case "rows":
                for dim in ("lat", "lon"):
                    if dim in part.dims and random.random() < 0.6:
                        rows = np.sort(random.choice(part.sizes[dim], random.integers(1, 4), replace=False))
                        part = part.isel({dim: rows})
            case "types" if number:
                name = str(random.choice(list(map(str, part.data_vars))))
                if part[name].dtype.kind in "iuf":
                    part[name] = part[name].astype(str(random.choice(["f8", "f4", "i8", "i4"])))
            case "members":
                return [part.expand_dims(member=[member]) for member in (0, 1)]
            case "lacks" if number and len(part.data_vars) > 1:
                part = part.drop_vars(str(random.choice(list(map(str, part.data_vars)))))
            case "alone" if number == 1:
                extra = (("time",), random.random(part.sizes["time"]))
                part = part.assign(alone=extra).assign_coords(month=("time", np.arange(part.sizes["time"])))
            case "unnamed":
                part = part.drop_vars("time")
            case "stations" if "lon" in part.dims:
                part = part.assign_coords(station=("lon", np.array(list("abcd"), object)))
                self.texts.append("station")
            case "levels" if random.random() < 0.5:
                part = part.assign_coords(height=float(number))
            case "levels" if "lat" in part.dims:
                part = part.assign_coords(area=("lat", np.arange(5.0)))
        return [part]

    def _dataset(self, count: int) -> xr.Dataset:
        sizes = {**SIZES, "time": count}
        time = xr.date_range("2001-02-26", periods=count, freq="D", calendar=self.calendar)
        data: dict[str, Any] = {}
        for number, (kind, dims) in enumerate(zip(self.kinds, self.dims, strict=True)):
            name = f"v{number}"
            if kind in ("text", "chars", "bytes"):
                self.texts.append(name)
            values = self._values([sizes[dim] for dim in dims], kind)
            data[name] = (dims, values, {"long_name": f"{kind} {name}"})
        used = {dim for dims in self.dims for dim in dims}
        coords: dict[str, Any] = {"time": ("time", time.values)}
        if "lat" in used:
            coords["lat"] = ("lat", np.linspace(60, -60, 5), {"units": "degrees_north"})
        if "lon" in used and self._random.random() < 0.8:
            coords["lon"] = ("lon", np.arange(4) * 90.0)
        return xr.Dataset(data, coords, {"title": "odd", "numbers": np.array([1, 2])})

    def _values(self, shape: list[int], kind: str) -> Any:
        values = self._random.integers(0, 100, shape)
        match kind:
            case "text":
                return np.array([f"té {each}" for each in values.ravel().tolist()], object).reshape(shape)
            case "chars":
                return values.astype("S2")
            case "bytes":
                return values.astype("S5")
            case "bool":
                return values > 50
            case "moment":
                return np.datetime64("2000-01-01", "ns") + values * np.timedelta64(1, "h")
            case "span":
                return values * np.timedelta64(1, "h").astype("m8[ns]")
            case "complex":
                return values * (1 + 2j)
            case "packed" | "missing":
                found = values / 2
            case "packed4":
                return (values / 2).astype("f4")
            case _:
                found = values.astype(kind)
        if kind in HOLEY:
            found[self._random.random(shape) < 0.1] = np.nan
        return found

    def _encoding(self, part: xr.Dataset) -> dict[str, Any]:
        random = self._random
        encoding: dict[str, Any] = {}
        if "time" in part.coords:
            since = str(random.choice(["days since 2000-01-01", "hours since 1990-05-01"]))
            encoding["time"] = {
                "units": since,
                "calendar": self.calendar,
                "dtype": str(random.choice(["f8", "i4"])),
            }
        for number, kind in enumerate(self.kinds):
            name = f"v{number}"
            if name not in part:
                continue
            mine: dict[str, Any] = encoding.setdefault(name, {})
            order = part[name].dims
            if self._alike and kind not in ("text", "chars", "bytes"):
                mine["chunksizes"] = tuple(2 if dim == "time" else 1 for dim in order)
                mine["zlib"] = True
            elif kind not in ("text", "chars", "bytes") and random.random() < 0.5:
                mine["chunksizes"] = tuple(int(random.integers(1, part.sizes[dim] + 1)) for dim in order)
                mine["zlib"] = True
            if kind in ("packed", "packed4") and part[name].dtype.kind == "f":
                scale = np.float32(0.5) if kind == "packed4" else 0.5
                mine |= {"dtype": "i2", "scale_factor": scale, "_FillValue": -999}
            elif kind == "missing" and part[name].dtype.kind == "f":
                mine |= {"_FillValue": None, "missing_value": -99.0, "dtype": "f8"}
        return encoding
