"""History, differences and files as both the official package and icefloe report them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe

official: Any = pytest.importorskip("icechunk")

pytestmark = pytest.mark.compat


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """Create a repository with the official package, and open it with both."""
    if official.__version__ != "2.3.0":
        pytest.skip("compares with release 2.3.0")
    theirs = official.Repository.create(
        official.local_filesystem_storage(str(tmp_path)), spec_version=request.param
    )
    fill(theirs)
    return theirs, icefloe.open(str(tmp_path))


def fill(repo: Any) -> None:
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a", attributes={"title": "x"})
    array = root.create_array(
        "a", shape=(40, 3), chunks=(2, 3), dtype="i4", dimension_names=("x", None), fill_value=-1
    )
    array[...] = 7
    root.create_array("z", data=np.arange(3))
    root.create_group("g")
    first = session.commit("first\nwith a second line", {"n": 1, "deep": {"list": [1.5, None]}})
    repo.create_branch("dev", first)
    repo.create_tag("v1", first)
    repo.create_tag("gone", first)
    repo.delete_tag("gone")
    session = repo.writable_session("main")
    group: Any = zarr.open_group(session.store)
    group["a"][0, 0] = 9
    group["g"].attrs["k"] = 1
    del group["z"]
    session.commit("second")
    repo.reset_branch("dev", first)
    if repo.spec_version == 2:
        fill_v2(repo)


def fill_v2(repo: Any) -> None:
    session = repo.rearrange_session("main")
    session.move("/g", "/h")
    session.commit("move")
    repo.set_metadata({"a": {"b": [1, None]}})
    repo.save_config()
    repo.set_feature_flag("create_tag", False)
    repo.set_feature_flag("create_tag", None)
    session = repo.rearrange_session("main")
    session.move("/h", "/i")
    session.amend("move further")
    session = repo.writable_session("dev")
    zarr.open_group(session.store).create_group("aside")
    session.flush("aside")
    status = official.RepoAvailability.read_only
    repo.set_status(official.RepoStatus(status, datetime(2020, 1, 1, tzinfo=UTC), "because"))
    repo.set_status(official.RepoStatus(official.RepoAvailability.online))


def snapshots(repo: Any) -> list[str]:
    tips = {repo.lookup_branch(name) for name in repo.list_branches()}
    return sorted({info.id for tip in tips for info in repo.ancestry(snapshot_id=tip)})


def facts(value: Any) -> Any:
    """Return the fields of a public value of either package."""
    names = {
        "SnapshotInfo": ("id", "parent_id", "written_at", "message", "metadata"),
        "ManifestFileInfo": ("id", "size_bytes", "num_chunk_refs"),
        "FeatureFlag": ("id", "name", "default_enabled", "setting", "enabled"),
        "RepoStatus": ("availability", "set_at", "limited_availability_reason"),
        "Update": ("kind", "updated_at", "backup_path"),
        "Diff": tuple(item.name for item in fields(icefloe.Diff)),
    }
    name = type(value).__name__
    if name in names:
        return {field: facts(getattr(value, field)) for field in names[name]}
    if hasattr(icefloe.UpdateType, name):
        items = fields(getattr(icefloe.UpdateType, name))
        return name, {item.name: facts(getattr(value, item.name)) for item in items}
    return int(value) if name == "RepoAvailability" else value


BOTH: dict[str, Callable[[Any], Any]] = {
    "branches": lambda repo: repo.list_branches(),
    "tags": lambda repo: repo.list_tags(),
    "ancestry": lambda repo: [facts(info) for info in repo.ancestry(branch="main")],
    "manifests": lambda repo: [facts(i) for id in snapshots(repo) for i in repo.list_manifest_files(id)],
    "snapshot files": lambda repo: [repo.inspect_snapshot(id) for id in snapshots(repo)],
    "manifest files": lambda repo: [
        repo.inspect_manifest(info.id) for id in snapshots(repo) for info in repo.list_manifest_files(id)
    ],
    "diff": lambda repo: facts(repo.diff(from_tag="v1", to_branch="main")),
    "diff as text": lambda repo: str(repo.diff(from_tag="v1", to_branch="main")),
    "snapshot at a time": lambda repo: (
        repo.readonly_session(
            "main", as_of=repo.lookup_snapshot(repo.lookup_tag("v1")).written_at
        ).snapshot_id
    ),
    "lines of the graph": lambda repo: {
        line.strip(" ●│─╯┼┴") for line in str(repo.ancestry_graph(plain=True)).splitlines()
    },
    "node ids": lambda repo: repo.readonly_session("main").get_node_id("/a"),
    "effective storage": lambda repo: repo.config.storage.retries.max_tries,
}

V2: dict[str, Callable[[Any], Any]] = {
    "ops log": lambda repo: [facts(update) for update in repo.ops_log()],
    "repo info file": lambda repo: repo.inspect_repo_info(),
    "logs": lambda repo: [repo.inspect_transaction_log(id) for id in snapshots(repo)],
    "status": lambda repo: facts(repo.status),
    "flags": lambda repo: sorted(map(str, map(facts, repo.feature_flags()))),
    "metadata": lambda repo: repo.metadata,
}


@pytest.mark.parametrize("question", [*BOTH, *V2])
def test_both_packages_report_the_same_history(pair: tuple[Any, Any], question: str) -> None:
    theirs, ours = pair
    if question in V2 and ours.spec_version == 1:
        pytest.skip("the first version of the format has no such thing")
    ask = (BOTH | V2)[question]

    assert ask(ours) == ask(theirs)


def test_reprs_of_updates_are_equal(pair: tuple[Any, Any]) -> None:
    theirs, ours = pair
    if ours.spec_version == 1:
        pytest.skip("the first version of the format has no ops log")
    changed = official.UpdateType.RepoStatusChanged

    expected = [str(update.kind) for update in theirs.ops_log() if not isinstance(update.kind, changed)]

    found = [update.kind for update in ours.ops_log()]
    texts = [str(kind) for kind in found if not isinstance(kind, icefloe.UpdateType.RepoStatusChanged)]
    assert [text.replace("icefloe", "icechunk") for text in texts] == expected
