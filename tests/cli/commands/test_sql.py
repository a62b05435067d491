"""The command `icefloe sql`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.cli.main import main
from tests.support.spark.weather import CHUNKS, repository, weather

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the collector
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def test_sql_prints_the_result_of_a_query(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "repo")
    repository(weather(), icefloe.local_filesystem_storage(place), CHUNKS)

    query = "SELECT lat, count(*) AS n FROM w WHERE lat > 50 GROUP BY lat ORDER BY lat"
    code = main(["sql", f"w={place}", query, "--json"])

    assert code == 0
    assert json.loads(capsys.readouterr().out) == [{"lat": 55.0, "n": 80}, {"lat": 60.0, "n": 80}]
    assert main(["sql", f"w={place}", "SELECT lot FROM w"]) != 0
    said = capsys.readouterr().err
    assert "Spark rejected the query" in said
    assert "lot" in said
    assert main(["sql", place, "SELECT 1"]) == 2
    assert spark.range(3).count() == 3  # a session that was active before stays open
