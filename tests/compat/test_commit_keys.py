"""The official library keeps commit keys when it reads, rebases, expires and collects."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from tests.support.compat.official import icechunk

pytestmark = pytest.mark.compat


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    place = str(tmp_path / "repo")
    if request.param == 2 and not hasattr(icechunk, "SpecVersion"):
        pytest.skip("this icechunk knows version 1 of the format only")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(place), spec_version=request.param)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), dtype="i4", fill_value=0)
    session.commit("array")
    return place


def job(folder: str, value: int) -> str | None:
    """Write a value with a fixed commit key."""
    session = icefloe.Repository.open(icefloe.local_filesystem_storage(folder)).writable_session("main")
    zarr.open_array(session.store, path="a")[0] = value
    return session.commit_once("job", key=icefloe.CommitKey("é/x", "3"))


def test_official_library_keeps_commit_keys(folder: str) -> None:
    official: Any = icechunk.Repository.open(icechunk.local_filesystem_storage(folder))
    session = official.writable_session("main")
    zarr.open_array(session.store, path="a")[5] = 5
    assert job(folder, 1) is not None

    session.commit("official", rebase_with=icechunk.ConflictDetector())
    official.expire_snapshots(older_than=datetime.now(UTC))
    official.garbage_collect(datetime.now(UTC))

    assert job(folder, 2) is None
    root = zarr.open_group(official.readonly_session("main").store, mode="r")
    members = dict(root.members(max_depth=None))
    assert set(members) == {"a", "_icefloe", "_icefloe/keys", "_icefloe/keys/%C3%A9%2Fx"}
    assert root["a"][:].tolist() == [1, 0, 0, 0, 0, 5, 0, 0]  # type: ignore[index, union-attr]
