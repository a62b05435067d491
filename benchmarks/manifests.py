"""Benchmark manifests: write, scan and search one and ten million virtual references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import local_repository, official
from benchmarks.harness import Job, Row, Side
from benchmarks.local_repository import CHUNK
from icefloe.format.manifest import ArrayManifest

ARRAY = "/a"
MILLION = (1000, 1000)
TEN_MILLION = (10_000, 1000)
COLD = (5, 7)
WRITE_OURS = "open; set; encode, zstd and write manifest, transaction log, snapshot, repo info"


def url(file: int) -> str:
    """Return the location of a file."""
    return f"{official.BUCKET}some/prefix/year=2020/file-{file:08d}.nc"


def inputs(grid: tuple[int, ...], per_file: int) -> tuple[list[str], Any, Any]:
    """Return the location, offset and length of each chunk. Equal locations are separate objects."""
    count = int(np.prod(grid))
    offsets = (np.arange(count, dtype=np.uint64) % np.uint64(per_file)) * np.uint64(1000)
    return [url(i // per_file) for i in range(count)], offsets, np.full(count, 1000, np.uint64)


def _write_ours(grid: tuple[int, ...], per_file: int) -> Side:
    def prepare(_: Path, scratch: Path) -> Job:
        nodes = [local_repository.group_node("/"), local_repository.array_node(ARRAY, grid)]
        local_repository.create(scratch, nodes)
        columns = inputs(grid, per_file)
        return lambda: local_repository.set_virtual_refs(scratch, ARRAY, grid, *columns)

    return Side(WRITE_OURS, prepare)


def _write_theirs(grid: tuple[int, ...], per_file: int) -> Side:
    def prepare(_: Path, scratch: Path) -> Job:
        official.create_with_array(scratch, ARRAY, grid, CHUNK)
        columns = inputs(grid, per_file)

        def job() -> None:
            session = official.open_repository(scratch).writable_session("main")
            session.store.set_virtual_refs_arr(ARRAY.strip("/"), grid, *columns)
            session.commit("set virtual references")

        return job

    return Side("open; set_virtual_refs_arr; commit (also checks each URL's container)", prepare)


def _setup_official(grid: tuple[int, ...], per_file: int) -> Any:
    def setup(folder: Path) -> None:
        _write_theirs(grid, per_file).prepare(folder, folder)()

    return setup


def _scan_ours(folder: Path, _: Path) -> Job:
    def job() -> ArrayManifest:
        node, manifest = local_repository.open_manifest(folder, ARRAY)
        return manifest.array(node, 2)

    return job


def _scan_theirs(folder: Path, _: Path) -> Job:
    return lambda: official.all_batches(folder, ARRAY)


SCAN_OURS = Side("open; read, inflate, check and decode to columns, locations included", _scan_ours)
SCAN_THEIRS = Side("open; array_chunk_iterator to its end", _scan_theirs)


def _check_scan(ours: ArrayManifest, theirs: list[Any]) -> None:
    coords, _, locations, offsets, lengths, _ = zip(*theirs, strict=True)
    assert np.array_equal(ours.coords, np.concatenate(coords))
    assert np.array_equal(ours.offsets, np.concatenate(offsets))
    assert np.array_equal(ours.lengths, np.concatenate(lengths))
    assert ours.locations.take(ours.location_codes).texts() == [text for part in locations for text in part]


def _find_ours(folder: Path, _: Path) -> Job:
    def job() -> str:
        node, manifest = local_repository.open_manifest(folder, ARRAY)
        return type(manifest.find(node, COLD)).__name__

    return job


def _find_theirs(folder: Path, _: Path) -> Job:
    def job() -> Any:
        return official.open_repository(folder).readonly_session("main").chunk_type(ARRAY, COLD)

    return job


FIND_OURS = Side("open; read and inflate the manifest; binary search in its bytes", _find_ours)
FIND_THEIRS = Side("open; chunk_type of one chunk", _find_theirs)


def _check_find(ours: str, theirs: Any) -> None:
    assert ours == "VirtualRef"
    assert str(theirs).lower().endswith("virtual")


def _write_ten_million(_: Path, scratch: Path) -> Job:
    nodes = [local_repository.group_node("/"), local_repository.array_node(ARRAY, TEN_MILLION)]
    local_repository.create(scratch, nodes)
    count = TEN_MILLION[0] * TEN_MILLION[1]
    # One object per file, as a loop over files creates: inputs count as memory in this row.
    locations = [location for file in range(count // 100) for location in [url(file)] * 100]
    offsets = (np.arange(count, dtype=np.uint64) % np.uint64(100)) * np.uint64(1000)
    lengths = np.full(count, 1000, np.uint64)
    return lambda: local_repository.set_virtual_refs(scratch, ARRAY, TEN_MILLION, locations, offsets, lengths)


def _setup_ten_million(folder: Path) -> None:
    _write_ten_million(folder, folder)()


ROWS = [
    Row(
        name="write-100-per-file",
        title="1M virtual references, 100 per file: set and commit",
        ours=_write_ours(MILLION, 100),
        theirs=_write_theirs(MILLION, 100),
        cpu_ratio=4,
        memory_ratio=1 / 3,
    ),
    Row(
        name="write-distinct",
        title="1M virtual references, each its own file: set and commit",
        ours=_write_ours(MILLION, 1),
        theirs=_write_theirs(MILLION, 1),
        cpu_ratio=2.5,
    ),
    Row(
        name="scan-100-per-file",
        title="the official file of 1M references, 100 per file: all to columns",
        ours=SCAN_OURS,
        theirs=SCAN_THEIRS,
        cpu_ratio=3,
        setup=_setup_official(MILLION, 100),
        setup_needs_theirs=True,
        check=_check_scan,
    ),
    Row(
        name="scan-distinct",
        title="the official file of 1M references, each its own file: all to columns",
        ours=SCAN_OURS,
        theirs=SCAN_THEIRS,
        cpu_ratio=1,
        setup=_setup_official(MILLION, 1),
        setup_needs_theirs=True,
        check=_check_scan,
    ),
    Row(
        name="lookup-100-per-file",
        title="the official file of 1M references, 100 per file: one cold look-up",
        ours=FIND_OURS,
        theirs=FIND_THEIRS,
        cpu_ratio=2.5,
        setup=_setup_official(MILLION, 100),
        setup_needs_theirs=True,
        check=_check_find,
        repeat=9,
    ),
    Row(
        name="lookup-distinct",
        title="the official file of 1M references, each its own file: one cold look-up",
        ours=FIND_OURS,
        theirs=FIND_THEIRS,
        cpu_ratio=2.5,
        setup=_setup_official(MILLION, 1),
        setup_needs_theirs=True,
        check=_check_find,
        repeat=9,
    ),
    Row(
        name="write-10M",
        title="10M virtual references, 100 per file: set and commit",
        ours=Side(WRITE_OURS, _write_ten_million),
        memory_bytes=2_000_000_000,
        repeat=1,
    ),
    Row(
        name="scan-10M",
        title="our file of 10M references, 100 per file: all to columns",
        ours=SCAN_OURS,
        memory_bytes=2_000_000_000,
        setup=_setup_ten_million,
        repeat=1,
    ),
]
