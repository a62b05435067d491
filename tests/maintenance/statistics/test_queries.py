"""Generated queries with and without statistics, compared with DuckDB over the same data as Parquet."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.statistics import VirtualSource, commit_change, create_repository, damage, merge_changes
from tests.support.statistics_queries import check_queries

HISTORIES = int(os.environ.get("ICEFLOE_STATISTICS_HISTORIES", "1"))


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_query_results_match_duckdb_over_parquet(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    source = VirtualSource(tmp_path)
    repo = source.authorize(create_repository(1 + seed % 2))
    answered = 0
    for _ in range(4):
        commit_change(repo, random, collect_statistics=bool(random.random() < 0.5))
        if random.random() < 0.5:
            source.commit(repo, collect_statistics=bool(random.random() < 0.5))
        if random.random() < 0.5:
            merge_changes(repo, random)
        if random.random() < 0.5:
            repo.collect_statistics()
        if random.random() < 0.3:
            damage(repo, random)
        answered += check_queries(repo, random, tmp_path)

    assert answered >= 40  # of 48 or more; conditions that need Spark are refused
