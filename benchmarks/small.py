"""Rows on small things: creating and opening repositories, tiny commits, long histories."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zarr

from benchmarks.harness import OURS, THEIRS, Job, Row, Side

TIMES = 50
COMMITS = 1000
HISTORY = 5000
ARRAYS = 10_000

Make = Callable[[Any, Path], Job]


def _memory(package: Any, _: Path) -> Any:
    return package.in_memory_storage()


def _folder(package: Any, folder: Path) -> Any:
    return package.local_filesystem_storage(str(folder))


def _create(place: Callable[[Any, Path], Any]) -> Make:
    def make(package: Any, scratch: Path) -> Job:
        package.Repository.create(package.in_memory_storage())  # not to measure imports
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


def _setup_history(folder: Path) -> None:
    package = importlib.import_module(OURS)
    repository = package.Repository.create(_folder(package, folder))
    for number in range(HISTORY - 1):
        repository.writable_session("main").commit(f"commit {number}", allow_empty=True)


def _ancestry(package: Any, folder: Path) -> Job:
    def job() -> int:
        repository = package.Repository.open(_folder(package, folder))
        return sum(1 for _ in repository.ancestry(branch="main"))

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
        "small-commit-in-many",
        f"a commit of one chunk in a snapshot of {ARRAYS:,} arrays",
        "set one chunk through zarr; commit",
        _commit_among_many,
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
]
