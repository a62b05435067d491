"""Generated queries on Spark, with statistics and without, compared with Spark over the rows of a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe.spark import sql
from tests.support.statistics import commit_change, create_repository, merge_changes, read_values
from tests.support.statistics_queries import check_rows, make_query, write_parquet

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
]
QUERIES = int(os.environ.get("ICEFLOE_QUERIES", "3"))


def test_results_match_spark_over_rows(spark: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(QUERIES)
    repo = create_repository(2, icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    for _ in range(3):
        commit_change(repo, random, collect_statistics=bool(random.random() < 0.5))
        merge_changes(repo, random)
    repo.collect_statistics()
    values = read_values(repo)
    spark.read.parquet(str(write_parquet("yx", values, tmp_path / "rows.parquet"))).createOrReplaceTempView(
        "rows"
    )

    for _ in range(QUERIES):
        query = make_query(random, "yx", values)
        expected = spark.sql(query.format(t="rows")).collect()
        for statistics in (True, False):
            found = sql(spark, query.format(t="r"), {"r": repo}, statistics=statistics).collect()
            check_rows(found, expected, query)
