"""Repositories of the formats before version 1, written by another encoder, read through the public API."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from icefloe._internal.times import from_microseconds
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.types import SpecVersion
from tests.support.format import golden
from tests.support.format.golden import Golden
from tests.support.legacy.locations import contents, digest, place, present_id

KINDS = {INLINE: "Inline", NATIVE: "Ref", VIRTUAL: "Virtual"}
WITH_LOGS = [name for name in golden.OLDER_NAMES if "transactions" in str(golden.load(name).files)]


@pytest.fixture(scope="module", params=golden.OLDER_NAMES)
def older(request: pytest.FixtureRequest) -> Golden:
    return golden.load(request.param)


@pytest.fixture(scope="module")
def repo(older: Golden) -> Repository:
    return Repository.open(place(older.files))


def document_of(session: Session, path: str) -> Any:
    found = session._workspace.node(path)
    assert found is not None
    return json.loads(found.user_data)


def test_golden_repositories_cover_all_structures() -> None:
    assert len(golden.OLDER_NAMES) == 10
    assert len(WITH_LOGS) == 6


def test_old_repository_is_recognized(older: Golden) -> None:
    storage = place(older.files)

    assert Repository.exists(storage)
    assert Repository.fetch_spec_version(storage) is SpecVersion.v1
    assert Repository.fetch_config(storage) is None


def test_branches_and_tags_are_as_expected(older: Golden, repo: Repository) -> None:
    branches = {name: repo.lookup_branch(name) for name in repo.list_branches()}
    tags = {name: repo.lookup_tag(name) for name in repo.list_tags()}

    assert branches == {name: present_id(id) for name, id in older.expected["branches"].items()}
    assert tags == {name: present_id(id) for name, id in older.expected["tags"].items()}


def test_history_has_every_message_time_and_parent(older: Golden, repo: Repository) -> None:
    found = {info.id: info for name in repo.list_branches() for info in repo.ancestry(branch=name)}

    assert found.keys() == {present_id(id) for id in older.expected["snapshots"]}
    for id, expected in older.expected["snapshots"].items():
        info = found[present_id(id)]
        assert info.message == expected["message"]
        if "parent" in expected:
            parent = expected["parent"]
            assert info.parent_id == (None if parent is None else present_id(parent))
            assert info.written_at.isoformat() == expected["written_at"][:26] + "+00:00"


def test_every_array_of_every_snapshot_has_the_expected_values(older: Golden, repo: Repository) -> None:
    for id, expected in older.expected["snapshots"].items():
        session = repo.readonly_session(snapshot_id=present_id(id))
        assert set(session._workspace.paths()) == expected["nodes"].keys()
        for path, node in expected["nodes"].items():
            document = document_of(session, path)
            assert document["node_type"] == node["type"]
            if "attrs" in node:
                assert document["attributes"] == node["attrs"]
            if node["type"] == "array":
                assert digest(session, path) == node["sha256"], (id, path)
            if "shape" in node:
                assert (document["shape"], document["data_type"]) == (node["shape"], node["dtype"])


def test_snapshots_are_found_by_their_old_ids(older: Golden, repo: Repository) -> None:
    for id, expected in older.expected["snapshots"].items():
        assert repo.lookup_snapshot(id).message == expected["message"]
        assert repo.readonly_session(snapshot_id=id).snapshot_id == present_id(id)


def test_legacy_chunks_have_the_expected_storage_kinds(older: Golden, repo: Repository) -> None:
    for id, expected in older.expected["snapshots"].items():
        session = repo.readonly_session(snapshot_id=present_id(id))
        for path, node in expected["nodes"].items():
            if "kinds" in node:
                refs = session._workspace.refs(session._workspace.array(path))
                names = ["/".join(map(str, coords)) for coords in refs.coords.tolist()]
                assert dict(zip(names, map(KINDS.get, refs.kind.tolist()), strict=True)) == node["kinds"]


def test_diffs_are_equal_with_and_without_logs(older: Golden) -> None:
    with_logs = Repository.open(place(older.files))
    files = {path: data for path, data in older.files.items() if not path.startswith("transactions/")}
    without = Repository.open(place(files))

    for name in with_logs.list_branches():
        oldest = list(with_logs.ancestry(branch=name))[-1].id
        found = with_logs.diff(from_snapshot_id=oldest, to_branch=name)

        assert found == without.diff(from_snapshot_id=oldest, to_branch=name)
        assert "/grp/native 日本" in found.new_arrays


def test_snapshots_are_found_by_time(repo: Repository) -> None:
    oldest = list(repo.ancestry(branch="main"))[-2]

    session = repo.readonly_session("main", as_of=oldest.written_at)

    assert session.snapshot_id == oldest.id
    assert oldest.written_at > from_microseconds(0)


def test_session_reads_the_same_in_another_process(older: Golden, repo: Repository) -> None:
    session = repo.readonly_session("main")

    again = pickle.loads(pickle.dumps(session))

    assert digest(again, "/types/int64") == digest(session, "/types/int64")
    assert pickle.loads(pickle.dumps(repo)).list_branches() == repo.list_branches()


def test_reading_changes_no_files(older: Golden) -> None:
    storage = place(older.files)

    repo = Repository.open(storage)
    for name in repo.list_branches():
        digest(repo.readonly_session(name), "/scalar")

    assert contents(storage) == dict(older.files)
