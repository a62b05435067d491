"""A repository for tests of commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from tests.support.terminal import Terminal


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """Return a repository with three commits: nothing, an array, other values; a tag on the second."""
    place = str(tmp_path / "repo")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(place))
    session = repo.writable_session("main")
    root = zarr.group(session.store, attributes={"title": "a test"})
    root.create_group("air").create_array(
        "t2m",
        data=np.arange(12, dtype="f4").reshape(3, 4),
        chunks=(1, 4),
        dimension_names=("time", "x"),
        attributes={"units": "K"},
    )
    repo.create_tag("v1", session.commit("add t2m", {"by": "me"}))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="air/t2m")[0] = -1
    session.commit("correct t2m")
    return Terminal(capsys, place)
