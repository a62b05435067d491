"""Count the Python calls behind common operations: functions below src/icefloe, in all threads.

    python benchmarks/call_paths.py [--modules]

The figures show how far a reader has to follow a path, not how long it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import zarr
from zarr.buffer import default_buffer_prototype

import icefloe
from icefloe._internal.executor import Executor, Task

SOURCE = str(Path(icefloe.__file__).parent)


class Calls:
    """Counts of calls of functions in src/icefloe while the profiler is active."""

    def __init__(self) -> None:
        self.codes: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            self.codes[frame.f_code] += 1

    @property
    def modules(self) -> Counter[str]:
        names: Counter[str] = Counter()
        for code, number in self.codes.items():
            names[str(Path(code.co_filename).relative_to(SOURCE))] += number
        return names

    def __str__(self) -> str:
        return f"{self.codes.total():6,} calls  {len(self.codes):5,} functions  {len(self.modules):4} modules"


@contextmanager
def counted() -> Iterator[Calls]:
    """Count the calls of this thread and of those that it starts."""
    calls = Calls()
    _profile(calls)
    try:
        yield calls
    finally:
        _profile(None)


def _profile(function: Any) -> None:
    threading.setprofile(function)
    if sys.version_info >= (3, 12):  # including threads that are already running
        threading.setprofile_all_threads(function)
    sys.setprofile(function)


def read_one_chunk(folder: Path) -> Calls:
    """Read one native chunk in a folder, for the second time."""
    store = _repository(folder).readonly_session("main").store
    prototype = default_buffer_prototype()

    async def read() -> Calls:
        assert await store.get("a/c/1/0", prototype) is not None
        with counted() as calls:
            assert await store.get("a/c/1/0", prototype) is not None
        return calls

    return asyncio.run(read())


def commit_one_chunk(folder: Path) -> Calls:
    """Write one chunk and commit it."""
    session = _repository(folder).writable_session("main")
    array = zarr.open_array(session.store, path="a")
    with counted() as calls:
        array[:32, :32] = 7
        session.commit("one chunk")
    return calls


def virtualize_and_combine(folder: Path) -> Calls:
    """Turn three NetCDF files into references and combine them along time, imports included."""
    import xarray

    paths = []
    for number in range(3):
        data = xarray.Dataset(
            {"t": (("time", "y", "x"), np.zeros((2, 4, 4), "f4"))}, {"time": [2 * number, 2 * number + 1]}
        )
        paths.append(folder / f"{number}.nc")
        data.to_netcdf(paths[-1], engine="h5netcdf")
    with counted() as calls:
        from icefloe.virtual import combine, virtualize

        combine([virtualize(str(path)) for path in paths], concat_dim="time")
    return calls


class _Elsewhere(Executor):
    """Runs tasks without counting them: they are not the driver's."""

    parallelism = 2

    def map(self, task: Task[Any, Any], items: Iterable[Any], /) -> Iterator[Any]:
        profile = sys.getprofile()
        _profile(None)
        try:
            return iter([task.run(item) for item in items])
        finally:
            _profile(profile)


def ingest_three_files(folder: Path) -> Calls:
    """Ingest three NetCDF files, counting the calls of the driver in ingest/, query/ and spark/."""
    import xarray

    from icefloe.ingest.job import ingest
    from icefloe.ingest.options import make_options

    for number in range(3):
        data = xarray.Dataset(
            {"t": (("time", "y", "x"), np.zeros((2, 4, 4), "f4"))}, {"time": [2 * number, 2 * number + 1]}
        )
        data.to_netcdf(folder / f"{number}.nc", engine="h5netcdf")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    with counted() as calls:
        ingest(repo, str(folder / "*.nc"), make_options(concat_dim="time"), _Elsewhere())
    for code in list(calls.codes):
        if Path(code.co_filename).relative_to(SOURCE).parts[0] not in ("ingest", "query", "spark"):
            del calls.codes[code]
    return calls


def _repository(folder: Path) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    with repo.transaction("main", message="data") as store:
        values = np.random.default_rng(0).random((64, 64))
        zarr.create_array(store, name="a", data=values, chunks=(32, 32), compressors=None)
    return icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder / "repo")))


OPERATIONS: dict[str, Callable[[Path], Calls]] = {
    "read one chunk, warm": read_one_chunk,
    "commit one chunk": commit_one_chunk,
    "virtualize and combine three files": virtualize_and_combine,
    "ingest three files, driver side": ingest_three_files,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--modules", action="store_true", help="list the calls of each module")
    options = parser.parse_args()
    # One process per operation, so that each includes its imports.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in OPERATIONS:
            summary, modules = pool.submit(_count, name).result()
            print(f"{name:36}{summary}")
            if options.modules:
                for module, number in modules.most_common():
                    print(f"{number:10,}  {module}")


def _count(name: str) -> tuple[str, Counter[str]]:
    with tempfile.TemporaryDirectory() as folder:
        calls = OPERATIONS[name](Path(folder))
    return str(calls), calls.modules


if __name__ == "__main__":
    main()
