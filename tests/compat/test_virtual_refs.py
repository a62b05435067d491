"""Virtual references, containers and checksums of one package are read by the other."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from tests.support.compat.official import KNOWS_V2, icechunk, needs_v2

pytestmark = pytest.mark.compat

MODIFIED = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
OTHER = {"icefloe": icechunk, "icechunk": icefloe}
PACKAGES = {"icefloe": icefloe, "icechunk": icechunk}
COUNT, SIZE = 1200, 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create files with a hundred chunks each, all with the same modification time."""
    for number in range(COUNT // 100):
        file = tmp_path / "data" / f"file {number}.nc"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(np.random.default_rng(number).integers(0, 256, 100 * SIZE, np.uint8).tobytes())
        os.utime(file, (MODIFIED.timestamp(), MODIFIED.timestamp()))
    return tmp_path / "data"


def url(folder: Path, number: int) -> str:
    return f"file://{folder}/file {number}.nc"


def access(package: Any) -> Any:
    if package is icefloe:
        return icefloe.Credentials.LocalFileSystemAccess()
    return icechunk.Credentials.LocalFileSystemAccess() if KNOWS_V2 else None


def session_of(package: Any, place: Path, folder: Path, spec: int, name: str | None) -> Any:
    prefix = f"file://{folder}/"
    config = package.RepositoryConfig.default()
    store = package.local_filesystem_store(str(folder))
    named = {} if name is None else {"name": name}
    config.set_virtual_chunk_container(package.VirtualChunkContainer(prefix, store, **named))
    options = {"spec_version": spec} if package is icefloe or KNOWS_V2 else {}
    storage = package.local_filesystem_storage(str(place))
    repo = package.Repository.create(storage, config, {prefix: access(package)}, **options)
    repo.save_config()
    return repo.writable_session("main")


def reopened(package: Any, place: Path, folder: Path) -> Any:
    """Open a repository with its stored configuration in the other package."""
    storage = package.local_filesystem_storage(str(place))
    prefix = f"file://{folder}/"
    repo = package.Repository.open(storage, authorize_virtual_chunk_access={prefix: access(package)})
    return repo.readonly_session("main")


def expected(folder: Path) -> Any:
    files = [(folder / f"file {number}.nc").read_bytes() for number in range(COUNT // 100)]
    return np.frombuffer(b"".join(files), np.uint8)


SPECS = [pytest.param(1, id="v1"), pytest.param(2, id="v2", marks=needs_v2)]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("writer", PACKAGES)
def test_references_are_read_by_the_other_package(
    tmp_path: Path, folder: Path, writer: str, spec: int
) -> None:
    package, place = PACKAGES[writer], tmp_path / "repo"
    session = session_of(package, place, folder, spec, None)
    shape = (COUNT * SIZE,)
    zarr.create_array(session.store, name="a", shape=shape, chunks=(SIZE,), dtype="u1", compressors=None)
    times = [None, MODIFIED]
    specs = [
        package.VirtualChunkSpec([n], url(folder, n // 100), n % 100 * SIZE, SIZE, None, times[n % 2])
        for n in range(COUNT)
    ]
    assert session.store.set_virtual_refs("a", specs) is None
    mine = session.all_virtual_chunk_locations()
    session.commit("references")

    found = reopened(OTHER[writer], place, folder)

    assert found.all_virtual_chunk_locations() == mine
    assert mine[101] == f"file://{folder}/file%201.nc"
    array: Any = zarr.open_array(found.store, path="a", mode="r")
    assert np.array_equal(array[:], expected(folder))
    assert str(found.chunk_type("/a", [7])).lower().endswith("virtual")


@needs_v2
@pytest.mark.parametrize("writer", PACKAGES)
def test_columns_and_relative_locations_are_read_by_the_other_package(
    tmp_path: Path, folder: Path, writer: str
) -> None:
    package, place = PACKAGES[writer], tmp_path / "repo"
    session = session_of(package, place, folder, 2, "archive")
    zarr.create_array(
        session.store, name="a", shape=(COUNT * SIZE,), chunks=(SIZE,), dtype="u1", compressors=None
    )
    places = [f"vcc://archive/file%20{n // 100}.nc" if n % 5 else "" for n in range(COUNT)]
    offsets = np.arange(COUNT, dtype=np.uint64) % np.uint64(100) * np.uint64(SIZE)
    session.store.set_virtual_refs_arr("a", (COUNT,), places, offsets, np.full(COUNT, SIZE, np.uint64))
    mine = list(session.store.array_chunk_iterator("a"))
    session.commit("references")

    found = reopened(OTHER[writer], place, folder)

    array: Any = zarr.open_array(found.store, path="a", mode="r")
    chunks = expected(folder).reshape(COUNT, SIZE).copy()
    chunks[::5] = 0
    assert np.array_equal(array[:], chunks.reshape(-1))
    ((coords, kinds, paths, begins, lengths, inlined),) = mine
    ((*others, texts),) = [(b[0], b[1], b[3], b[4], b[2]) for b in found.store.array_chunk_iterator("a")]
    for one, other in zip((coords, kinds, begins, lengths), others, strict=True):
        assert np.array_equal(one, other)
    assert (paths, inlined) == (texts, {})


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("writer", PACKAGES)
def test_changed_file_is_detected_by_the_other_package(
    tmp_path: Path, folder: Path, writer: str, spec: int
) -> None:
    package, place = PACKAGES[writer], tmp_path / "repo"
    session = session_of(package, place, folder, spec, None)
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(4,), dtype="u1", compressors=None)
    session.store.set_virtual_ref("a/c/0", url(folder, 0), offset=0, length=4, checksum=MODIFIED)
    session.store.set_virtual_ref("a/c/1", url(folder, 0), offset=4, length=4, checksum="no such etag")
    session.commit("references")
    array: Any = zarr.open_array(reopened(OTHER[writer], place, folder).store, path="a", mode="r")
    errors = (icefloe.IcechunkError, icechunk.IcechunkError)

    assert array[:4].tolist() == expected(folder)[:4].tolist()
    with pytest.raises(errors, match="changed"):
        array[4:]
    later = (MODIFIED + timedelta(seconds=5)).timestamp()
    os.utime(folder / "file 0.nc", (later, later))
    with pytest.raises(errors, match="changed"):
        array[:4]


@needs_v2
def test_store_is_an_instance_of_the_official_class() -> None:
    """Runs in a separate process, so that the official package is imported after the store was created."""
    program = """
import sys
import icefloe, zarr
store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
assert "icechunk" not in sys.modules
assert not any("icefloe" in type(finder).__module__ for finder in sys.meta_path)
from icechunk import IcechunkStore
assert not any("icefloe" in type(finder).__module__ for finder in sys.meta_path)
assert isinstance(store, IcechunkStore)
assert issubclass(icefloe.IcechunkStore, IcechunkStore)
assert not isinstance(zarr.storage.MemoryStore(), IcechunkStore)
import icechunk.store
assert not type(icechunk.store.__loader__).__module__.startswith("icefloe")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_store_is_an_instance_of_the_official_class_imported_first() -> None:
    store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store

    assert isinstance(store, icechunk.IcechunkStore)
