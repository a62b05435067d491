"""Benchmark the parsing of files into virtual references, compared with VirtualiZarr."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.harness import Job, Row, Side

FILES, CHUNKS = 100, 100_000
LONG_AGO = 1_500_000_000


def _setup_files(folder: Path) -> None:
    """Create files like those of models: a few variables, a hundred chunks, coordinates."""
    for number in range(FILES):
        path = folder / f"{number:03d}.nc"
        with h5py.File(path, "w") as file:
            for name, size in (("time", 25), ("lat", 20), ("lon", 20)):
                file[name] = np.arange(size, dtype="f8")
                file[name].make_scale(name)
            for name in ("t", "u", "v", "q"):
                data = file.create_dataset(
                    name, (25, 20, 20), "f4", chunks=(1, 20, 20), compression="gzip", shuffle=True
                )
                data[...] = number
                data.attrs["units"] = "1"
                for axis, scale in enumerate(("time", "lat", "lon")):
                    data.dims[axis].attach_scale(file[scale])
        os.utime(path, (LONG_AGO, LONG_AGO))


def _setup_chunks(folder: Path) -> None:
    path = folder / "chunks.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("v", data=np.zeros(CHUNKS, "u1"), chunks=(1,))
    os.utime(path, (LONG_AGO, LONG_AGO))


def _ours(folder: Path, _: Path) -> Job:
    from icefloe.virtual import virtualize

    paths = sorted(folder.iterdir())
    return lambda: sum(_references(virtualize(path, loadable_variables=())) for path in paths)


def _references(dataset: Any) -> int:
    return sum(len(variable.references) for variable in dataset.variables.values())


def _theirs(folder: Path, _: Path) -> Job:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore("/")})
    paths = [f"file://{path}" for path in sorted(folder.iterdir())]

    def job() -> int:
        total = 0
        for path in paths:
            opened = open_virtual_dataset(path, registry=registry, parser=HDFParser(), loadable_variables=[])
            total += sum(int((each.data.manifest._lengths > 0).sum()) for each in opened.variables.values())
        return total

    return job


def _same(ours: int, theirs: int) -> None:
    assert ours == theirs, (ours, theirs)


ROWS = [
    Row(
        name="virtualize-files",
        title=f"{FILES} HDF5 files of 100 chunks and three coordinates",
        ours=Side("virtualize each", _ours),
        theirs=Side("VirtualiZarr: open_virtual_dataset of each", _theirs),
        cpu_ratio=1,
        setup=_setup_files,
        check=_same,
        repeat=3,
    ),
    Row(
        name="virtualize-chunks",
        title="an HDF5 file of 100,000 chunks",
        ours=Side("virtualize", _ours),
        theirs=Side("VirtualiZarr: open_virtual_dataset", _theirs),
        cpu_ratio=1,
        setup=_setup_chunks,
        check=_same,
        repeat=3,
    ),
]
