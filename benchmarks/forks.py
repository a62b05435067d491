"""Benchmark forks: pickling, merging, and many writers on one branch."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.harness import Job, Row, Side

REFS = 125_000
TIMES = 20
"""Number of repetitions: one pickling takes only a millisecond or two."""
FORKS = 8
WRITERS = 16
COMMITS = 8
"""Number of commits per writer."""
BUCKET = "s3://my-bucket/"
Package = Callable[[], Any]


def _ours() -> Any:
    import icefloe

    return icefloe


def _theirs() -> Any:
    import icechunk

    return icechunk


def _session(package: Any, folder: Path) -> Any:
    """Create a repository, and a session with an array for all references."""
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
    """Create a fork that has set the references of one part of the array, a hundred per file."""
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
        return lambda: [pickle.dumps(fork) for _ in range(TIMES)]

    return prepare


def _loads(package: Package) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        pickled = pickle.dumps(_written_fork(_session(package(), scratch), 0))
        return lambda: [pickle.loads(pickled) for _ in range(TIMES)]

    return prepare


def _merge(package: Package) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        session = _session(package(), scratch)
        forks = [pickle.loads(pickle.dumps(_written_fork(session, part))) for part in range(FORKS)]

        def job() -> Any:
            session.merge(*forks)
            if package is _ours:  # which sorts as late as possible
                workspace = session._workspace
                workspace.changes.delta(workspace.array("/a")).resolve()
            return session

        return job

    return prepare


def _same_count(ours: Any, theirs: Any) -> None:
    counts = [len(session.status().updated_chunks["/a"]) for session in (ours, theirs)]
    assert counts == [FORKS * REFS] * 2


WRITER = """
import importlib, json, sys, time
import zarr
name, folder, number, commits = *sys.argv[1:3], *map(int, sys.argv[3:])
package = importlib.import_module(name)
package.set_logs_filter("error")
def commit(repository, at):
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[at : at + 10] = number + 1
    session.commit(f"{number} {at}", rebase_with=package.ConflictDetector())
    tip = next(iter(repository.ancestry(snapshot_id=session.snapshot_id)))
    return 1 + tip.metadata["__icechunk"]["rebase_attempts"]
practice = package.Repository.create(package.in_memory_storage())
session = practice.writable_session("main")
zarr.create_array(session.store, name="a", shape=(100,), chunks=(10,), dtype="i4")
session.commit("array")
commit(practice, 0)
repository = package.Repository.open(package.local_filesystem_storage(folder))
print("ready", flush=True)
sys.stdin.readline()
begun, used, tries = time.time(), time.process_time(), []
for turn in range(commits):
    try:
        tries.append(commit(repository, number * 100 + turn * 10))
    except package.IcechunkError:  # refused, or acknowledged and lost
        pass
print(json.dumps([begun, time.time(), tries, time.process_time() - used]))
"""


def _writers(package: Package) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        made = package()
        repository = made.Repository.create(made.local_filesystem_storage(str(scratch)))
        session = repository.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(WRITERS * 100,), chunks=(10,), dtype="i4")
        session.commit("array")
        command = [sys.executable, "-c", WRITER, made.__name__, str(scratch)]
        running = [
            subprocess.Popen(
                [*command, str(number), str(COMMITS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(WRITERS)
        ]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

        def job() -> dict[str, float]:
            for process in running:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            results = [json.loads(process.communicate()[0]) for process in running]
            seconds = max(end for _, end, _, _ in results) - min(begun for begun, *_ in results)
            kept = len(list(made.Repository.open(repository.storage).ancestry(branch="main"))) - 2
            tries = [each for _, _, some, _ in results for each in some]
            figures = {
                "commits in the history": kept,
                "of": WRITERS * COMMITS,
                "per second": round(kept / seconds, 2),
                "attempts per commit": round(sum(tries) / len(tries), 2),
                "at most": max(tries),
                "CPU s per commit": round(sum(cpu for *_, cpu in results) / kept, 3),
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
    _row("fork-dumps", f"a fork of {REFS:,} references: pickle it {TIMES} times", _dumps, cpu_ratio=10),
    _row("fork-loads", f"a fork of {REFS:,} references: unpickle it {TIMES} times", _loads, cpu_ratio=10),
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
