"""Histories with many commits and branches take time in proportion to their size."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pytest
import zarr

from icefloe import Repository
from icefloe.format.repo_info import SnapshotInfos
from tests.support.long_histories import write_history


@pytest.fixture(scope="module")
def repo() -> Repository:
    return write_history(commits=150, branches=250)


def test_graph_of_many_branches_visits_each_commit_once(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits: Counter[int] = Counter()
    walk = SnapshotInfos.walk

    def counted(self: SnapshotInfos, id: object) -> object:
        for row in walk(self, id):  # type: ignore[arg-type]
            visits[row] += 1
            yield row

    monkeypatch.setattr(SnapshotInfos, "walk", counted)

    graph = repo.ancestry_graph(plain=True)

    assert len(graph.commits) == 402
    assert sum(visits.values()) <= len(graph.commits) + len(repo.list_branches())


def test_graph_of_many_branches_has_a_bounded_width(repo: Repository) -> None:
    lines = repr(repo.ancestry_graph(plain=True)).splitlines()
    rows = [line for line in lines if "●" in line]

    assert len(rows) == 402
    assert max(line.index("●") for line in rows) <= 200
    assert all(f"({name})" in "\n".join(rows) for name in repo.list_branches())


def test_repository_written_in_one_step_works_like_any_other(repo: Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 7
    session.commit("one more")

    assert len(list(repo.ancestry(branch="main"))) == 153
    assert not repo.garbage_collect(datetime(2020, 1, 1, tzinfo=UTC)).chunks_deleted
    expired = repo.expire_snapshots(datetime.now(UTC), delete_expired_branches=True)
    assert len(expired) == 401
    repo.garbage_collect(datetime.now(UTC))
    values = zarr.open_array(repo.readonly_session("main").store, path="a")[:]
    np.testing.assert_array_equal(values, [7, 1, 1, 1])
