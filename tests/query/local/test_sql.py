"""The built-in SQL engine, compared with SQLite over all rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.cli.main import main
from icefloe.query.local.sql import run_local_query
from icefloe.query.sql.parse import parse_query
from tests.support.query import REPO, WHOLE, answer, rounded

REPO.collect_statistics()


def _plain(value: object) -> object:
    return f"{value:%Y-%m-%d}" if hasattr(value, "year") else value


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*), count(t2m), min(t2m), max(t2m), sum(rain), avg(t2m), stddev(t2m) FROM w",
        "SELECT lat, max(t2m) FROM w GROUP BY lat",
        "SELECT month(time) AS m, sum(rain) AS total FROM w WHERE rain > 50 GROUP BY month(time)",
        "SELECT count(*) FROM w WHERE t2m > 290 AND lon < 10",
        "SELECT count(*), max(t2m) FROM w WHERE t2m > 1000",
        "SELECT lat, count(*) FROM w WHERE t2m > 295 GROUP BY lat",
        "SELECT lat, lon, t2m FROM w WHERE t2m > 290 AND time < '2020-01-02'",
        "SELECT time, rain FROM w WHERE rain IN (1, 2) OR rain > 97",
    ],
)
def test_local_sql_results_match_all_rows(text: str, statistics: bool) -> None:
    found = run_local_query(text, {"w": REPO}, statistics=statistics).table

    rows = [tuple(map(_plain, row.values())) for row in found.to_pylist()]
    assert rounded(rows) == rounded(answer(parse_query(text, ["w"]), [WHOLE]))


def test_local_order_by_and_limit_behave_like_spark() -> None:
    text = "SELECT lat, max(t2m) AS warmest FROM w GROUP BY lat ORDER BY warmest DESC LIMIT 2"

    found = run_local_query(text, {"w": REPO}).table.to_pylist()

    every = run_local_query("SELECT lat, max(t2m) AS warmest FROM w GROUP BY lat", {"w": REPO})
    expected = sorted(every.table.to_pylist(), key=lambda row: -row["warmest"])[:2]
    assert found == expected


def test_groups_have_the_same_order_with_and_without_statistics() -> None:
    text = "SELECT lat, count(*) FROM w WHERE t2m > 285 GROUP BY lat LIMIT 3"

    found = [run_local_query(text, {"w": REPO}, statistics=used).table.to_pylist() for used in (True, False)]

    assert found[0] == found[1]
    assert [row["lat"] for row in found[0]] == sorted(row["lat"] for row in found[0])


def test_explain_counts_chunks_without_reading() -> None:
    found = run_local_query("SELECT max(t2m) FROM w WHERE time < '2020-01-01'", {"w": REPO}, explain=True)

    counts = found.reads.counts
    assert (counts.chunks, counts.skipped, counts.answered, counts.read) == (12, 8, 4, 0)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a.lat FROM w a JOIN w b ON a.lat = b.lat",
        "SELECT max(t2m) OVER (PARTITION BY lat) FROM w",
        "SELECT lat FROM (SELECT lat FROM w)",
        "SELECT t2m + 1 FROM w",
        "SELECT max(t2m) FROM w HAVING max(t2m) > 3",
        "SELECT max(t2m) FROM w WHERE t2m > rain",
        "SELECT DISTINCT lat FROM w",
        "SELECT * FROM w.chunks",
        "UPDATE w SET t2m = 3 WHERE lat > 40",
        "CREATE TAG v1 IN w",
    ],
)
def test_queries_that_need_spark_are_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(icefloe.InvalidInputError) as caught:
        run_local_query(text, {"w": REPO})

    assert 'executor="spark"' in str(caught.value.hint)


def test_times_that_python_cannot_represent_are_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = str(tmp_path / "repo")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(place))
    values = np.array(["-0044-03-15", "2020-01-01", "12000-01-01", "NaT"], "M8[us]")
    values[1] += np.timedelta64(1, "us")
    with repo.transaction("main", message="write", collect_statistics=True) as store:
        zarr.create_array(store, name="v", data=values, chunks=(2,), dimension_names=["x"])

    code = main(["sql", f"r={place}", "SELECT v FROM r", "--executor", "threads", "--json"])

    found = [row["v"] for row in json.loads(capsys.readouterr().out)]
    assert code == 0
    assert found[:2] == ["-044-03-15T00:00:00.000000", "2020-01-01T00:00:00.000001"]
    assert found[2:] == ["12000-01-01T00:00:00.000000", None]


def test_queries_do_not_import_pandas() -> None:
    program = """
import sys, numpy as np, zarr, icefloe
from icefloe.query.local.sql import run_local_query
repo = icefloe.Repository.create(icefloe.in_memory_storage())
with repo.transaction("main", message="write", collect_statistics=True) as store:
    zarr.create_array(store, name="v", data=np.arange(4.0), chunks=(2,), dimension_names=["x"])
for query in ("SELECT max(v) FROM r WHERE v > 0", "SELECT x, v FROM r WHERE v > 1 ORDER BY v"):
    run_local_query(query, {"r": repo}).table.to_pylist()
print("pandas" in sys.modules)
"""

    # In a process of its own, because other tests import pandas.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
