"""The official package continues repositories of icefloe: it commits, amends, expires and collects.

Afterwards all values are unchanged, and icefloe decodes the files of the official package.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe._internal.ids import SnapshotId
from icefloe.format.spec import V1, V2, Spec
from tests.support.compat import official, samples
from tests.support.compat.decoded import Folder, assert_seen_alike
from tests.support.compat.repository_writer import (
    ArrayInput,
    GroupInput,
    NodeInput,
    RepositoryWriter,
    local_container,
)

pytestmark = pytest.mark.compat

SPECS = [pytest.param(V1, id="v1"), pytest.param(V2, id="v2", marks=official.needs_v2)]


class Started:
    """A repository written by icefloe with some history, open in the official package."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self.writer = RepositoryWriter(folder / "repo", spec, layout="together")
        self.folder = self.writer.folder
        self.nodes: list[NodeInput] = samples.tree()
        self.first = self.writer.commit("first", [GroupInput("/"), GroupInput("/g")])
        self.second = self.writer.commit("second", self.nodes[:6], metadata=samples.METADATA)
        self.third = self.writer.commit("third", self.nodes)
        self.writer.create_tag("kept", self.second)
        self.writer.create_branch("side", self.first)
        self.writer.finish(local_container(self.writer.virtual_prefix))
        self.repository = self.open()

    def open(self) -> Any:
        """Open the repository without caches."""
        return official.open_repository(self.folder, (self.writer.virtual_prefix,))

    def commit_change(self, **options: Any) -> str:
        """Change one chunk and add one array with the official package."""
        session = self.repository.writable_session("main")
        root: Any = zarr.open_group(session.store, mode="r+")
        root["g/native"][0, 0] = -7
        root.create_array("theirs", shape=(4,), chunks=(2,), dtype="i8")[:] = np.arange(4)
        return str(session.commit("theirs", **options))

    def expected(self) -> dict[str, Any]:
        """Return the tree after `commit_change`."""
        changed = [node for node in self.nodes if node.path != "/g/native"]
        array = next(node for node in self.nodes if node.path == "/g/native")
        assert isinstance(array, ArrayInput)
        data = array.data.copy()
        data[0, 0] = -7
        changed.append(ArrayInput(array.path, data, array.chunks, "native", array.attributes, ("x", "y")))
        return samples.expected_tree([*changed, ArrayInput("/theirs", np.arange(4, dtype="int64"), (2,))])


@pytest.fixture(params=SPECS)
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Started:
    return Started(tmp_path, request.param)


def test_official_package_commits_to_our_repository(started: Started) -> None:
    tip = started.commit_change(metadata={"by": "official"})

    repository = started.open()
    assert official.tree(repository, tip) == started.expected()
    assert official.tree(repository, str(started.third)) == samples.expected_tree(started.nodes)
    changes = official.diff(repository, str(started.third), tip)
    assert changes["new_arrays"] == ["/theirs"]
    assert changes["updated_chunks"]["/g/native"] == [(0, 0)]
    assert [line[0] for line in official.ancestry(repository, tip)][:2] == [tip, str(started.third)]
    assert_seen_alike(started.folder, repository)


def test_official_package_changes_tags_and_branches_of_our_repository(started: Started) -> None:
    repository = started.repository
    repository.create_tag("new", snapshot_id=str(started.third))
    repository.delete_tag("kept")
    repository.create_branch("other", snapshot_id=str(started.second))
    repository.reset_branch("side", str(started.third))
    repository.delete_branch("side")

    repository = started.open()
    assert official.history(repository)["tags"] == {"new": str(started.third)}
    assert official.history(repository)["branches"] == {
        "main": str(started.third),
        "other": str(started.second),
    }
    assert_seen_alike(started.folder, repository)


def test_official_package_deletes_and_resizes_our_arrays(started: Started) -> None:
    session = started.repository.writable_session("main")
    root: Any = zarr.open_group(session.store, mode="r+")
    del root["g/mixed"]
    root["g/native"].resize((3, 7))
    tip = session.commit("smaller")

    repository = started.open()
    tree = official.tree(repository, tip)
    assert "/g/mixed" not in tree
    array = next(node for node in started.nodes if node.path == "/g/native")
    assert isinstance(array, ArrayInput)
    assert tree["/g/native"]["data"] == official.digest(array.data[:3])
    assert_seen_alike(started.folder, repository)


