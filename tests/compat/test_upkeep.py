"""Both libraries expire, collect and count copies of a repository with the same result."""

from __future__ import annotations

import random
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.format.files import read_repo_info
from tests.support.compat.histories import random_history, storage
from tests.support.compat.official import needs_v2
from tests.support.format import golden

icechunk = pytest.importorskip("icechunk")
pytestmark = pytest.mark.compat

COUNTS = ("chunks_deleted", "manifests_deleted", "snapshots_deleted", "transaction_logs_deleted")
BYTES = ("native_bytes", "virtual_bytes", "inlined_bytes")


def upkeep(library: Any, folder: Path, expire: datetime, branches: bool, tags: bool) -> Any:
    """Expire and collect all garbage, and return the visible result."""
    repo = library.Repository.open(storage(library, folder))
    released = repo.expire_snapshots(expire, delete_expired_branches=branches, delete_expired_tags=tags)
    time.sleep(0.003)
    summary = repo.garbage_collect(datetime.now(UTC))
    stats = repo.chunk_storage_stats() if hasattr(repo, "chunk_storage_stats") else None
    return {
        "released": released,
        "deleted": [getattr(summary, count) for count in COUNTS],
        "stats": stats and [getattr(stats, kind) for kind in BYTES],
        "history": {b: [info.id for info in repo.ancestry(branch=b)] for b in repo.list_branches()},
        "tags": {tag: repo.lookup_tag(tag) for tag in repo.list_tags()},
        "pruned": _pruned(folder),
        "files": {
            str(path.relative_to(folder)) for path in folder.rglob("*/*") if path.parent.name != "overwritten"
        },
    }


def _pruned(folder: Path) -> dict[str, list[str]]:
    file = folder / "repo"
    infos = read_repo_info(file.read_bytes()).snapshots if file.exists() else ()
    return {str(info.id): [str(log) for log in info.pruned_ancestor_tx_logs] for info in infos}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_both_libraries_leave_the_same_objects_and_history(tmp_path: Path, version: int, seed: int) -> None:
    if version == 2 and not hasattr(icechunk, "SpecVersion"):
        pytest.skip("this release of the official library has no version 2 of the format")
    chance = random.Random(seed)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    times = random_history(icechunk if seed % 2 else icefloe, ours, version, chance)
    shutil.copytree(ours, theirs)
    expire = chance.choice(times)
    branches, tags = chance.random() < 0.5, chance.random() < 0.5

    found = upkeep(icefloe, ours, expire, branches, tags)

    assert found == upkeep(icechunk, theirs, expire, branches, tags)


@pytest.mark.parametrize("name", golden.NAMES)
def test_both_libraries_collect_the_same_objects_of_old_releases(tmp_path: Path, name: str) -> None:
    """Compare before and after the expiration of everything that can expire."""
    left = {}
    for library in (icefloe, icechunk):
        folder = golden.unpack(name, tmp_path / library.__name__) / "repo"
        if library is icechunk and (folder / "repo").exists() and not hasattr(icechunk, "SpecVersion"):
            pytest.skip("this release of the official library has no version 2 of the format")
        repo = library.Repository.open(storage(library, folder))
        if name.endswith("readonly"):
            repo.set_status(library.RepoStatus(library.RepoAvailability.online, None))
        counts = []
        for step in (None, datetime.now(UTC)):
            released = repo.expire_snapshots(step) if step else set()
            summary = repo.garbage_collect(datetime.now(UTC))
            counts.append((released, [getattr(summary, count) for count in COUNTS], _files(folder)))
        left[library] = counts

    assert left[icefloe] == left[icechunk]


