"""Collections that remember reachable objects, in repositories that the official library changes as well."""

from __future__ import annotations

import random
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.maintenance import reachable_index
from tests.support.compat.histories import storage
from tests.support.compat.official import needs_v2
from tests.support.histories import now

icechunk = pytest.importorskip("icechunk")
pytestmark = [pytest.mark.compat, needs_v2]


def open_with(library: Any, folder: Path) -> Any:
    return library.Repository.open(storage(library, folder))


def write(library: Any, folder: Path, value: int) -> None:
    session = open_with(library, folder).writable_session("main")
    zarr.open_array(session.store, path="a")[value % 8] = value
    session.commit(f"write {value}")


def read(library: Any, folder: Path) -> list[int]:
    store = open_with(library, folder).readonly_session("main").store
    return list(np.asarray(zarr.open_array(store, path="a", mode="r")[:]).tolist())


@pytest.mark.parametrize("seed", range(4))
def test_incremental_collection_equals_a_full_collection(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachable_index, "_FEW_FILES", 0)
    rng, folder, full = random.Random(seed), tmp_path / "repo", tmp_path / "full"
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(storage(icefloe, folder), config, spec_version=2)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), dtype="i4")
    session.commit("make a")
    for step in range(8):
        write(icefloe, folder, step + 1)
        for library in rng.choices([icefloe, icechunk], k=rng.randrange(3)):
            match rng.randrange(4):
                case 0:
                    open_with(library, folder).expire_snapshots(datetime.now(UTC))
                case 1:
                    open_with(library, folder).garbage_collect(now())
                case _:
                    write(library, folder, 10 * step + rng.randrange(8))
        moment, wanted = now(), read(icechunk, folder)
        shutil.copytree(folder, full)
        (full / reachable_index.PATH).unlink(missing_ok=True)

        summary = open_with(icefloe, folder).garbage_collect(moment)

        # The copies are younger than the moment, so only a dry run with a later one compares.
        expected = open_with(icefloe, full).garbage_collect(now(), dry_run=True)
        assert summary.chunks_deleted == expected.chunks_deleted
        assert summary.manifests_deleted == expected.manifests_deleted
        assert summary.snapshots_deleted == expected.snapshots_deleted
        assert read(icechunk, folder) == read(icefloe, folder) == wanted
        assert open_with(icechunk, folder).garbage_collect(now(), dry_run=True).chunks_deleted == 0
        shutil.rmtree(full)
