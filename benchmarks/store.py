"""Benchmark the store: write and read chunks through zarr in a folder, and list a large hierarchy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.harness import Job, Row, Side
from benchmarks.snapshots import NODES, setup_many_nodes

KIB = 1024
MIB = 1024 * KIB
Open = Callable[[Path], Any]


def _our_repository(folder: Path) -> Any:
    from icefloe.repository import Repository
    from icefloe.storage import local_filesystem_storage

    return Repository.open_or_create(local_filesystem_storage(str(folder)))


def _their_repository(folder: Path) -> Any:
    import icechunk

    return icechunk.Repository.open_or_create(icechunk.local_filesystem_storage(str(folder)))


def _values(chunk_bytes: int, count: int) -> Any:
    return np.random.default_rng(0).integers(0, 255, chunk_bytes * count, np.uint8)


def _array(store: Any, chunk_bytes: int, count: int) -> Any:
    return zarr.create_array(
        store,
        name="a",
        shape=(chunk_bytes * count,),
        chunks=(chunk_bytes,),
        dtype="u1",
        compressors=None,
        fill_value=255,
    )


def _write(open_repository: Open, chunk_bytes: int, count: int) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        values = _values(chunk_bytes, count)
        array = _array(open_repository(scratch).writable_session("main").store, chunk_bytes, count)

        def job() -> None:
            array[:] = values

        return job

    return prepare


def _setup_chunks(chunk_bytes: int, count: int) -> Callable[[Path], None]:
    def setup(folder: Path) -> None:
        session = _our_repository(folder).writable_session("main")
        _array(session.store, chunk_bytes, count)[:] = _values(chunk_bytes, count)
        session.commit("chunks")

    return setup


def _read(open_repository: Open) -> Callable[[Path, Path], Job]:
    def prepare(folder: Path, _: Path) -> Job:
        array = zarr.open_array(open_repository(folder).readonly_session("main").store, path="a", mode="r")
        return lambda: array[:]

    return prepare


def _list(open_repository: Open) -> Callable[[Path, Path], Job]:
    def prepare(folder: Path, _: Path) -> Job:
        open_repository(folder)  # so that imports are not measured

        def job() -> list[str]:
            store = open_repository(folder).readonly_session("main").store

            async def collect() -> list[str]:
                return [key async for key in store.list_prefix("")]

            return asyncio.run(collect())

        return job

    return prepare


def _same_values(ours: Any, theirs: Any) -> None:
    assert (ours == theirs).all()


def _same_keys(ours: list[str], theirs: list[str]) -> None:
    assert sorted(ours) == sorted(theirs)


def _rows(name: str, chunk_bytes: int, count: int) -> list[Row]:
    title = f"{count} chunks of {name.upper()} on a folder, through zarr"
    return [
        Row(
            name=f"write-{name}",
            title=f"{title}: write",
            ours=Side("assign all", _write(_our_repository, chunk_bytes, count)),
            theirs=Side("assign all", _write(_their_repository, chunk_bytes, count)),
            cpu_ratio=1,
            repeat=9,
        ),
        Row(
            name=f"read-{name}",
            title=f"{title}: read",
            ours=Side("read all, nothing cached but files", _read(_our_repository)),
            theirs=Side("read all, nothing cached but files", _read(_their_repository)),
            cpu_ratio=2,
            setup=_setup_chunks(chunk_bytes, count),
            check=_same_values,
            repeat=9,
        ),
    ]


ROWS = [
    *_rows("64k", 64 * KIB, 512),
    *_rows("1m", MIB, 128),
    Row(
        name="list-nodes",
        title=f"a snapshot of {NODES:,} nodes: list all keys",
        ours=Side("open; list_prefix", _list(_our_repository)),
        theirs=Side("open; list_prefix", _list(_their_repository)),
        cpu_ratio=50,
        setup=setup_many_nodes,
        check=_same_keys,
        repeat=3,
    ),
]
