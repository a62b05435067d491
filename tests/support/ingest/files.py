"""Small NetCDF files for tests, and an ingest whose tasks see only pickled data."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from icefloe import Credentials, Repository, storage_from_url
from icefloe._internal.executor import Executor, Task
from icefloe.ingest.inspect.open import _grib_files as grib_files_of_this_process
from icefloe.ingest.job import ingest
from icefloe.ingest.options import make_options
from icefloe.ingest.report import IngestReport

START = np.datetime64("2024-01-01", "ns")

_SMALL_BYTES = 1 << 20
_ENCODED: dict[bytes, bytes] = {}
_COMBINED: dict[tuple[tuple[bytes, ...], str], xr.Dataset] = {}


class Travelling(Executor):
    """An executor in this process that pickles items and results, and counts the bytes.

    Each stage starts without opened GRIB files, as in new processes.
    """

    parallelism = 2

    def __init__(self) -> None:
        self.home_bytes = 0
        self.calls: list[str] = []

    def map(self, task: Task[Any, Any], items: Iterable[Any], /) -> Iterator[Any]:
        self.calls.append(getattr(task.run, "__name__", ""))
        grib_files_of_this_process.clear()
        for item in items:
            result = pickle.dumps(task.run(pickle.loads(pickle.dumps(item))))
            self.home_bytes += len(result)
            yield pickle.loads(result)


def days(first: int, count: int, **extra: Any) -> xr.Dataset:
    """Days of invented temperatures, the same for the same day wherever they are asked for."""
    time = START + np.arange(first, first + count) * np.timedelta64(1, "D")
    lat, lon = np.linspace(-60, 60, 5), np.linspace(0, 270, 4)
    day = np.arange(first, first + count)[:, None, None]
    values = (day * 100 + np.arange(5)[:, None] * 10 + np.arange(4)).astype("f4") / 8
    dataset = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), values, {"units": "K", "long_name": "temperature"})},
        {"time": time, "lat": ("lat", lat, {"units": "degrees_north"}), "lon": lon},
        {"title": "invented"},
    )
    return dataset.assign(extra)


def write(path: Path, dataset: xr.Dataset, encoding: Mapping[str, Any] | None = None) -> str:
    """Write a file; its path. The same dataset is encoded once: many tests have the same archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = pickle.dumps((dataset, dict(encoding or {})))
    if wanted in _ENCODED:
        path.write_bytes(_ENCODED[wanted])
    else:
        dataset.to_netcdf(path, engine="h5netcdf", encoding=dict(encoding or {}))
        if path.stat().st_size < _SMALL_BYTES:
            _ENCODED[wanted] = path.read_bytes()
    return str(aged(path))


def aged(path: Path) -> Path:
    """The file, changed an hour ago: references to one that changed just now wait for the second to pass."""
    changed_ns = path.stat().st_mtime_ns - 3600 * 10**9
    os.utime(path, ns=(changed_ns, changed_ns))
    return path


def write_groups(path: Path, first: int = 0) -> str:
    """Write a file with coordinates in its root, and groups of days, of a static field and of attributes."""
    import h5py  # some tests hide it from programs that preload this module

    data = days(first, 2)
    data[["lat", "lon"]].assign_attrs(title="volume").to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "a") as file:
        for name, values in (("air/time", np.arange(first, first + 2.0)), ("air/t2m", data["t2m"].values)):
            file[name] = values
        file["air/time"].make_scale("time")
        file["air/time"].attrs["units"] = "days since 2024-01-01"
        file["fixed/land/orog"] = np.arange(20.0).reshape(5, 4)
        for variable, scales in (
            ("air/t2m", ("air/time", "lat", "lon")),
            ("fixed/land/orog", ("lat", "lon")),
        ):
            for axis, name in enumerate(scales):
                file[variable].dims[axis].attach_scale(file[name])
        for name, attrs in {"what": {"object": "PVOL"}, "air/how": {"gain": 0.5, "levels": [1, 2]}}.items():
            file.create_group(name).attrs.update(attrs)
        file.create_group("nothing")
    return str(aged(path))


def archive(folder: Path, counts: Sequence[int] = (3, 4, 2)) -> list[str]:
    """Consecutive files of so many days."""
    begins = np.cumsum([0, *counts])
    return [
        write(folder / f"{number:03}.nc", days(int(begin), count))
        for number, (begin, count) in enumerate(zip(begins, counts, strict=False))
    ]


def new_repo(folder: Path) -> Repository:
    """Return an empty repository in a new folder below this one."""
    place = tempfile.mkdtemp(prefix="repo-", dir=folder)
    return Repository.create(storage_from_url(f"{place}/repo", sync=False))


