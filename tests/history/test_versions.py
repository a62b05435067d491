"""Versions are found by all their names, and mistakes are reported."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import icefloe
from icefloe import InvalidInputError, RefNotFoundError, SnapshotNotFoundError
from icefloe.history.versions import parse_time, resolve_version


@pytest.fixture
def repo() -> icefloe.Repository:
    made = icefloe.Repository.create(icefloe.in_memory_storage())
    for number in range(3):
        session = made.writable_session("main")
        session.commit(f"commit {number}", allow_empty=True)
    made.create_tag("v1", made.lookup_branch("main"))
    made.create_branch("dev", made.lookup_branch("main"))
    return made


@pytest.mark.parametrize("version", ["main", "v1", "branch:dev", "tag:v1", "main~0", "main@2999-01-01"])
def test_branch_tag_and_snapshot_names_resolve_to_the_tip(repo: icefloe.Repository, version: str) -> None:
    assert resolve_version(repo, version) == repo.lookup_branch("main")


def test_snapshots_are_found_by_id_or_id_prefix(repo: icefloe.Repository) -> None:
    tip = repo.lookup_branch("main")

    found = {resolve_version(repo, name) for name in (tip, f"snapshot:{tip}", tip[:8], tip[:8].lower())}

    assert found == {tip}


def test_tilde_selects_ancestors(repo: icefloe.Repository) -> None:
    history = [each.id for each in repo.ancestry(branch="main")]

    assert resolve_version(repo, "v1~") == history[1]
    assert resolve_version(repo, f"{history[0][:8]}~2") == history[2]
    with pytest.raises(RefNotFoundError, match="main has fewer than 9 commits before it"):
        resolve_version(repo, "main~9")


@pytest.mark.parametrize(
    ("version", "error", "message"),
    [
        ("mian", RefNotFoundError, "no branch, tag or snapshot mian; did you mean main"),
        ("nowhere", RefNotFoundError, "no branch, tag or snapshot nowhere"),
        ("branch:v1", RefNotFoundError, "v1"),
        ("main@1999-01-01", SnapshotNotFoundError, "no snapshot at or before 1999"),
        ("main~" + 30 * "9", RefNotFoundError, "no branch, tag or snapshot main~999"),
        ("main@soon", InvalidInputError, "'soon' is not a time: expected 2024-05-01"),
        ("main@9999999d", InvalidInputError, "'9999999d' is not a time"),
        (f"main@{400 * '9'}d", InvalidInputError, "is not a time"),
        ("main@0001-01-01T00:00+23:59", InvalidInputError, "is not a time"),
    ],
)
def test_versions_that_do_not_exist_are_reported(
    repo: icefloe.Repository, version: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        resolve_version(repo, version)


def test_name_shared_by_a_branch_and_a_tag_is_ambiguous(repo: icefloe.Repository) -> None:
    repo.create_branch("v1", repo.lookup_branch("main"))

    with pytest.raises(InvalidInputError, match="v1 is both a branch and a tag; use branch:v1 or tag:v1"):
        resolve_version(repo, "v1")


def test_times_are_utc_unless_they_have_a_zone() -> None:
    assert parse_time("2024-05-01") == datetime(2024, 5, 1, tzinfo=UTC)
    assert parse_time("2024-05-01T12:00+02:00") == datetime(2024, 5, 1, 10, tzinfo=UTC)
    assert 6.9 < (datetime.now(UTC) - parse_time("1w")).total_seconds() / 86400 < 7.1
