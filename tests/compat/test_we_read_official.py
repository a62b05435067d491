"""The decoder reads files that the official package writes during the test, and sees the same content."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.compat import official
from tests.support.compat.decoded import Folder, assert_seen_alike
from tests.support.compat.random_user import RandomUser

pytestmark = pytest.mark.compat

SPECS = [1, pytest.param(2, marks=official.needs_v2)]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", range(6))
def test_random_official_sessions_are_read(tmp_path: Path, spec: int, seed: int) -> None:
    user = RandomUser(tmp_path, spec, seed)

    user.work(actions=40)

    assert_seen_alike(tmp_path, official.open_repository(tmp_path))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", range(100, 102))
def test_expired_and_collected_repositories_are_read(tmp_path: Path, spec: int, seed: int) -> None:
    user = RandomUser(tmp_path, spec, seed)
    user.work(actions=20)

    user.expire_and_collect()
    assert_seen_alike(tmp_path, official.open_repository(tmp_path))

    user.work(actions=5)
    assert_seen_alike(tmp_path, official.open_repository(tmp_path))


@official.needs_v2
def test_official_status_is_read(tmp_path: Path) -> None:
    user = RandomUser(tmp_path, 2, 7)

    user.set_status()

    status = Folder(tmp_path).repo_info().status
    assert (status.availability.name, status.limited_availability_reason) == ("READ_ONLY", "ü")
    assert_seen_alike(tmp_path, official.open_repository(tmp_path))


@official.needs_v2
def test_expired_snapshots_leave_their_logs(tmp_path: Path) -> None:
    user = RandomUser(tmp_path, 2, 8)
    for _ in range(6):
        user.new_group()
        user.commit()

    user.expire_and_collect()

    pruned = [id for info in Folder(tmp_path).repo_info().snapshots for id in info.pruned_ancestor_tx_logs]
    assert pruned
    assert {str(id) for id in pruned} <= set(Folder(tmp_path).ids("transactions"))
