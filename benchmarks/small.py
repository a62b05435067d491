"""Benchmark small operations: creating and opening repositories, tiny commits, long histories."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zarr
from zarr.core.buffer import default_buffer_prototype

from benchmarks.harness import OURS, THEIRS, Job, Row, Side

TIMES = 50
COMMITS = 1000
HISTORY = 5000
ARRAYS = 10_000
PLATE = 5_760

Make = Callable[[Any, Path], Job]


def _memory(package: Any, _: Path) -> Any:
    return package.in_memory_storage()


def _folder(package: Any, folder: Path) -> Any:
    return package.local_filesystem_storage(str(folder))


def _unsynced(package: Any, folder: Path) -> Any:
    """A folder storage without fsync, like that of icechunk."""
    if package.__name__ != OURS:
        return _folder(package, folder)
    return package.storage_from_url(str(folder), sync=False)


def _create(place: Callable[[Any, Path], Any]) -> Make:
    def make(package: Any, scratch: Path) -> Job:
        package.Repository.create(package.in_memory_storage())  # so that imports are not measured
        places = [place(package, scratch / str(each)) for each in range(TIMES)]
        return lambda: [package.Repository.create(each) for each in places]

    return make


def _open(place: Callable[[Any, Path], Any]) -> Make:
    def make(package: Any, scratch: Path) -> Job:
        storage = place(package, scratch)
        package.Repository.create(storage)
        return lambda: [package.Repository.open(storage) for _ in range(TIMES)]

    return make


def _sessions(package: Any, scratch: Path) -> Job:
    repository = package.Repository.create(_folder(package, scratch))
    return lambda: [repository.writable_session("main") for _ in range(TIMES)]


def _tiny_commits(place: Callable[[Any, Path], Any]) -> Make:
    def make(package: Any, scratch: Path) -> Job:
        repository = package.Repository.create(place(package, scratch))
        session = repository.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(COMMITS,), chunks=(1,), dtype="i4")
        session.commit("array")

        def job() -> None:
            for number in range(COMMITS):
                session = repository.writable_session("main")
                zarr.open_array(session.store, path="a", mode="r+")[number] = number + 1
                session.commit("chunk")

        return job

    return make


def _tiny_sets(place: Callable[[Any, Path], Any]) -> Make:
    def make(package: Any, scratch: Path) -> Job:
        repository = package.Repository.create(place(package, scratch))
        session = repository.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(COMMITS,), chunks=(1,), dtype="i4")
        session.commit("array")
        data = default_buffer_prototype().buffer.from_bytes(b"data")

        async def commit_all() -> None:
            for number in range(COMMITS):
                session = repository.writable_session("main")
                await session.store.set(f"a/c/{number}", data)
                session.commit("chunk")

        return lambda: asyncio.run(commit_all())

    return make


def _setup_history(folder: Path) -> None:
    package = importlib.import_module(OURS)
    repository = package.Repository.create(_unsynced(package, folder))
    for number in range(HISTORY - 1):
        repository.writable_session("main").commit(f"commit {number}", allow_empty=True)


def _ancestry(package: Any, folder: Path) -> Job:
    def job() -> int:
        repository = package.Repository.open(_folder(package, folder))
        return sum(1 for _ in repository.ancestry(branch="main"))

    return job


def _ops_log(package: Any, folder: Path) -> Job:
    def job() -> int:
        repository = package.Repository.open(_folder(package, folder))
        return sum(1 for _ in repository.ops_log())

    return job


def _commit_among_many(package: Any, scratch: Path) -> Job:
    repository = package.Repository.create(_folder(package, scratch))
    session = repository.writable_session("main")
    first = zarr.create_array(session.store, name="a0", shape=(4,), chunks=(1,), dtype="i4")
    nodes: dict[str, Any] = {f"a{number}": first.metadata for number in range(1, ARRAYS)}
    list(zarr.create_hierarchy(store=session.store, nodes=nodes))
    session.commit("arrays")
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="a7", mode="r+")

    def job() -> None:
        array[0] = 1
        session.commit("one chunk")

    return job


def _set_plate(package: Any) -> tuple[Any, Any]:
    """Set all nodes and chunks of a plate in a session: `PLATE` arrays of eight inline chunks."""
    manifest = package.ManifestConfig(pack_small_arrays=True) if package.__name__ == OURS else None
    storage = package.in_memory_storage()
    repository = package.Repository.create(storage, package.RepositoryConfig(manifest=manifest))
    session = repository.writable_session("main")
    first = zarr.create_array(session.store, name="first", shape=(8,), chunks=(1,), dtype="i4")
    nodes: dict[str, Any] = {
        f"{n // 240:02}/{n // 10 % 24:02}/{n % 10}": first.metadata for n in range(PLATE)
    }
    list(zarr.create_hierarchy(store=session.store, nodes=nodes))
    data = default_buffer_prototype().buffer.from_bytes(b"data")

    async def set_all() -> None:
        for path in nodes:
            for chunk in range(8):
                await session.store.set(f"{path}/c/{chunk}", data)

    asyncio.run(set_all())
    return repository, session


def _plate_commit(package: Any, _: Path) -> Job:
    _, session = _set_plate(package)
    return lambda: session.commit("plate")


def _plate_chunk(package: Any, _: Path) -> Job:
    repository, session = _set_plate(package)
    session.commit("plate")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="05/03/7")[0] = 1
    return lambda: session.commit("one chunk")


def _plate_read(package: Any, _: Path) -> Job:
    repository, session = _set_plate(package)
    session.commit("plate")
    repository = repository.reopen()  # without cached manifests

    async def read() -> int:
        store = repository.readonly_session("main").store
        prototype, found = default_buffer_prototype(), 0
        for number in range(0, PLATE, 10):
            path = f"{number // 240:02}/{number // 10 % 24:02}/{number % 10}"
            found += await store.get(f"{path}/c/3", prototype) is not None
        return found

    return lambda: asyncio.run(read())


def _side(does: str, package: str, make: Make, *, shared: bool) -> Side:
    def prepare(folder: Path, scratch: Path) -> Job:
        return make(importlib.import_module(package), folder if shared else scratch)

    return Side(does, prepare)


def _row(
    name: str, title: str, does: str, make: Make, *, setup: Callable[[Path], None] | None = None, repeat: int
) -> Row:
    return Row(
        name=name,
        title=title,
        ours=_side(does, OURS, make, shared=setup is not None),
        theirs=_side(does, THEIRS, make, shared=setup is not None),
        cpu_ratio=1,
        setup=setup,
        repeat=repeat,
    )


ROWS = [
    _row("small-create-memory", f"{TIMES} repositories in memory", "create", _create(_memory), repeat=7),
    _row("small-create-folder", f"{TIMES} repositories in folders", "create", _create(_folder), repeat=7),
    _row(
        "small-create-unsynced",
        f"{TIMES} repositories in folders, without waiting for the disk",
        "create (icefloe with sync=False)",
        _create(_unsynced),
        repeat=7,
    ),
    _row("small-open-memory", f"a repository in memory, {TIMES} times", "open", _open(_memory), repeat=7),
    _row("small-open-folder", f"a repository in a folder, {TIMES} times", "open", _open(_folder), repeat=7),
    _row("small-sessions", f"{TIMES} writable sessions on a folder", "writable_session", _sessions, repeat=7),
    _row(
        "small-commits-memory",
        f"{COMMITS:,} commits of a chunk each, in memory",
        "session; set one chunk through zarr; commit",
        _tiny_commits(_memory),
        repeat=1,
    ),
    _row(
        "small-commits-folder",
        f"{COMMITS:,} commits of a chunk each, on a folder",
        "session; set one chunk through zarr; commit (icefloe waits for the disk, icechunk does not)",
        _tiny_commits(_folder),
        repeat=1,
    ),
    _row(
        "small-commits-unsynced",
        f"{COMMITS:,} commits of a chunk each, on a folder, without waiting for the disk",
        "session; set one chunk through zarr; commit (icefloe with sync=False)",
        _tiny_commits(_unsynced),
        repeat=1,
    ),
    _row(
        "small-sets-memory",
        f"{COMMITS:,} commits of a chunk each, in memory, without zarr",
        "session; store.set of one chunk; commit",
        _tiny_sets(_memory),
        repeat=3,
    ),
    _row(
        "small-sets-folder",
        f"{COMMITS:,} commits of a chunk each, on a folder, without zarr",
        "session; store.set of one chunk; commit (icefloe waits for the disk, icechunk does not)",
        _tiny_sets(_folder),
        repeat=1,
    ),
    _row(
        "small-sets-unsynced",
        f"{COMMITS:,} commits of a chunk each, on a folder, without zarr and without waiting for the disk",
        "session; store.set of one chunk; commit (icefloe with sync=False)",
        _tiny_sets(_unsynced),
        repeat=3,
    ),
    _row(
        "small-commit-in-many",
        f"a commit of one chunk in a snapshot of {ARRAYS:,} arrays",
        "set one chunk through zarr; commit",
        _commit_among_many,
        repeat=3,
    ),
    _row(
        "pack-first-commit",
        f"the first commit of {PLATE:,} arrays of eight chunks",
        "commit (icefloe packs manifests)",
        _plate_commit,
        repeat=3,
    ),
    _row(
        "pack-one-chunk",
        f"a commit of one chunk in {PLATE:,} arrays of eight chunks",
        "commit (icefloe packs manifests)",
        _plate_chunk,
        repeat=3,
    ),
    _row(
        "pack-read",
        f"one chunk of every tenth of {PLATE:,} arrays of eight chunks",
        "session; get (icefloe packs manifests)",
        _plate_read,
        repeat=3,
    ),
    _row(
        "small-ancestry",
        f"the ancestry of {HISTORY:,} commits",
        "open; ancestry to its end",
        _ancestry,
        setup=_setup_history,
        repeat=7,
    ),
    _row(
        "small-ops-log",
        f"the ops log of {HISTORY:,} commits",
        "open; ops_log to its end",
        _ops_log,
        setup=_setup_history,
        repeat=5,
    ),
]
