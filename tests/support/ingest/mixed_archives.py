"""Archives of files, invented or cut from a real one, that differ in several ways at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

CALENDARS = ("standard", "noleap", "360_day")
EPOCHS = (
    "days since 2000-01-01",
    "hours since 1970-01-01 12:00",
    "seconds since 1990-05-01",
    "minutes since 2001-1-1",
)
ODDITIES = (
    *("tiles", "units", "packing", "types", "lacks", "fills", "unlimited", "order", "classic", "big"),
    *("group", "attrs", "aux", "static", "scalar", "text", "shuffled", "bounds", "gap", "flags", "extra"),
)
UNLIKE = {"types", "order", "packing", "fills", "lacks", "text"}
"""What makes files so different that references to them do not fit together."""
SHAPES = ("along", "along", "along", "single", "new")
"""How files follow each other: along time, one time each without the dimension, or along a new one."""
_MAX_CELLS = {"time": 12}
_MAX_REAL_CELLS = 30


class MixedArchive:
    """Some files, and how xarray and an ingest are asked for them."""

    def __init__(self, folder: Path, seed: int, *, alike: bool = False, base: str | None = None) -> None:
        """With `alike` all files store a variable in the same way; with a `base` they are parts of a file."""
        self._alike = alike
        self._random = random = np.random.default_rng(20_000 + seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.options: dict[str, Any] = {}
        self.xarray_options: dict[str, Any] = {}
        self.texts: list[str] = []
        self.files: list[str] = []
        self.packed_by_float32: list[str] = []
        self.engine: str | None = None
        self.odd = set(random.choice(ODDITIES, random.integers(1, 5), replace=False).tolist())
        if alike and random.random() < 0.8:
            self.odd -= UNLIKE
        self.follow = str(random.choice(SHAPES))
        self.calendar = str(random.choice(CALENDARS))
        whole = self._invented() if base is None else self._real(base)
        self.dim = next((str(dim) for dim in whole.dims if "time" in str(dim)), str(next(iter(whole.dims))))
        self.texts = [str(name) for name, each in whole.variables.items() if each.dtype.kind in "OSU"]
        self._stored = {str(name): self._storing(each) for name, each in whole.variables.items()}
        self._ask()
        for number, part in enumerate(self._parts(whole)):
            self._write(part, folder / f"{self._name(number)}.nc", number)
        dims = sorted({str(dim) for each in whole.data_vars.values() for dim in each.dims})
        if random.random() < 0.7 and self.follow == "along":
            self.options["chunks"] = {dim: int(random.integers(1, 7)) for dim in dims}
            if random.random() < 0.3:
                self.options["shards"] = {dim: size * 2 for dim, size in self.options["chunks"].items()}

    def _ask(self) -> None:
        if self.follow != "along":
            dim = self.dim if self.follow == "single" else "run"
            self.options["concat_dim"] = dim
            self.xarray_options |= {"combine": "nested", "concat_dim": dim}
        if "group" in self.odd:
            self.options["source_group"] = "a/b"
            self.xarray_options["group"] = "a/b"

    def _name(self, number: int) -> str:
        if "shuffled" in self.odd and self.follow == "along":
            return f"{int(self._random.integers(10**6)):06}-{number}"
        return f"{number:03}"

    def _invented(self) -> xr.Dataset:
        random = self._random
        count = int(random.integers(4, 13))
        time = xr.date_range("2001-02-26", periods=count, freq="6h", calendar=self.calendar, use_cftime=None)
        sizes = {"time": count, "lat": 6, "lon": 4}
        data: dict[str, Any] = {}
        for number in range(random.integers(1, 4)):
            dims = [("time", "lat", "lon"), ("time", "lat"), ("time",), ("lat", "time", "lon")][
                random.integers(4)
            ]
            values = random.integers(0, 1000, [sizes[dim] for dim in dims]) / 8
            dtype = str(random.choice(["f4", "f8", "i2", "i4", "u1"]))
            data[f"v{number}"] = (
                dims,
                values.astype(dtype),
                {"units": "K", "long_name": f"{dtype} {number}"},
            )
        lat = np.linspace(-75, 75, 6)[:: int(random.choice([1, -1]))]
        coords = {"time": ("time", time.values), "lat": ("lat", lat, {"units": "degrees_north"})}
        return xr.Dataset(data, coords, {"title": "mixed"}).assign_coords(lon=("lon", np.arange(4) * 90.0))

    def _real(self, base: str) -> xr.Dataset:
        with xr.open_dataset(base) as opened:
            few = {
                dim: slice(0, _MAX_REAL_CELLS) for dim, size in opened.sizes.items() if size > _MAX_REAL_CELLS
            }
            found = opened.isel(few).load()
        self.calendar = ""
        for each in found.variables.values():
            kept = ("units", "calendar", "dtype", "_FillValue", "missing_value", "scale_factor", "add_offset")
            each.encoding = {name: each.encoding[name] for name in kept if name in each.encoding}
        found.encoding = {}
        return found

    def _parts(self, whole: xr.Dataset) -> Iterator[xr.Dataset]:
        random = self._random
        for part in self._along(self._dressed(whole)):
            tiles = [part]
            if "tiles" in self.odd and self.follow == "along":
                for dim in ("lat", "lon"):
                    tiles = [tile for each in tiles for tile in self._halves(each, dim)]
            yield from (
                tiles if "shuffled" not in self.odd else [tiles[i] for i in random.permutation(len(tiles))]
            )

    def _halves(self, part: xr.Dataset, dim: str) -> list[xr.Dataset]:
        if part.sizes.get(dim, 0) < 2 or dim not in part.indexes:
            return [part]
        middle = 2 if self._alike else part.sizes[dim] // 2
        return [part.isel({dim: slice(0, middle)}), part.isel({dim: slice(middle, None)})]

    def _along(self, whole: xr.Dataset) -> Iterator[xr.Dataset]:
        size = whole.sizes[self.dim]
        if self.follow == "single":
            yield from (whole.isel({self.dim: at}) for at in range(min(size, 4)))
            return
        if self.follow == "new":
            for run in range(3):
                copy = whole.copy(deep=True)
                for each in copy.data_vars.values():
                    if each.dtype.kind in "iuf" and each.ndim:
                        each.values[...] = np.roll(each.values, run)
                yield copy
            return
        edges = np.arange(0, size + 1, 2) if self._alike else self._edges(size)
        spans = list(pairwise([*edges.tolist(), *([size] if edges[-1] != size else [])]))
        if "gap" in self.odd and len(spans) > 2:
            spans.pop(1)
        for start, stop in spans:
            yield whole.isel({self.dim: slice(start, stop)})

    def _edges(self, size: int) -> Any:
        inner = self._random.choice(
            np.arange(1, size), min(size - 1, int(self._random.integers(1, 4))), replace=False
        )
        return np.array([0, *np.sort(inner)])

    def _dressed(self, whole: xr.Dataset) -> xr.Dataset:
        """With all that is beside the data."""
        dim, random = self.dim, self._random
        sizes = {str(name): size for name, size in whole.sizes.items()}
        flat = [str(name) for name in whole.dims if name != dim][:2]
        if "static" in self.odd and flat:
            shape = [sizes[name] for name in flat]
            whole["ground"] = (flat, random.random(shape), {"standard_name": "surface_altitude"})
        if "scalar" in self.odd:
            whole["crs"] = ((), np.int32(7), {"grid_mapping_name": "latitude_longitude"})
        if "aux" in self.odd and len(flat) == 2:
            shape = [sizes[name] for name in flat]
            whole = whole.assign_coords(area=(flat, random.random(shape)), step=(dim, np.arange(sizes[dim])))
        if "text" in self.odd:
            whole["label"] = ((dim,), np.array([f"é{n}" for n in range(sizes[dim])], object))
            self.texts.append("label")
        if "flags" in self.odd:
            whole["flag"] = ((dim,), random.random(sizes[dim]) < 0.5)
        if "bounds" in self.odd and dim in whole.coords:
            whole[dim].attrs["bounds"] = "the_bounds"
            whole["the_bounds"] = ((dim, "side"), np.stack([whole[dim].values] * 2, axis=1))
        return whole

    def _write(self, part: xr.Dataset, path: Path, number: int) -> None:
        random = self._random
        names = [str(name) for name in part.data_vars]
        if "lacks" in self.odd and number and len(names) > 1 and random.random() < 0.5:
            part = part.drop_vars(str(random.choice(names)))
        if "extra" in self.odd and number == 1 and self.dim in part.dims:
            part = part.assign(extra=(self.dim, random.random(part.sizes[self.dim])))
        if "order" in self.odd and number % 2:
            part = part.transpose(*reversed([str(dim) for dim in part.dims]))
        if "types" in self.odd and number:
            for name in [str(each) for each in part.data_vars]:
                if part[name].dtype.kind in "iuf" and random.random() < 0.5:
                    part[name] = part[name].astype(str(random.choice(["f4", "f8", "i4"])), keep_attrs=True)
        if "attrs" in self.odd:
            part.attrs |= {"history": f"made {number}", "list": [1, 2], "empty": ""}
        classic = "classic" in self.odd and (self._alike or random.random() < 0.7)
        classic &= "group" not in self.odd
        options: dict[str, Any] = {"engine": "h5netcdf"}
        if classic:
            options = {"engine": "netcdf4", "format": "NETCDF3_64BIT"}
        elif "group" in self.odd:
            options["group"] = "a/b"
        if "big" in self.odd and not classic:
            part = self._with_big_ends(part)
        if "unlimited" in self.odd and self.dim in part.dims and not classic:
            options["unlimited_dims"] = [self.dim]
        encoding = {str(name): self._encoding(part, str(name), classic) for name in part.variables}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            part.to_netcdf(path, encoding=encoding, **options)
        self.files.append(str(path))

    def _with_big_ends(self, part: xr.Dataset) -> xr.Dataset:
        for name in [str(each) for each in part.data_vars]:
            variable = part[name].variable
            if variable.dtype.kind in "iuf" and variable.ndim:
                data = variable.values.astype(variable.dtype.newbyteorder(">"))
                part = part.assign({name: (variable.dims, data, variable.attrs, variable.encoding)})
        return part

    def _storing(self, variable: xr.Variable) -> dict[str, Any]:
        """How it is stored wherever files are alike."""
        random, found = self._random, dict[str, Any]()
        if variable.dtype.kind in "iuf" and variable.ndim and random.random() < 0.6:
            found = {"zlib": True, "shuffle": bool(random.random() < 0.5)}
            found["chunksizes"] = tuple(2 if str(dim) in ("time", "lat") else 4 for dim in variable.dims)
        if variable.dtype.kind == "f" and random.random() < 0.4:
            found |= {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -999}
        return found

    def _encoding(self, part: xr.Dataset, name: str, classic: bool) -> Mapping[str, Any]:
        random, variable = self._random, part[name].variable
        if name == self.dim and self.calendar:
            units = str(random.choice(EPOCHS)) if "units" in self.odd else EPOCHS[0]
            return {"units": units, "calendar": self.calendar, "dtype": "f8"}
        if name in part.coords or variable.dtype.kind not in "iuf":
            return {}
        found = dict(variable.encoding)
        if self._alike:
            found |= self._stored.get(name, {})
        elif variable.ndim and random.random() < 0.4 and not classic:
            chunks = tuple(int(random.integers(1, size + 1)) for size in variable.shape)
            found |= {"zlib": True, "chunksizes": chunks}
        if "packing" in self.odd and variable.dtype.kind == "f" and not self._alike:
            scale = float(random.choice([0.125, 0.25, 0.5]))
            found |= {"dtype": "i4", "scale_factor": scale, "_FillValue": -9999}
        elif "fills" in self.odd and variable.dtype.kind == "f":
            found = _without(found, "scale_factor", "add_offset", "dtype")
            found["_FillValue"] = float(random.choice([-1e30, 9e9, np.nan]))
        if "_FillValue" in found:
            found.pop("missing_value", None)
        cut = found.get("chunksizes", ())
        if classic or len(cut) != variable.ndim or "order" in self.odd:
            return _without(found, "zlib", "shuffle", "chunksizes")
        found["chunksizes"] = tuple(map(min, cut, (max(1, size) for size in variable.shape)))
        return found


def _without(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}
