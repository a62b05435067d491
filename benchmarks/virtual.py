"""Benchmark virtual references through the public API, which is the same on both sides."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.harness import OURS, THEIRS, Job, Row, Side
from tests.support.servers.ranges import range_server

MILLION = (1000, 1000)
TEN_MILLION = (10_000, 1000)
BUCKET = "s3://my-bucket/"
CHUNK = 10
NEIGHBOURS, NEIGHBOUR_BYTES = 2000, 4096
LATENCY_S = 0.02


def _url(file: int) -> str:
    return f"{BUCKET}some/prefix/year=2020/file-{file:08d}.nc"


def inputs(grid: tuple[int, int], per_file: int) -> tuple[list[str], Any, Any]:
    """Return the location, offset and length of each chunk. Equal locations are separate objects."""
    count = grid[0] * grid[1]
    offsets = (np.arange(count, dtype=np.uint64) % np.uint64(per_file)) * np.uint64(1000)
    return [_url(number // per_file) for number in range(count)], offsets, np.full(count, 1000, np.uint64)


def _config(package: Any, prefix: str, store: Any) -> Any:
    config = package.RepositoryConfig.default()
    config.set_virtual_chunk_container(package.VirtualChunkContainer(prefix, store))
    return config


def _open(package: Any, folder: Path, prefix: str = BUCKET, store: Any = None, access: Any = None) -> Any:
    config = _config(package, prefix, store or package.s3_store(region="us-east-1"))
    storage = package.local_filesystem_storage(str(folder))
    authorized = None if access is None else {prefix: access}
    return package.Repository.open_or_create(storage, config, authorized)


def _create(package: Any, folder: Path, grid: tuple[int, ...], **container: Any) -> Any:
    session = _open(package, folder, **container).writable_session("main")
    shape = tuple(CHUNK * size for size in grid)
    zarr.create_array(
        session.store, name="a", shape=shape, chunks=(CHUNK,) * len(grid), dtype="u1", compressors=None
    )
    return session.commit("array")


def _write(name: str, grid: tuple[int, int], per_file: int) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        package = import_module(name)
        _create(package, scratch, grid)
        columns = inputs(grid, per_file)

        def job() -> None:
            session = _open(package, scratch).writable_session("main")
            session.store.set_virtual_refs_arr("a", grid, *columns)
            session.commit("references")

        return job

    return prepare


def _write_specs(name: str) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        package = import_module(name)
        _create(package, scratch, MILLION)
        count = 100_000

        def job() -> None:
            session = _open(package, scratch).writable_session("main")
            specs = [
                package.VirtualChunkSpec([n // 1000, n % 1000], _url(n // 100), n, 1000) for n in range(count)
            ]
            session.store.set_virtual_refs("a", specs)
            session.commit("references")

        return job

    return prepare


def _write_ten_million(_: Path, scratch: Path) -> Job:
    package = import_module(OURS)
    _create(package, scratch, TEN_MILLION)
    count = TEN_MILLION[0] * TEN_MILLION[1]
    # One object per file, as a loop over files creates: inputs count as memory in this row.
    locations = [location for file in range(count // 100) for location in [_url(file)] * 100]
    offsets = (np.arange(count, dtype=np.uint64) % np.uint64(100)) * np.uint64(1000)
    lengths = np.full(count, 1000, np.uint64)

    def job() -> None:
        session = _open(package, scratch).writable_session("main")
        session.store.set_virtual_refs_arr("a", TEN_MILLION, locations, offsets, lengths)
        session.commit("references")

    return job


def _setup_references(per_file: int) -> Callable[[Path], None]:
    """Write references with the official package."""
    return lambda folder: _write(THEIRS, MILLION, per_file)(folder, folder)()


def _iterate(name: str) -> Callable[[Path, Path], Job]:
    def prepare(folder: Path, _: Path) -> Job:
        package = import_module(name)
        _open(package, folder)  # so that imports are not measured

        def job() -> list[Any]:
            store = _open(package, folder).readonly_session("main").store
            return list(store.array_chunk_iterator("a"))

        return job

    return prepare


def _same_batches(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for mine, their in zip(one, other, strict=True):
            assert np.array_equal(mine, their) if isinstance(mine, np.ndarray) else mine == their


def _locations(name: str) -> Callable[[Path, Path], Job]:
    def prepare(folder: Path, _: Path) -> Job:
        package = import_module(name)
        _open(package, folder)  # so that imports are not measured
        return lambda: _open(package, folder).readonly_session("main").all_virtual_chunk_locations()

    return prepare


def _same(ours: Any, theirs: Any) -> None:
    assert ours == theirs


def _local(package: Any, folder: Path) -> dict[str, Any]:
    access = package.Credentials.LocalFileSystemAccess()
    return {
        "prefix": f"file://{folder}/",
        "store": package.local_filesystem_store(str(folder)),
        "access": access,
    }


def _setup_file(folder: Path) -> None:
    package = import_module(THEIRS)
    container = _local(package, folder)
    _create(package, folder / "repo", MILLION, **container)
    (folder / "a.nc").write_bytes(bytes(range(256)) * 100)
    session = _open(package, folder / "repo", **container).writable_session("main")
    locations, offsets, lengths = inputs(MILLION, 100)
    locations = [f"file://{folder}/{text.rpartition('/')[2]}" for text in locations]
    locations[5007], offsets[5007], lengths[5007] = f"file://{folder}/a.nc", 700, CHUNK * CHUNK
    session.store.set_virtual_refs_arr("a", MILLION, locations, offsets, lengths)
    session.commit("references")


def _read_one(name: str) -> Callable[[Path, Path], Job]:
    def prepare(folder: Path, _: Path) -> Job:
        package = import_module(name)
        container = _local(package, folder)

        def job() -> Any:
            store = _open(package, folder / "repo", **container).readonly_session("main").store
            array = zarr.open_array(store, path="a", mode="r")
            return array[5 * CHUNK : 6 * CHUNK, 7 * CHUNK : 8 * CHUNK]

        return job

    return prepare


def _same_values(ours: Any, theirs: Any) -> None:
    assert np.array_equal(ours, theirs)


def _read_neighbours(name: str) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        package = import_module(name)

        def job() -> tuple[bytes, int]:
            with range_server() as server:
                server.latency_s = LATENCY_S
                size = NEIGHBOURS * NEIGHBOUR_BYTES
                server.files["a.nc"] = np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()
                server.modified["a.nc"] = "Tue, 14 Nov 2023 22:13:20 GMT"
                prefix = f"{server.url}/"
                config = _config(package, prefix, package.http_store({"allow_http": "true"}))
                access = {prefix: package.Credentials.HttpAccess()}
                repo = package.Repository.create(package.in_memory_storage(), config, access)
                session = repo.writable_session("main")
                array = zarr.create_array(
                    session.store,
                    name="a",
                    shape=(size,),
                    chunks=(NEIGHBOUR_BYTES,),
                    dtype="u1",
                    compressors=None,
                )
                offsets = np.arange(NEIGHBOURS, dtype=np.uint64) * np.uint64(NEIGHBOUR_BYTES)
                lengths = np.full(NEIGHBOURS, NEIGHBOUR_BYTES, np.uint64)
                places = [f"{prefix}a.nc"] * NEIGHBOURS
                session.store.set_virtual_refs_arr("a", (NEIGHBOURS,), places, offsets, lengths)
                found: Any = array[:]
                return found.tobytes(), len(server.asked)

        return job

    return prepare


def _same_bytes_in_fewer_requests(ours: tuple[bytes, int], theirs: tuple[bytes, int]) -> None:
    assert ours[0] == theirs[0]
    assert ours[1] * 10 <= NEIGHBOURS <= theirs[1]


def _both(
    name: str, title: str, does: str, job: Callable[[str], Callable[[Path, Path], Job]], **rest: Any
) -> Row:
    return Row(name=name, title=title, ours=Side(does, job(OURS)), theirs=Side(does, job(THEIRS)), **rest)


_SET = "open; set_virtual_refs_arr; commit"
_ITERATE = "open; array_chunk_iterator to its end"
_LIST = "open; all_virtual_chunk_locations"
_KINDS = (("100-per-file", "100 per file", 100), ("distinct", "each its own file", 1))

ROWS = [
    _both(
        "virtual-write-100-per-file",
        "1M virtual references, 100 per file, through the public API",
        _SET,
        lambda name: _write(name, MILLION, 100),
        cpu_ratio=4,
        memory_ratio=1 / 3,
    ),
    _both(
        "virtual-write-distinct",
        "1M virtual references, each its own file, through the public API",
        _SET,
        lambda name: _write(name, MILLION, 1),
        cpu_ratio=1,
    ),
    _both(
        "virtual-write-specs",
        "100,000 virtual references as VirtualChunkSpec objects",
        "open; make the objects; set_virtual_refs; commit",
        _write_specs,
        cpu_ratio=1,
    ),
    Row(
        name="virtual-write-10M",
        title="10M virtual references, 100 per file, through the public API",
        ours=Side(_SET, _write_ten_million),
        memory_bytes=3_000_000_000,
        repeat=1,
    ),
    _both(
        "virtual-read-one",
        "one chunk of 1M virtual ones, cold",
        "open; open the array; read a chunk of a local file",
        _read_one,
        cpu_ratio=2,
        setup=_setup_file,
        setup_needs_theirs=True,
        check=_same_values,
        repeat=9,
    ),
    *(
        _both(
            f"virtual-iterate-{name}",
            f"the official file of 1M references, {title}: all as columns",
            _ITERATE,
            _iterate,
            cpu_ratio=ratio,
            setup=_setup_references(per_file),
            setup_needs_theirs=True,
            check=_same_batches,
        )
        for (name, title, per_file), ratio in zip(_KINDS, (3, 1), strict=True)
    ),
    *(
        _both(
            f"virtual-locations-{name}",
            f"the official file of 1M references, {title}: all locations as texts",
            _LIST,
            _locations,
            cpu_ratio=1,
            setup=_setup_references(per_file),
            setup_needs_theirs=True,
            check=_same,
        )
        for name, title, per_file in (
            ("100-per-file", "100 per file", 100),
            ("distinct", "each its own file", 1),
        )
    ),
    _both(
        "virtual-neighbours",
        f"{NEIGHBOURS:,} neighbouring chunks of one file on a web server 20 ms away, at most 200 requests",
        "set the references; read all through zarr (the server's CPU included)",
        _read_neighbours,
        cpu_ratio=1,
        check=_same_bytes_in_fewer_requests,
        repeat=3,
    ),
]
