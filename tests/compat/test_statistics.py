"""Statistics of a repository that the official package writes to, and whose garbage it collects."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe.maintenance.statistics.files import FOLDER
from icefloe.maintenance.statistics.lookup import load_statistics
from tests.support.compat.official import KNOWS_V2, icechunk
from tests.support.statistics import check_answers, commit_change, create_repository, damage, merge_changes
from tests.support.statistics_queries import check_queries

pytestmark = pytest.mark.compat


@pytest.mark.parametrize("seed", range(int(os.environ.get("ICEFLOE_STATISTICS", "2"))))
def test_results_are_right_after_commits_of_both_writers(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    create_repository(2 if KNOWS_V2 and seed % 2 == 0 else 1, storage)
    for _ in range(6):
        if random.random() < 0.5:
            official = _open_official(tmp_path)
            commit_change(official, random)
        else:
            commit_change(icefloe.Repository.open(storage), random, collect_statistics=True)
        check_answers(icefloe.Repository.open(storage))


@pytest.mark.parametrize("seed", range(int(os.environ.get("ICEFLOE_STATISTICS", "2"))))
def test_queries_over_commits_of_both_writers_match_duckdb(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repo = create_repository(2 if KNOWS_V2 and seed % 2 == 0 else 1, storage)
    answered = 0
    for _ in range(4):
        official = _open_official(tmp_path / "repo")
        commit_change(official, random)
        commit_change(repo, random, collect_statistics=bool(random.random() < 0.5))
        if random.random() < 0.5:
            merge_changes(repo, random)
        commit_change(_open_official(tmp_path / "repo"), random)
        if random.random() < 0.3:
            repo.collect_statistics()
        if random.random() < 0.3:
            damage(repo, random)
        answered += check_queries(repo, random, tmp_path)

    assert answered >= 40  # of 48; conditions that need Spark are refused


def test_statistics_survive_official_garbage_collection(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repo = create_repository(2 if KNOWS_V2 else 1, storage)
    for _ in range(4):
        commit_change(repo, random, collect_statistics=True)
    before = sorted(info.key for info in storage.list_prefix(f"{FOLDER}/"))
    official = _open_official(tmp_path)

    later = datetime.now(UTC) + timedelta(days=1)
    official.expire_snapshots(later)
    official.garbage_collect(later)

    assert sorted(info.key for info in storage.list_prefix(f"{FOLDER}/")) == before != []
    found = load_statistics(icefloe.Repository.open(storage).readonly_session("main"), "/f")
    assert found is not None
    assert found.known.all()
    check_answers(icefloe.Repository.open(storage))


def _open_official(folder: Path) -> Any:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