def test_official_package_rewrites_our_manifests(started: Started) -> None:
    tip = started.repository.rewrite_manifests("rewritten", branch="main")

    repository = started.open()
    assert official.tree(repository, tip) == samples.expected_tree(started.nodes)
    assert_seen_alike(started.folder, repository)


def test_official_package_expires_and_collects_our_snapshots(started: Started) -> None:
    tip = started.commit_change()
    started.repository.delete_tag("kept")
    started.repository.delete_branch("side")
    between = started.writer.infos[started.third].flushed_at_us - 500_000
    old = datetime.fromtimestamp(between / 1e6, UTC)
    soon = datetime.now(UTC) + timedelta(days=1)

    expired = started.open().expire_snapshots(older_than=old)
    summary = started.open().garbage_collect(soon)

    assert expired == {str(started.first), str(started.second)}
    assert summary.snapshots_deleted == 2
    repository = started.open()
    assert official.tree(repository, tip) == started.expected()
    assert official.tree(repository, str(started.third)) == samples.expected_tree(started.nodes)
    assert len(official.ancestry(repository, tip)) == 3
    kept = set(Folder(started.folder).ids("snapshots"))
    assert {tip, str(started.third)} <= kept
    assert not {str(started.first), str(started.second)} & kept
    assert_seen_alike(started.folder, repository)


@official.needs_v2
def test_official_package_amends_our_commit(tmp_path: Path) -> None:
    started = Started(tmp_path, V2)
    session = started.repository.writable_session("main")
    root: Any = zarr.open_group(session.store, mode="r+")
    root["g/native"][0, 0] = -7
    tip = session.amend("amended", metadata={"n": 1})

    repository = started.open()
    changes = official.diff(repository, str(started.second), tip)
    assert "/rank-6" in changes["new_arrays"]
    assert changes["updated_chunks"]["/g/native"] == [(0, 0)]
    assert official.ancestry(repository, tip)[1][0] == str(started.second)
    assert_seen_alike(started.folder, repository)


@official.needs_v2
def test_official_package_moves_our_nodes(tmp_path: Path) -> None:
    started = Started(tmp_path, V2)
    session = started.repository.rearrange_session("main")
    session.move("/g", "/moved")
    tip = session.commit("moved")

    repository = started.open()
    moved = {
        path.replace("/g", "/moved", 1): node
        for path, node in samples.expected_tree(started.nodes).items()
        if path.startswith("/g")
    }
    assert moved.items() <= official.tree(repository, tip).items()
    assert_seen_alike(started.folder, repository)


@official.needs_v2
def test_official_package_changes_our_repo_info_file(tmp_path: Path) -> None:
    started = Started(tmp_path, V2)
    started.repository.set_metadata(samples.METADATA)
    started.repository.set_feature_flag("move_node", False)
    started.repository.save_config()

    repository = started.open()
    assert repository.get_metadata() == samples.METADATA
    info = Folder(started.folder).repo_info()
    assert info.metadata == samples.METADATA
    assert info.disabled_feature_flags == (3,)
    assert_seen_alike(started.folder, repository)


@official.needs_v2
def test_official_package_migrates_our_v1_repository(tmp_path: Path) -> None:
    started = Started(tmp_path, V1)
    official.icechunk.upgrade_icechunk_repository(
        started.repository, dry_run=False, delete_unused_v1_files=True
    )

    repository = started.open()
    assert official.has_repo_info(repository)
    assert official.tree(repository, str(started.third)) == samples.expected_tree(started.nodes)
    started.repository = repository
    tip = started.commit_change()
    assert official.tree(started.open(), tip) == started.expected()
    assert SnapshotId.parse(tip) in {info.id for info in Folder(started.folder).repo_info().snapshots}
    assert_seen_alike(started.folder, started.open())
