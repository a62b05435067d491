"""Rows on forks: sent to another process, merged, and many writers on one branch."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.harness import Job, Row, Side

REFS = 125_000
FORKS = 8
WRITERS = 16
COMMITS = 4
"""Of each writer."""
BUCKET = "s3://my-bucket/"
Package = Callable[[], Any]


def _ours() -> Any:
    import icefloe

    return icefloe


def _theirs() -> Any:
    import icechunk

    return icechunk


def _session(package: Any, folder: Path) -> Any:
    """A session on an array of room for all references, in a new repository."""
    config = package.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        package.VirtualChunkContainer(BUCKET, package.s3_store(region="us-east-1"))
    )
    repository = package.Repository.create(package.local_filesystem_storage(str(folder)), config=config)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(FORKS * REFS,), chunks=(1,), dtype="i1")
    session.commit("array")
    return repository.writable_session("main")


def _written_fork(session: Any, part: int) -> Any:
    """A fork in which one part of the array has got its references: a hundred in each file."""
    fork = session.fork()
    rows = np.arange(REFS)
    fork.store.set_virtual_refs_arr(
        "a",
        (REFS,),
        [f"{BUCKET}{part}/file-{row // 100}.nc" for row in rows.tolist()],
        (rows % 100 * 1000).astype("u8"),
        np.full(REFS, 1000, "u8"),
        arr_offset=(part * REFS,),
    )
    return fork


def _dumps(package: Package) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        fork = _written_fork(_session(package(), scratch), 0)
        return lambda: pickle.dumps(fork)

    return prepare


def _loads(package: Package) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        pickled = pickle.dumps(_written_fork(_session(package(), scratch), 0))
        return lambda: pickle.loads(pickled)

    return prepare


def _merge(package: Package) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        session = _session(package(), scratch)
        forks = [pickle.loads(pickle.dumps(_written_fork(session, part))) for part in range(FORKS)]

        def job() -> Any:
            session.merge(*forks)
            if package is _ours:  # which sorts no earlier than it must
                workspace = session.workspace
                workspace.changes.delta(workspace.array("/a")).resolve()
            return session

        return job

    return prepare


def _same_count(ours: Any, theirs: Any) -> None:
    counts = [len(session.status().updated_chunks["/a"]) for session in (ours, theirs)]
    assert counts == [FORKS * REFS] * 2


WRITER = """
import importlib, json, os, resource, sys, time
import numpy as np, zarr
name, folder, number, commits, start = sys.argv[1], *sys.argv[2:3], *map(float, sys.argv[3:])
package = importlib.import_module(name)
package.set_logs_filter("error")
repository = package.Repository.open(package.local_filesystem_storage(folder))
time.sleep(max(0.0, start - time.time()))
begun, attempts = time.time(), 0
for turn in range(int(commits)):
    session = repository.writable_session("main")
    at = int(number) * 100 + turn * 10
    zarr.open_array(session.store, path="a", mode="r+")[at : at + 10] = int(number) + 1
    session.commit(f"{int(number)} {turn}", rebase_with=package.ConflictDetector())
    tip = next(iter(repository.ancestry(snapshot_id=session.snapshot_id)))
    attempts += 1 + tip.metadata["__icechunk"]["rebase_attempts"]
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([begun, time.time(), attempts, used.ru_utime + used.ru_stime]))
"""


def _writers(package: Package) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        made = package()
        repository = made.Repository.create(made.local_filesystem_storage(str(scratch)))
        session = repository.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(WRITERS * 100,), chunks=(10,), dtype="i4")
        session.commit("array")

        def job() -> dict[str, float]:
            start = time.time() + 1.0 * WRITERS  # each takes a while to import what it needs
            arguments = [sys.executable, "-c", WRITER, made.__name__, str(scratch)]
            running = [
                subprocess.Popen(
                    [*arguments, str(number), str(COMMITS), str(start)], stdout=subprocess.PIPE, text=True
                )
                for number in range(WRITERS)
            ]
            results = [json.loads(process.communicate()[0]) for process in running]
            seconds = max(end for _, end, _, _ in results) - min(begun for begun, *_ in results)
            kept = len(list(made.Repository.open(repository.storage).ancestry(branch="main"))) - 2
            figures = {
                "commits per second": WRITERS * COMMITS / seconds,
                "attempts per commit": sum(attempts for _, _, attempts, _ in results) / (WRITERS * COMMITS),
                "commits in the history": kept,
            }
            print(made.__name__, json.dumps(figures), file=sys.stderr)
            return figures

        return job

    return prepare


def _row(name: str, title: str, side: Callable[[Package], Callable[[Path, Path], Job]], **more: Any) -> Row:
    return Row(
        name=name, title=title, ours=Side(title, side(_ours)), theirs=Side(title, side(_theirs)), **more
    )


ROWS = [
    _row("fork-dumps", f"a fork of {REFS:,} references: pickle", _dumps, cpu_ratio=10),
    _row("fork-loads", f"a fork of {REFS:,} references: unpickle", _loads, cpu_ratio=10),
    _row(
        "fork-merge",
        f"merge {FORKS} forks of {REFS:,} references each",
        _merge,
        cpu_ratio=4,
        check=_same_count,
    ),
    _row(
        "writers",
        f"{WRITERS} processes, {COMMITS} commits each, to their own part of one array of one branch",
        _writers,
        repeat=1,
    ),
]
