"""Benchmark maintenance: gc, expiration, verification and upgrade of repositories with a long history."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from benchmarks.harness import Job, Row, Side
from icefloe._internal.ids import ChunkId, encode_column
from icefloe.format.manifest import ArrayManifest

SNAPSHOTS = 3_000
CHUNKS_EACH = 100
KEPT_SHARE = 0.5
OLD_SNAPSHOTS = 1_000
REFERENCES = 10_000_000
INCREMENTS = 100
INCREMENT = 10_000
LATER = datetime(2999, 1, 1, tzinfo=UTC)
_COUNTS = ("chunks_deleted", "manifests_deleted", "snapshots_deleted", "transaction_logs_deleted")


def _start(folder: Path, chunks: int, version: int = 2) -> icefloe.Repository:
    storage = icefloe.local_filesystem_storage(str(folder))
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(storage, config, spec_version=version)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(chunks,), chunks=(1,), dtype="i4", compressors=None)
    session.commit("array")
    return repo


def _commit_chunks(repo: icefloe.Repository, folder: Path, count: int) -> None:
    """Write a commit that replaces every chunk, without using a library."""
    session = repo.writable_session("main")
    workspace = session._workspace
    ids = np.frombuffer(b"".join(ChunkId.random() for _ in range(count)), np.uint8).reshape(-1, 12)
    for name in encode_column(ids):
        (folder / "chunks" / name).write_bytes(b"abcd")
    refs = ArrayManifest.native(np.arange(count, dtype=np.uint32)[:, None], ids, np.full(count, 4))
    workspace.put_refs(workspace.array("/a"), refs)
    session.commit("more")


def setup_long_history(folder: Path) -> None:
    """Create `SNAPSHOTS` commits of `CHUNKS_EACH` chunks, half of them expired but not collected."""
    repo = _start(folder / "repo", CHUNKS_EACH)
    (folder / "repo" / "chunks").mkdir(exist_ok=True)
    middle = datetime.now(UTC)
    for step in range(SNAPSHOTS):
        if step == int(SNAPSHOTS * (1 - KEPT_SHARE)):
            middle = datetime.now(UTC)
        _commit_chunks(repo, folder / "repo", CHUNKS_EACH)
    (folder / "cutoff").write_text(middle.isoformat())
    shutil.copytree(folder / "repo", folder / "expired", copy_function=os.link)
    (folder / "expired" / "repo").unlink()
    shutil.copy2(folder / "repo" / "repo", folder / "expired" / "repo")
    _open(icefloe, folder / "expired").expire_snapshots(middle)


def _library(name: str) -> Any:
    """Import a package with its modules: ours imports most of them on first use."""
    if name == "icechunk":
        import icechunk

        return icechunk
    _ = icefloe.Repository, icefloe.local_filesystem_storage
    return icefloe


def _open(library: Any, folder: Path) -> Any:
    return library.Repository.open(library.local_filesystem_storage(str(folder)))


def _linked(source: Path, scratch: Path) -> Path:
    """Copy a repository with hard links, so that deletions do not affect the original."""
    target = scratch / "repo"
    # In a separate process, because its memory does not belong to the job.
    subprocess.run([sys.executable, "-c", _LINK, str(source), str(target)], check=True)
    (target / "repo").unlink()
    shutil.copy2(source / "repo", target / "repo")
    return target


_LINK = "import os, shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2], copy_function=os.link)"


def _side(name: str, what: str) -> Side:
    def prepare(folder: Path, scratch: Path) -> Job:
        library = _library(name)
        place = folder / "expired" if what == "gc-dry" else _linked(folder / _SOURCE[what], scratch)
        cutoff = datetime.fromisoformat((folder / "cutoff").read_text())

        def job() -> Any:
            repo = _open(library, place)
            if what == "expire":
                return len(repo.expire_snapshots(cutoff))
            summary = repo.garbage_collect(LATER, dry_run=what == "gc-dry")
            return [getattr(summary, count) for count in _COUNTS]

        return job

    return Side("open; garbage_collect" if what != "expire" else "open; expire_snapshots", prepare)


_SOURCE = {"gc": "expired", "expire": "repo"}


def setup_many_references(folder: Path) -> None:
    """Create an array of `REFERENCES` native references, a million per manifest, without chunk objects."""
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(folder / "repo")),
        icefloe.RepositoryConfig(
            manifest=icefloe.ManifestConfig(
                splitting=icefloe.ManifestSplittingConfig.from_dict(
                    {
                        icefloe.ManifestSplitCondition.AnyArray(): {
                            icefloe.ManifestSplitDimCondition.Any(): 1_000_000
                        }
                    }
                )
            )
        ),
    )
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(REFERENCES,), chunks=(1,), dtype="i4", compressors=None)
    workspace = session._workspace
    ids = np.random.default_rng(1).integers(0, 256, (REFERENCES, 12), np.uint8)
    ids[:, -1] &= 0xFE
    refs = ArrayManifest.native(np.arange(REFERENCES, dtype=np.uint32)[:, None], ids, np.full(REFERENCES, 4))
    workspace.put_refs(workspace.array("/a"), refs)
    session.commit("references")


def setup_collected(folder: Path) -> None:
    """Create a million native references in many commits, collect garbage, and commit one more chunk.

    The chunk objects do not exist: listing them takes the same time in any collection.
    """
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    session = repo.writable_session("main")
    for number in range(INCREMENTS):
        zarr.create_array(session.store, name=f"a{number}", shape=(INCREMENT,), chunks=(1,), dtype="i4")
    session.commit("arrays")
    ids = np.random.default_rng(1).integers(0, 256, (INCREMENTS, INCREMENT, 12), np.uint8)
    ids[:, :, -1] &= 0xFE
    for number in range(INCREMENTS):
        session = repo.writable_session("main")
        workspace = session._workspace
        coords = np.arange(INCREMENT, dtype=np.uint32)[:, None]
        refs = ArrayManifest.native(coords, ids[number], np.full(INCREMENT, 4))
        workspace.put_refs(workspace.array(f"/a{number}"), refs)
        session.commit(f"references of a{number}")
    shutil.copytree(folder / "repo", folder / "first")
    repo.garbage_collect(LATER)
    for each in (folder / "repo", folder / "first"):
        session = _open(icefloe, each).writable_session("main")
        zarr.open_array(session.store, path="a0")[0] = 5
        session.commit("one more chunk")


def _collect_again(name: str) -> Side:
    def prepare(folder: Path, scratch: Path) -> Job:
        library, place = _library(name), scratch / "repo"
        shutil.copytree(folder / ("repo" if name == "icefloe" else "first"), place)

        def job() -> Any:
            summary = _open(library, place).garbage_collect(LATER)
            return [getattr(summary, count) for count in _COUNTS]

        return job

    return Side("open; garbage_collect", prepare)


def _verify(folder: Path, _: Path) -> Job:
    def job() -> Any:
        report = _open(icefloe, folder / "repo").verify("graph", max_concurrent_requests=2)
        assert report.ok
        assert report.references == REFERENCES
        return report.references

    return job


def setup_old_history(folder: Path) -> None:
    """Create `OLD_SNAPSHOTS` commits in version 1 of the format."""
    repo = _start(folder / "repo", 10, version=1)
    (folder / "repo" / "chunks").mkdir(exist_ok=True)
    for _ in range(OLD_SNAPSHOTS):
        _commit_chunks(repo, folder / "repo", 10)


def _upgrade_side(name: str) -> Side:
    def prepare(folder: Path, scratch: Path) -> Job:
        library = _library(name)
        place = scratch / "repo"
        shutil.copytree(folder / "repo", place)

        def job() -> Any:
            repo = library.upgrade_icechunk_repository(_open(library, place), dry_run=False)
            return len(list(repo.ancestry(branch="main")))

        return job

    return Side("open; upgrade_icechunk_repository", prepare)


def _check(ours: Any, theirs: Any) -> None:
    assert ours == theirs


def _pair(name: str, title: str, **targets: Any) -> Row:
    return Row(
        name=name,
        title=title,
        ours=_side("icefloe", name),
        theirs=_side("icechunk", name),
        setup=setup_long_history,
        check=_check,
        repeat=3,
        **targets,
    )


_SIZE = f"{SNAPSHOTS:,} snapshots and {SNAPSHOTS * CHUNKS_EACH:,} chunk objects, half of them garbage"

ROWS = [
    _pair("gc-dry", f"gc, dry run: {_SIZE}", cpu_ratio=1, memory_ratio=0.5),
    _pair("gc", f"gc: {_SIZE}", cpu_ratio=1, memory_ratio=0.5),
    Row(
        name="gc-again",
        title="gc of a million references, 100 manifests and 102 commits, after one more commit",
        ours=_collect_again("icefloe"),
        theirs=_collect_again("icechunk"),
        cpu_ratio=5,
        setup=setup_collected,
        check=_check,
        repeat=3,
    ),
    _pair("expire", f"expire half of {SNAPSHOTS:,} snapshots", cpu_ratio=1),
    Row(
        name="verify-10M",
        title="verify at the level graph: 10M references in 10 manifests",
        ours=Side("open; read all manifests and check every reference", _verify),
        memory_bytes=2 * 10**9,
        setup=setup_many_references,
        repeat=2,
    ),
    Row(
        name="upgrade",
        title=f"upgrade {OLD_SNAPSHOTS:,} snapshots from version 1",
        ours=_upgrade_side("icefloe"),
        theirs=_upgrade_side("icechunk"),
        cpu_ratio=1,
        setup=setup_old_history,
        check=_check,
        repeat=3,
    ),
]