class _Listener(logging.Handler):
    def __init__(self, heard: Callable[[str], object]) -> None:
        super().__init__(logging.INFO)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard(record.getMessage())


@contextmanager
def listening(heard: Callable[[str], object]) -> Iterator[None]:
    """Call a function with each sentence that an ingest logs, in the middle of its work."""
    logger, listener = logging.getLogger("icefloe.ingest"), _Listener(heard)
    before = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before)


def run(repo: Repository, sources: Any, *, dry_run: bool = False, **options: Any) -> IngestReport:
    """Ingest in this process."""
    return ingest(repo, sources, make_options(**options), Travelling(), dry_run=dry_run)


def read(repo: Repository, group: str | None = None, branch: str = "main") -> xr.Dataset:
    """What is in the repository, loaded."""
    store = repo.readonly_session(branch).store
    found: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None, group=group)
    return found.load()


def read_all(repo: Repository) -> xr.Dataset:
    """Return the same of one that may refer to files of this machine."""
    prefixes = Repository.open(repo.storage).config.virtual_chunk_containers or {}
    allowed = {prefix: Credentials.LocalFileSystemAccess() for prefix in prefixes}
    return read(Repository.open(repo.storage, authorize_virtual_chunk_access=allowed))


FUTURE: Mapping[str, Any] = {
    "data_vars": None,
    "coords": "minimal",
    "join": "exact",
    "compat": "no_conflicts",
}
"""The future defaults of xarray, which are those of an ingest, but that values are compared."""
OUTER: Mapping[str, Any] = {"join": "outer"}
PRESENT: Mapping[str, Any] = {
    "data_vars": "all",
    "coords": "different",
    "join": "outer",
    "compat": "no_conflicts",
}
"""The present defaults of xarray."""


def tree(repo: Repository, branch: str = "main") -> dict[str, xr.Dataset]:
    """Return the groups of a repository that have data, loaded, without inheritance."""
    prefixes = Repository.open(repo.storage).config.virtual_chunk_containers or {}
    allowed: dict[str, Any] = {
        prefix: Credentials.HttpAccess() if prefix.startswith("http") else Credentials.LocalFileSystemAccess()
        for prefix in prefixes
    }
    store = (
        Repository.open(repo.storage, authorize_virtual_chunk_access=allowed).readonly_session(branch).store
    )
    options: dict[str, Any] = {"filename_or_obj": store, "engine": "zarr", "consolidated": False}
    found = xr.open_groups(**options)
    return {
        path.strip("/"): dataset.load()
        for path, dataset in found.items()
        if dataset.data_vars and not path.startswith("/_icefloe")
    }


def expected(files: Sequence[str], **options: Any) -> xr.Dataset:
    """Combine the files with xarray. Files with the same content are combined once."""
    options = {**FUTURE, **options}
    contents = tuple(hashlib.sha256(Path(file).read_bytes()).digest() for file in files)
    wanted = (contents, repr(sorted(options.items())))
    if any(map(callable, options.values())) or wanted not in _COMBINED:
        with xr.open_mfdataset(list(files), engine="h5netcdf", **options) as opened:
            _COMBINED[wanted] = opened.load().copy(deep=True)
    return _COMBINED[wanted].copy(deep=True)


def assert_same(found: xr.Dataset, wanted: xr.Dataset) -> None:
    """Equal values, types, coordinates and attributes."""
    xr.testing.assert_identical(found, wanted)
    for name in wanted.variables:
        assert found[name].dtype == wanted[name].dtype, name


DIMS = ("time", "lat", "lon")


def map_files(folder: Path, count: int) -> list[str]:
    """Files of a compressed map each."""
    files = []
    for day in range(count):
        values = np.random.default_rng(day).random((1, 40, 50)).astype("f4")
        time = [START + day * np.timedelta64(1, "D")]
        dataset = xr.Dataset(
            {"t": (DIMS, values)}, {"time": time, "lat": np.arange(40.0), "lon": np.arange(50.0)}
        )
        files.append(write(folder / f"{day:02}.nc", dataset, {"t": {"zlib": True}}))
    return files


CHUNKED: dict[str, Any] = {"t2m": {"zlib": True, "shuffle": True, "chunksizes": (2, 5, 4)}}


def chunked(folder: Path, *counts: int, first: int = 0, **encoding: Any) -> list[str]:
    files = []
    for number, count in enumerate(counts):
        begin = first + sum(counts[:number])
        files.append(
            write(folder / f"{begin:03}.nc", days(begin, count), {"t2m": {**CHUNKED["t2m"], **encoding}})
        )
    return files
