"""The official library reads, changes and collects repositories with packed manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from tests.support.compat.histories import storage
from tests.support.compat.official import needs_v2
from tests.support.histories import now

icechunk = pytest.importorskip("icechunk")
pytestmark = pytest.mark.compat

ARRAYS = {f"g{number % 3}/a{number}": number for number in range(12)}


@pytest.fixture(params=[1, pytest.param(2, marks=needs_v2)], ids=["v1", "v2"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Create a repository with 12 arrays of different ranks in one manifest."""
    config = icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=0, manifest=icefloe.ManifestConfig(pack_small_arrays=True)
    )
    repo = icefloe.Repository.create(storage(icefloe, tmp_path), config, spec_version=request.param)
    repo.save_config()
    session = repo.writable_session("main")
    for name, number in ARRAYS.items():
        rank = number % 3
        array = zarr.create_array(session.store, name=name, shape=(4,) * rank, chunks=(2,) * rank, dtype="i4")
        array[...] = np.full((4,) * rank, number + 1)
    session.commit("first")
    assert len(list((tmp_path / "manifests").iterdir())) == 1
    return tmp_path


def open_with(library: Any, folder: Path) -> Any:
    return library.Repository.open(storage(library, folder))


def write(library: Any, folder: Path, name: str, value: int) -> None:
    session = open_with(library, folder).writable_session("main")
    zarr.open_array(session.store, path=name)[...] = value
    session.commit(f"write {name}")


def check(folder: Path, **changed: int) -> None:
    """Compare all values, read by both libraries."""
    for library in (icefloe, icechunk):
        store = open_with(library, folder).readonly_session("main").store
        for name, number in ARRAYS.items():
            value = changed.get(name.replace("/", "_"), number + 1)
            assert (np.asarray(zarr.open_array(store, path=name, mode="r")[...]) == value).all()


def test_official_library_reads_packs(folder: Path) -> None:
    check(folder)


def test_both_libraries_commit_in_turns(folder: Path) -> None:
    write(icechunk, folder, "g1/a1", 50)
    write(icefloe, folder, "g2/a2", 51)
    write(icechunk, folder, "g2/a2", 52)
    write(icefloe, folder, "g1/a1", 53)

    check(folder, g1_a1=53, g2_a2=52)
    assert open_with(icefloe, folder).verify("chunks").ok


@pytest.mark.parametrize("first", [icefloe, icechunk], ids=["icefloe", "icechunk"])
def test_both_libraries_collect_packs(folder: Path, first: Any) -> None:
    for step, library in enumerate((icefloe, icechunk, icefloe)):
        write(library, folder, "g1/a1", 60 + step)
        write(library, folder, f"g{step}/a{3 + step}", 70 + step)
    for library in (first, icefloe, icechunk):
        repo = open_with(library, folder)
        repo.expire_snapshots(now())
        repo.garbage_collect(now())
        check(folder, g1_a1=62, g0_a3=70, g1_a4=71, g2_a5=72)
    assert open_with(icefloe, folder).verify("chunks").ok


def test_official_session_rebases_over_a_rewritten_pack(folder: Path) -> None:
    session = open_with(icechunk, folder).writable_session("main")
    zarr.open_array(session.store, path="g1/a1")[...] = 80
    write(icefloe, folder, "g2/a2", 81)

    session.commit("theirs", rebase_with=icechunk.ConflictDetector())

    check(folder, g1_a1=80, g2_a2=81)
