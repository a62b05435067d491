"""Retention policies: which snapshots are kept, with and without a dry run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, RetentionPolicy
from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe._internal.times import to_microseconds
from icefloe.errors import ReadOnlyError
from icefloe.format.repo_info import SnapshotInfo, SnapshotInfos
from icefloe.maintenance.commit_graph import History
from icefloe.maintenance.retention import select_kept
from tests.support.histories import commit, history, now, repository

VERSIONS = pytest.mark.parametrize("version", [1, 2])
START = datetime(2024, 1, 1, tzinfo=UTC)


def line(times: list[datetime]) -> History:
    """Return a history with one branch and snapshots at the given times, oldest first."""
    infos = [SnapshotInfo(INITIAL_SNAPSHOT_ID, None, 0, "first")]
    for time in times:
        infos.append(SnapshotInfo(SnapshotId.random(), infos[-1].id, to_microseconds(time), time.isoformat()))
    return History(SnapshotInfos.of(infos), {"main": infos[-1].id}, {})


def kept(policy: RetentionPolicy, times: list[datetime], at: datetime) -> list[datetime]:
    """Return the times of the snapshots that a policy keeps, except the first."""
    found = line(times)
    keep = select_kept(policy, found, at).keep
    infos = [found.snapshots[row] for row in np.flatnonzero(keep).tolist()]
    return sorted(datetime.fromisoformat(info.message) for info in infos if info.message != "first")


def test_daily_rule_keeps_the_newest_of_each_day() -> None:
    times = [START + timedelta(hours=6 * step) for step in range(40)]

    found = kept(RetentionPolicy(last=0, daily=3), times, times[-1])

    assert [time.isoformat() for time in found] == [f"2024-01-{day:02d}T18:00:00+00:00" for day in (8, 9, 10)]


def test_retention_does_not_count_periods_without_a_snapshot() -> None:
    times = [START, START + timedelta(days=100), START + timedelta(days=400)]

    assert kept(RetentionPolicy(last=0, daily=2), times, times[-1]) == times[1:]
    assert kept(RetentionPolicy(last=0, yearly=2), times, times[-1]) == times[1:]
    assert kept(RetentionPolicy(last=0, yearly=1, monthly=3), times, times[-1]) == times


def test_snapshots_kept_by_any_retention_rule_are_kept() -> None:
    times = [START + timedelta(hours=step) for step in range(24 * 70)]
    policy = RetentionPolicy(last=2, hourly=5, daily=4, weekly=3, monthly=2, within=timedelta(hours=1))

    found = kept(policy, times, times[-1])

    assert set(times[-5:]) <= set(found)
    assert len({time.date() for time in found}) >= 4
    assert len({time.isocalendar()[:2] for time in found}) >= 3
    assert {time.month for time in found} == {2, 3}
    assert len(found) <= 2 + 5 + 4 + 3 + 2


def lived_in(version: int = 2) -> Repository:
    """Create six commits on main with a tag on the second, and a branch with two commits."""
    repo = repository(version)
    ids = [commit(repo, value) for value in range(1, 7)]
    repo.create_tag("v1", ids[1])
    repo.create_branch("dev", ids[2])
    commit(repo, 7, "dev")
    commit(repo, 8, "dev")
    return repo


@VERSIONS
def test_snapshots_that_no_rule_keeps_are_removed(version: int) -> None:
    repo = lived_in(version)
    planned = repo.retain(RetentionPolicy(last=2), dry_run=True).table
    before = history(repo)

    done = repo.retain(RetentionPolicy(last=2)).table

    assert planned == done
    assert before == [f"write {n}" for n in (6, 5, 4, 3, 2, 1)] + ["make a", "Repository initialized"]
    assert history(repo) == ["write 6", "write 5", "write 2", "Repository initialized"]
    assert history(repo, "dev") == ["write 8", "write 7", "write 2", "Repository initialized"]
    assert repo.lookup_tag("v1")
    gone = sorted(row["message"] for row in done.rows() if not row["kept"])
    assert gone == ["make a", "write 1", "write 3", "write 4"]
    assert repo.verify("chunks").ok
    repo.garbage_collect(now())
    assert repo.verify("chunks").ok
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert np.asarray(array[:]).tolist() == [0, 1, 2, 3, 4, 5, 6, 0]


def test_kept_snapshot_inherits_logs_of_removed_ones() -> None:
    repo = lived_in()

    repo.retain(RetentionPolicy(last=1))

    tip, tag = repo.lookup_branch("main"), repo.lookup_tag("v1")
    changed = repo.diff(from_snapshot_id=tag, to_snapshot_id=tip).updated_chunks["/a"]
    assert sorted(changed) == [[3], [4], [5], [6]]


@VERSIONS
def test_retention_policy_can_have_branch_rules_and_delete_tags(version: int) -> None:
    repo = lived_in(version)
    policy = RetentionPolicy(last=1, tagged=False, branches={"dev": RetentionPolicy(last=2)})

    table = repo.retain(policy).table

    assert history(repo) == ["write 6", "Repository initialized"]
    assert history(repo, "dev") == ["write 8", "write 7", "Repository initialized"]
    assert repo.list_tags() == set()
    assert {"tip of main", "dev: last 2; tip of dev"} <= {
        r.replace("main: last 1; ", "") for r in table["reason"]
    }


def test_retention_does_not_remove_snapshots_without_a_branch() -> None:
    repo = lived_in()
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 9
    detached = session.flush("nowhere")

    table = repo.retain(RetentionPolicy()).table

    assert detached not in list(table["snapshot"])
    assert repo.readonly_session(snapshot_id=detached).snapshot_id == detached


@pytest.mark.parametrize(
    "rules",
    [
        {"last": -1},
        {"weekly": -2},
        {"within": timedelta(days=-1)},
        {"branches": {"a": RetentionPolicy(branches={"b": RetentionPolicy()})}},
    ],
)
def test_invalid_policies_are_rejected(rules: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"policies|negative"):
        RetentionPolicy(**rules)


def test_rules_for_a_missing_branch_are_rejected() -> None:
    with pytest.raises(ValueError, match="nope"):
        lived_in().retain(RetentionPolicy(branches={"nope": RetentionPolicy()}))


def test_read_only_repository_is_not_changed() -> None:
    repo = lived_in()
    repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only))

    with pytest.raises(ReadOnlyError):
        repo.retain(RetentionPolicy())


@VERSIONS
def test_expiration_can_be_previewed(version: int) -> None:
    repo = lived_in(version)
    moment = now()
    commit(repo, 9)

    planned = repo.retain(moment, dry_run=True).table

    gone = set(planned["snapshot"][~planned["kept"]])
    before = {info.id for branch in ("main", "dev") for info in repo.ancestry(branch=branch)}
    repo.expire_snapshots(moment)
    after = {info.id for branch in ("main", "dev") for info in repo.ancestry(branch=branch)}
    assert gone == before - after - {repo.lookup_tag("v1")}
