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
REQUESTS_WITH_CACHE = 2
"""Both for the repo info file."""


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


def _read_cached(folder: Path, scratch: Path) -> Job:
    """Fill a disk cache, and read all values in a new client."""
    import icefloe
    from icefloe.storage import disk_cache

    cache = icefloe.DiskCache(scratch / "cache")
    url = slow_s3.start(folder)
    storage = slow_s3.storage(icefloe, url, "")

    def read() -> Any:
        repo = icefloe.Repository.open(storage, disk_cache=cache)
        return zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]

    def job() -> Any:
        values = read()
        requests = sum(slow_s3.traffic(url).requests.values())
        assert requests <= REQUESTS_WITH_CACHE, f"{requests} requests"
        return values

    read()
    slow_s3.traffic(url)
    disk_cache._open.clear()
    return job


def _open_and_read(folder: Path, _: Path) -> Job:
    package = import_module(THEIRS)
    url = slow_s3.start(folder)

    def job() -> Any:
        slow_s3.traffic(url)
        store = package.Repository.open(slow_s3.storage(package, url, "")).readonly_session("main").store
        values = zarr.open_array(store, path="a", mode="r")[:]
        requests = sum(slow_s3.traffic(url).requests.values())
        assert requests >= CHUNKS, f"{requests} requests"
        return values

    return job


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
    ),
    Row(
        name="latency-s3-cached",
        title=f"the same chunks again in a new client: {REQUESTS_WITH_CACHE} requests with a disk cache, "
        f"more than {CHUNKS} without",
        ours=Side("open and read all, with a full disk cache", _read_cached),
        theirs=Side("open and read all", _open_and_read),
        cpu_ratio=1,
        wall_ratio=1,
        setup=_setup,
        check=_same_values,
        repeat=7,
    ),
]