def _files(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*/*") if path.is_file())
    return {str(path) for path in found if path.parts[0] != "overwritten"}


def test_collection_by_the_official_library_is_detected_in_version_1(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    random_history(icefloe, folder, 1, random.Random(3))
    repo = icefloe.Repository.open(storage(icefloe, folder))
    before = repo.lookup_branch("main")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[7] = 77
    time.sleep(0.003)
    collected = icechunk.Repository.open(storage(icechunk, folder)).garbage_collect(datetime.now(UTC))
    assert collected.chunks_deleted >= 1

    with pytest.raises(icefloe.errors.StorageError, match="of /a was deleted by a garbage collection"):
        session.commit("late")

    assert repo.lookup_branch("main") == before


def test_branch_files_rewritten_by_a_collection_accept_new_commits(tmp_path: Path) -> None:
    """In version 1, collections of icefloe append white space to ref files."""
    folder = tmp_path / "repo"
    random_history(icechunk, folder, 1, random.Random(4))
    icefloe.Repository.open(storage(icefloe, folder)).garbage_collect(datetime.now(UTC))
    assert (folder / "refs" / "branch.main" / "ref.json").read_bytes().endswith((b" ", b"\t"))

    repo = icechunk.Repository.open(storage(icechunk, folder))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[7] = 77
    tip = session.commit("theirs")
    repo.garbage_collect(datetime.now(UTC))

    assert icefloe.Repository.open(storage(icefloe, folder)).lookup_branch("main") == tip


def left(folder: Path) -> dict[str, set[str]]:
    """Return the file names in each of the four folders."""
    places = ("snapshots", "transactions", "manifests", "chunks")
    return {place: {path.name for path in (folder / place).iterdir()} for place in places}


def test_rewritten_orphan_snapshot_is_deleted_with_its_objects(tmp_path: Path) -> None:
    """In version 1, the rewritten snapshot file is newer than its objects and than the cutoff.

    The official library deletes the objects and leaves the file; icefloe later deletes both.
    """
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    first = tmp_path / "first"
    repo = icefloe.Repository.create(storage(icefloe, first), config=config, spec_version=1)
    for step, branch in enumerate(("main", "x", "x")):
        if branch not in repo.list_branches():
            repo.create_branch(branch, repo.lookup_branch("main"))
        session = repo.writable_session(branch)
        array = zarr.open_group(session.store).require_array("a", shape=(8,), chunks=(1,), dtype="i4")
        array[step] = step + 1
        tip = session.commit(f"step {step}")
    cutoff = datetime.now(UTC)
    time.sleep(0.02)  # file times have a resolution of up to ten milliseconds
    repo.expire_snapshots(cutoff)
    repo.delete_branch("x")
    second = shutil.copytree(first, tmp_path / "second")

    icechunk.Repository.open(storage(icechunk, second)).garbage_collect(cutoff)
    icefloe.Repository.open(storage(icefloe, first)).garbage_collect(cutoff)

    ours, theirs = left(first), left(second)
    assert tip in theirs["snapshots"]
    assert ours["snapshots"] == theirs["snapshots"]
    assert ours["transactions"] - theirs["transactions"] == {tip}
    assert [len(ours[place] - theirs[place]) for place in ("manifests", "chunks")] == [1, 2]

    time.sleep(0.003)
    for library, folder in ((icechunk, second), (icefloe, first)):
        library.Repository.open(storage(library, folder)).garbage_collect(datetime.now(UTC))
    assert left(first) == left(second)


@pytest.mark.parametrize("version", [1, 2])
def test_long_official_history_can_be_continued(tmp_path: Path, version: int) -> None:
    """Long lists of snapshots are encoded differently from short ones."""
    if version == 2 and not hasattr(icechunk, "SpecVersion"):
        pytest.skip("this release of the official library has no version 2 of the format")
    options = {"spec_version": version} if hasattr(icechunk, "SpecVersion") else {}
    theirs = icechunk.Repository.create(storage(icechunk, tmp_path), **options)
    for step in range(40):
        session = theirs.writable_session("main")
        zarr.open_group(session.store, mode="a").attrs["step"] = step
        session.commit(f"step {step}")
    line = [info.id for info in theirs.ancestry(branch="main")]

    repo = icefloe.Repository.open(storage(icefloe, tmp_path))
    repo.create_tag("here", line[3])
    session = repo.writable_session("main")
    zarr.open_group(session.store).attrs["step"] = 40
    tip = session.commit("step 40")

    theirs = icechunk.Repository.open(storage(icechunk, tmp_path))
    assert [info.id for info in theirs.ancestry(branch="main")] == [tip, *line]
    assert [info.id for info in theirs.ancestry(tag="here")] == line[3:]
    repo.retain(icefloe.RetentionPolicy(last=35))
    time.sleep(0.003)
    repo.garbage_collect(datetime.now(UTC))
    theirs = icechunk.Repository.open(storage(icechunk, tmp_path))
    assert [info.id for info in theirs.ancestry(branch="main")] == [tip, *line[:34], line[-1]]
    assert repo.verify("chunks").ok


@needs_v2
def test_official_ops_log_ends_at_a_deleted_backup(tmp_path: Path) -> None:
    config = icefloe.RepositoryConfig(num_updates_per_repo_info_file=3)
    ours = icefloe.Repository.create(storage(icefloe, tmp_path), config)
    for number in range(10):
        ours.create_tag(f"t{number}", ours.lookup_branch("main"))
    cutoff = list(ours.ops_log())[4].updated_at

    trim = ours.trim_ops_log(cutoff)

    theirs = icechunk.Repository.open(storage(icechunk, tmp_path))
    log = list(theirs.ops_log())
    assert [entry.backup_path for entry in log] == [entry.backup_path for entry in ours.ops_log()]
    assert len(log) == trim.entries_left < 11
    theirs.create_tag("later", theirs.lookup_branch("main"))
    theirs.garbage_collect(datetime.now(UTC))
    assert "later" in ours.list_tags()
