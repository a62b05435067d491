"""Benchmark latency: read chunks from an S3 server that takes 20 ms to respond."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks import slow_s3
from benchmarks.harness import OURS, THEIRS, Job, Row, Side

CHUNKS = 256
CHUNK_BYTES = 64 * 1024


def _setup(folder: Path) -> None:
    import icefloe

    storage = icefloe.storage_from_url(str(folder), sync=False)
    session = icefloe.Repository.create(storage).writable_session("main")
    shape = (CHUNKS * CHUNK_BYTES,)
    array = zarr.create_array(
        session.store, name="a", shape=shape, chunks=(CHUNK_BYTES,), dtype="u1", compressors=None
    )
    array[:] = np.random.default_rng(0).integers(1, 255, shape, np.uint8)
    session.commit("chunks")


def _read(name: str) -> Callable[[Path, Path], Job]:
    def prepare(folder: Path, _: Path) -> Job:
        package = import_module(name)
        storage = package.s3_storage(
            bucket=slow_s3.BUCKET,
            prefix="",
            region="us-east-1",
            endpoint_url=slow_s3.start(folder),
            allow_http=True,
            force_path_style=True,
            access_key_id="someone",
            secret_access_key="secret",
        )
        store = package.Repository.open(storage).readonly_session("main").store
        array = zarr.open_array(store, path="a", mode="r")
        return lambda: array[:]

    return prepare


def _same_values(ours: Any, theirs: Any) -> None:
    assert (ours == theirs).all()


ROWS = [
    Row(
        name="latency-s3",
        title=f"{CHUNKS} chunks of 64 KiB from an S3 server that answers after 20 ms, default settings",
        ours=Side("read all through zarr", _read(OURS)),
        theirs=Side("read all through zarr", _read(THEIRS)),
        cpu_ratio=1,
        wall_ratio=1,
        setup=_setup,
        check=_same_values,
        repeat=7,
    )
]
