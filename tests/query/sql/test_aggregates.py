"""Compare SELECTs computed from groups of cells with those of all cells, using SQLite instead of Spark."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.query.scan.data_skipping import TableStatistics
from icefloe.query.scan.moments import make_moment
from icefloe.query.scan.plan import TableScan, make_plan
from icefloe.query.scan.reduce import plan_moments, reduce_partition
from icefloe.query.sql.aggregates import reduce_select
from icefloe.query.sql.analysis import analyze_query
from icefloe.query.sql.parse import Edit, parse_query
from tests.support.query import (
    COLUMNS,
    COORDINATES,
    REPO,
    SESSION,
    TABLE,
    WHOLE,
    answer,
    pruned,
    queries,
    rounded,
    shaped,
)
from tests.support.spark.weather import counted_chunks, read_all

REPO.collect_statistics()
STATISTICS = TableStatistics(SESSION)


def tables_for(
    text: str, partition_bytes: int, statistics: TableStatistics | None = None
) -> tuple[list[pa.Table], list[Edit], set[int]]:
    """Return the replacement of each table use, the edits, and the table uses that are read as groups."""
    query = parse_query(text, ["w"])
    found = analyze_query(query, dict.fromkeys(range(len(query.uses)), COLUMNS), {})
    tables: dict[int, pa.Table] = {}
    edits: list[Edit] = []
    for number, scope in found.alone:
        if found.needs[number].columns is None:
            continue
        _, selection = pruned(found.needs[number])
        made = reduce_select(query.text, query.tokens, scope, COORDINATES, utc=True)
        if made is None:
            continue
        moments = made.moments or (make_moment("cells", None),)
        scan = TableScan(SESSION, TABLE, COORDINATES, selection, partition_bytes=partition_bytes)
        scan = replace(scan, statistics=statistics, filters=made.filters)
        order = plan_moments(scan, made.terms, made.shown, moments)
        batches = [b for n in range(order.tasks) for b in reduce_partition(SESSION, order, n)]
        tables[number] = pa.Table.from_batches(batches, order.partial_schema)
        edits += made.edits
    grouped_uses = set(tables)
    for use in query.uses:
        if use.number not in tables:
            table, selection = pruned(found.needs[use.number])
            tables[use.number] = read_all(SESSION, make_plan(table, selection))
    return [tables[use.number] for use in query.uses], edits, grouped_uses


def check(text: str, partition_bytes: int = 2**26, statistics: TableStatistics | None = None) -> set[int]:
    query = parse_query(text, ["w"])
    tables, edits, found = tables_for(text, partition_bytes, statistics)

    ours = answer(query, tables, edits)
    theirs = answer(query, [WHOLE] * len(tables))

    assert len(ours) == len(theirs), query.rewrite(dict.fromkeys(range(9), "t"), edits)
    for mine, other in zip(rounded(ours), rounded(theirs), strict=True):
        assert mine == other, query.rewrite(dict.fromkeys(range(9), "t"), edits)
    return found


@given(shaped(), st.sampled_from([1, 5000, 2**26]))
def test_aggregates_of_prepared_groups_equal_aggregates_of_cells(text: str, partition_bytes: int) -> None:
    assert check(text, partition_bytes)


@given(shaped(by_value=True), st.booleans())
def test_results_from_statistics_match_results_from_cells(text: str, on: bool) -> None:
    check(text, statistics=STATISTICS if on else None)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("SELECT max(t2m), min(rain), count(t2m), sum(rain), avg(t2m), stddev(t2m) FROM w", 0),
        ("SELECT count(*) FROM w WHERE t2m > 100", 0),
        ("SELECT count(*), sum(rain) FROM w WHERE rain > 1000", 0),
        ("SELECT max(t2m) FROM w WHERE time < '2020-01-01'", 0),
        ("SELECT max(t2m) FROM w WHERE time < '2019-12-31'", 4),
        ("SELECT lat, max(t2m) FROM w GROUP BY lat", 12),
        ("SELECT month(time), max(t2m) FROM w GROUP BY month(time)", 0),
        ("SELECT max(t2m) FROM w WHERE t2m > 100 AND t2m IS NOT NULL", 0),
        ("SELECT count(*) FROM w WHERE t2m IS NULL", 0),
    ],
)
def test_only_chunks_that_statistics_cannot_answer_are_read(text: str, read: int) -> None:
    check(text, statistics=STATISTICS)  # reads the coordinates, which are then cached

    with counted_chunks(pytest.MonkeyPatch()) as fetched:
        tables_for(text, 2**26, STATISTICS)

    assert len(fetched) == read


@given(queries())
def test_queries_that_cannot_be_aggregated_per_chunk_are_unchanged(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT avg(t2m) FROM w WHERE rain > t2m",
        "SELECT rain, count(*) FROM w GROUP BY rain",
        "SELECT lat, avg(t2m - rain) FROM w GROUP BY lat",
        "SELECT lat, avg(t2m * t2m) FROM w GROUP BY lat",
        "SELECT avg(t2m - 273) FROM w",
        "SELECT count(DISTINCT rain) FROM w",
        "SELECT avg(coalesce(t2m, 0)) FROM w",
        "SELECT max(-t2m) FROM w",
        "SELECT sum(CASE WHEN t2m > 280 THEN 1 ELSE 0 END) FROM w",
        "SELECT sum(CASE WHEN lat > 40 THEN t2m ELSE 1 END) FROM w",
        "SELECT sum(t2m) FILTER (WHERE rain > 3) FROM w",
        "SELECT lat, t2m FROM w",
        "SELECT DISTINCT lat, row_number() OVER (ORDER BY lon) FROM w",
        "SELECT avg(t2m) OVER (PARTITION BY lat) FROM w",
        "SELECT random() > 0, count(*) FROM w GROUP BY 1",
        "SELECT lat, (SELECT max(b.rain) FROM w b WHERE b.lat = a.lat) FROM w a",
        "SELECT max(a.rain) FROM w a JOIN w b ON a.lat = b.lat",
        "SELECT max(rain) FROM w AS x(a, b, c, t2m, rain)",
        "SELECT `avg(t2m)` FROM (SELECT avg(t2m) FROM w UNION SELECT 1)",
    ],
)
def test_queries_that_need_single_cells_are_not_aggregated_per_chunk(text: str) -> None:
    assert 0 not in tables_for(text, 2**26)[2]


def test_count_does_not_read_chunks() -> None:
    query = "SELECT lat, count(*) FROM w WHERE lon < 5 GROUP BY lat"
    tables_for(query, 2**26)  # reads the coordinates, which are then cached

    with counted_chunks(pytest.MonkeyPatch()) as fetched:
        (table,), edits, found = tables_for(query, 2**26)

    assert found == {0}
    assert table.column(".cells").to_pylist() == [20] * 6
    assert [edit.text for edit in edits] == ["coalesce(sum(`.cells`), 0)"]
    assert fetched == []


def test_chunk_groups_are_as_coarse_as_the_query_allows() -> None:
    (table,), _, _ = tables_for(
        "SELECT month(time) AS m, avg(t2m) FROM w WHERE lat > 40 AND time > '2019-12-30' GROUP BY m", 2**26
    )

    assert table.num_rows == 2
    assert set(table.schema.names) == {"time", "lat", "t2m.count", "t2m.sum"}
