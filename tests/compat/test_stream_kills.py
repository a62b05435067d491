"""A killed stream with commits of the official library in between (`make torture`).

Commits of the official library into a folder are not safe beside other writers, so they do not overlap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import icechunk
import pytest
import zarr

import icefloe
from tests.support.spark.stream_kills import DRIVER_KILLS, check_stream_survives_kills

pytestmark = [pytest.mark.compat, pytest.mark.spark, pytest.mark.cluster]


class OfficialWriter:
    """A writer that adds a group with each commit."""

    def __init__(self) -> None:
        self.commits = 0

    def commit(self, path: Path) -> None:
        """Commit a group with the official library, between two runs of a stream."""
        repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
        session = repo.writable_session("main")
        root: Any = zarr.open_group(session.store, mode="a")
        root.create_group(f"official/{self.commits}")
        session.commit(f"group {self.commits}")
        self.commits += 1


def test_stream_survives_kills_between_commits_of_the_official_library(tmp_path: Path) -> None:
    writer = OfficialWriter()

    check_stream_survives_kills(tmp_path, DRIVER_KILLS, writer.commit)

    session = icefloe.Repository.open(
        icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    ).readonly_session("main")
    groups = zarr.open_group(session.store, path="official", mode="r")
    assert len(list(groups.group_keys())) == writer.commits == DRIVER_KILLS
