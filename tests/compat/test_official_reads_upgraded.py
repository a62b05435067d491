"""The official package reads every snapshot of an upgraded repository, and can write to it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe.legacy.upgrade import migrate
from icefloe.repository import Repository
from icefloe.storage import local_filesystem_storage
from tests.support.compat.official import icechunk, needs_v2, open_repository
from tests.support.format import golden
from tests.support.legacy.contents import make, values
from tests.support.legacy.locations import present_id
from tests.support.legacy.repositories import FORMATS, write_older

pytestmark = [
    pytest.mark.compat,
    needs_v2,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]

FIXTURES = os.environ.get("ICEFLOE_OLDER_FIXTURES", "")


def check_refs(repo: Any, expected: Any) -> None:
    """Check that branches and tags equal those of the source."""
    assert {n: repo.lookup_branch(n) for n in repo.list_branches()} == {
        n: present_id(id) for n, id in expected["branches"].items()
    }
    assert {n: repo.lookup_tag(n) for n in repo.list_tags()} == {
        n: present_id(id) for n, id in expected["tags"].items()
    }


def check_snapshots(repo: Any, expected: Any) -> None:
    """Check that messages, times, diffs and values of every snapshot equal those of the source."""
    for id, snapshot in expected["snapshots"].items():
        info = repo.lookup_snapshot(present_id(id))
        assert info.message == snapshot["message"]
        if "written_at" in snapshot:
            assert info.written_at.isoformat() == snapshot["written_at"][:26] + "+00:00"
        store = repo.readonly_session(snapshot_id=info.id).store
        for path, node in snapshot["nodes"].items():
            if node["type"] != "array":
                assert isinstance(zarr.open(store, path=path, mode="r"), zarr.Group)
            elif "sha256" in node:
                array: Any = zarr.open_array(store, path=path, mode="r")
                found = hashlib.sha256(np.ascontiguousarray(array[...]).tobytes()).hexdigest()
                assert found == node["sha256"], (id, path)
        if info.parent_id is not None:
            repo.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)


def use(repo: Any) -> None:
    """Commit, tag and collect garbage in the upgraded repository."""
    kept = {name: repo.lookup_tag(name) for name in repo.list_tags()}
    session = repo.writable_session("main")
    zarr.create_group(session.store, path="made/after")
    id = session.commit("after the upgrade")
    repo.create_tag("after", id)
    repo.garbage_collect(datetime.now(UTC))
    assert {**kept, "after": id} == {name: repo.lookup_tag(name) for name in repo.list_tags()}
    assert next(iter(repo.ops_log())) is not None


@pytest.mark.parametrize("name", golden.OLDER_NAMES)
def test_official_package_reads_repositories_upgraded_in_place(name: str, tmp_path: Path) -> None:
    folder = golden.unpack(name, tmp_path) / "repo"

    migrate(local_filesystem_storage(str(folder)))

    repo = open_repository(folder)
    expected = golden.load(name).expected
    check_refs(repo, expected)
    check_snapshots(repo, expected)
    use(repo)
    check_snapshots(repo, expected)


@pytest.mark.parametrize("name", FORMATS)
def test_official_package_reads_all_values_of_an_upgraded_copy(name: str, tmp_path: Path) -> None:
    files, older, folder = tmp_path / "files", tmp_path / "older", tmp_path / "new"
    for place in (files, older):
        place.mkdir()
    source, deleted = make(files, small=True)
    write_older(source, local_filesystem_storage(str(older)), FORMATS[name], deleted if name > "004" else {})

    migrate(local_filesystem_storage(str(older)), local_filesystem_storage(str(folder)))

    theirs = open_repository(folder, (f"{files.as_uri()}/",))
    for branch in source.list_branches():
        assert values(theirs.readonly_session(branch)) == values(source.readonly_session(branch))
        assert [(i.message, i.written_at, i.metadata) for i in theirs.ancestry(branch=branch)] == [
            (i.message, i.written_at, i.metadata) for i in source.ancestry(branch=branch)
        ]
    if name > "004":
        with pytest.raises(icechunk.IcechunkError):
            theirs.create_tag("gone", theirs.lookup_branch("main"))
    use(theirs)
    ours = Repository.open(local_filesystem_storage(str(folder)))
    assert ours.lookup_snapshot(ours.lookup_tag("last")).message == "only metadata"


@pytest.mark.skipif(
    not FIXTURES, reason="NOT RUN: set ICEFLOE_OLDER_FIXTURES to a folder of old repositories"
)
def test_official_package_reads_upgraded_historical_repositories(tmp_path: Path) -> None:
    for number, place in enumerate(sorted(Path(FIXTURES).glob("official-fixture-*"))):
        folder = tmp_path / str(number)
        shutil.copytree(place / "repo", folder)
        migrate(local_filesystem_storage(str(folder)), delete_old_files=True)

        repo = open_repository(folder)
        expected = json.loads((place / "expected.json").read_text(encoding="utf-8"))
        check_refs(repo, expected)
        check_snapshots(repo, expected)
        use(repo)
