"""Check that a query over the rows and columns that it needs has the result of the whole table.

SQLite computes the results here, because it is fast; tests/spark/test_sql.py uses Spark.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given

from icefloe.errors import InvalidInputError
from icefloe.query.scan.plan import make_plan
from icefloe.query.sql.analysis import TableNeeds, analyze_query
from icefloe.query.sql.parse import parse_query
from tests.support.query import COLUMNS, SESSION, WHOLE, answer, pruned, queries
from tests.support.spark.weather import counted_chunks, read_all


def needs(text: str) -> list[TableNeeds]:
    query = parse_query(text, ["w"])
    found = analyze_query(query, dict.fromkeys(range(len(query.uses)), COLUMNS), {}).needs
    return [found[number] for number in range(len(query.uses))]


def check(text: str) -> None:
    query = parse_query(text, ["w"])
    parts = []
    for need in needs(text):
        table, selection = pruned(need)
        parts.append(read_all(SESSION, make_plan(table, selection)))

    found = answer(query, parts)

    assert found == answer(query, [WHOLE] * len(parts))


@given(queries())
def test_pruning_chunks_does_not_change_query_results(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM w NATURAL JOIN (SELECT lat, rain FROM w WHERE lat > 50) AS o WHERE lon = 0",
        "SELECT sum(rain) FROM w JOIN (SELECT DISTINCT lat FROM w WHERE lat < 45) AS o USING (lat)",
        "SELECT '{\"brace\"}', count(*) FROM w -- {comment}\nWHERE lat > 40",
        "SELECT w.lat FROM w WHERE w.lat = 45",
        'SELECT `lat`, "x" FROM `w` WHERE `lat` = 45',
        "SELECT lat FROM w ORDER BY t2m, time, lon, lat LIMIT 5",
        "WITH w AS (SELECT 1 AS lat) SELECT * FROM w",
        "SELECT lat FROM w GROUP BY lat HAVING avg(t2m) > 280 ORDER BY max(rain)",
        "WITH x(lon, lat) AS (SELECT lat, lon FROM w) SELECT * FROM x WHERE lat > 10",
        "WITH RECURSIVE r AS (SELECT lat, 0 AS d FROM w WHERE lon = 0 UNION ALL SELECT lat - 5, d + 1 FROM r"
        " WHERE d < 3) SELECT count(*) FROM r WHERE lat < 40",
        "SELECT count(*) FROM (SELECT * FROM w WHERE lat > 50 UNION ALL SELECT * FROM w) AS s WHERE lon > 5",
        "SELECT sum(b.rain) FROM w a LEFT JOIN w b USING (time, lat, lon) WHERE lat < 50 AND lon > 5",
        "SELECT count(b.rain), sum(a.rain) FROM w a FULL JOIN (SELECT * FROM w WHERE lat < 50) b"
        " USING (time, lat, lon) WHERE lat > 40 AND lon > 5",
        "SELECT count(*) FROM w a WHERE EXISTS (SELECT * FROM w b WHERE b.lat = a.lat AND b.lon = 5)",
        "SELECT rn, lat FROM (SELECT *, row_number() OVER (PARTITION BY lat ORDER BY rain, time, lon) AS rn"
        " FROM w) AS s WHERE rn = 1 AND lat > 40",
        "WITH W AS (SELECT * FROM w WHERE lat > 40) SELECT count(*) FROM w WHERE lon > 3",
        "WITH Box AS (SELECT lat, lon FROM w WHERE lat > 40) SELECT count(*) FROM bOX WHERE lon > 3",
        "SELECT * FROM w WHERE lat > 55 UNION SELECT * FROM w WHERE lat < 36 ORDER BY 1, 2, 3 LIMIT 3",
        "SELECT * FROM (SELECT lat FROM w UNION ALL SELECT lat FROM w ORDER BY lat LIMIT 3) WHERE lat > 40",
        "WITH c AS (SELECT lat, lon FROM w) SELECT count(*) FROM c WHERE lat > 45 AND lon IN"
        " (SELECT lon FROM c WHERE lat < 40)",
        f"SELECT count(*) FROM w WHERE {' OR '.join(f'lon = {each}' for each in range(400))}",
    ],
)
def test_unusual_queries_are_parsed_correctly(text: str) -> None:
    check(text.replace('"x"', "'x'"))


@pytest.mark.parametrize(
    ("text", "columns", "chunks"),
    [
        ("SELECT avg(t2m) FROM w WHERE lat BETWEEN 40 AND 46", {"t2m", "lat"}, 3 * 1 * 2),
        ("SELECT avg(t2m) FROM w WHERE time >= '2020-01-02'", {"t2m", "time"}, 2 * 2 * 2),
        ("SELECT avg(t2m), sum(rain) FROM w WHERE lon = 0", {"t2m", "rain", "lon"}, 2 * 3 * 2 * 1),
        ("SELECT count(*) FROM w", set(), 0),
        ("SELECT DISTINCT lat FROM w WHERE lon > 100", {"lat", "lon"}, 0),
        ("SELECT max(t2m) FROM w WHERE lat > 50 OR lat < 36", {"t2m", "lat"}, 3 * 2 * 2),
        ("SELECT max(t2m) FROM w WHERE lat > 50 AND (lon < 3 OR lon > 100)", {"t2m", "lat", "lon"}, 3),
        ("SELECT max(t2m) FROM w WHERE NOT (lat <= 50) AND lon IN (0, 2.5)", {"t2m", "lat", "lon"}, 3),
        ("SELECT max(t2m) FROM w WHERE year(time) = 2019", {"t2m", "time"}, 1 * 2 * 2),
        ("SELECT max(t2m) FROM w WHERE date(time) = DATE '2020-01-06'", {"t2m", "time"}, 1 * 2 * 2),
        ("SELECT max(t2m) FROM w WHERE date_trunc('month', time) > '2020-01-01'", {"t2m", "time"}, 0),
        ("SELECT max(t2m) FROM w WHERE trunc(time, 'month') = DATE '2019-12-01'", {"t2m", "time"}, 4),
        ("SELECT max(t2m) FROM w WHERE trunc(time, 'month') = '2019-12-01 05:00:00'", {"t2m", "time"}, 12),
        ("SELECT max(t2m) FROM w WHERE time = TIMESTAMP '2020-01-06 00:00:00'", {"t2m", "time"}, 4),
        (
            "SELECT max(t2m) FROM w WHERE extract(month FROM time) = 1 AND abs(lat) > 59",
            {"t2m", "time", "lat"},
            4,
        ),
        ("SELECT max(t2m) FROM w WHERE rain > 3 AND lat > 50", {"t2m", "rain", "lat"}, 2 * 3 * 2),
        ("SELECT max(m) FROM (SELECT t2m AS m, lat AS l FROM w) AS s WHERE l > 50", {"t2m", "lat"}, 6),
        (
            "WITH s AS (SELECT * FROM w WHERE lon = 0) SELECT max(t2m) FROM s WHERE lat > 50",
            {"t2m", "lat", "lon"},
            3,
        ),
        (
            "SELECT max(t2m) FROM (SELECT * FROM (SELECT * FROM w) AS s) AS t WHERE lat > 50",
            {"t2m", "lat"},
            6,
        ),
        ("SELECT m FROM (SELECT lat AS l, max(t2m) AS m FROM w GROUP BY 1) WHERE l > 50", {"t2m", "lat"}, 6),
        ("SELECT lat, a FROM w PIVOT (sum(rain) FOR lon IN (0 AS a))", None, 2 * 12),
        ("SELECT max(t2m) FROM w TABLESAMPLE (10 ROWS) WHERE lat > 50", {"t2m", "lat"}, 12),
    ],
)
def test_queries_read_only_the_chunks_that_they_need(
    text: str, columns: set[str] | None, chunks: int
) -> None:
    (need,) = needs(text)
    table, selection = pruned(need)
    made = make_plan(table, selection)

    with counted_chunks(pytest.MonkeyPatch()) as fetched:
        read_all(SESSION, made)

    assert need.columns == columns
    coordinates = sum(column.array is not None for column in table.columns) - len(table.variables)
    assert len(fetched) == chunks + coordinates * made.partitions


def test_each_use_of_a_table_has_its_own_columns_and_conditions() -> None:
    north, south = needs("SELECT a.t2m FROM w a JOIN w b ON a.time = b.time WHERE a.lat > 50 AND b.lat < 40")

    assert north.columns == {"t2m", "time", "lat"}
    assert south.columns == {"time", "lat"}
    assert [each.sql() for each in north.conditions] != [each.sql() for each in south.conditions]


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("a JOIN w b USING (time, lat) WHERE lat > 50", ["a.lat > 50"], ["b.lat > 50"]),
        ("a, w b WHERE a.lat = b.lat AND b.lat > 50", ["a.lat > 50"], ["b.lat > 50"]),
        ("a LEFT JOIN w b ON a.lat = b.lat WHERE a.lat > 50", ["a.lat > 50"], ["b.lat > 50"]),
        ("a LEFT JOIN w b ON a.lat = b.lat AND b.lat > 50", [], ["b.lat > 50"]),
        ("a LEFT ANTI JOIN w b ON a.lat = b.lat AND b.lat > 50", [], ["b.lat > 50"]),
        ("a FULL JOIN w b USING (lat) WHERE lat > 50", [], []),
        ("a JOIN w b ON a.lat = b.rain WHERE a.lat > 50", ["a.lat > 50"], []),
    ],
)
def test_conditions_are_derived_through_joins(text: str, first: list[str], second: list[str]) -> None:
    found = needs(f"SELECT a.rain FROM w {text}")

    assert [[each.sql().replace('"', "") for each in need.conditions] for need in found] == [first, second]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT t FROM (SELECT time AS t FROM w UNION ALL SELECT '2020') WHERE t > '2020-01-01'",
        "SELECT l FROM (SELECT lat AS l FROM w UNION SELECT rain FROM w) WHERE l > 5",
        "WITH RECURSIVE r AS (SELECT lat l FROM w UNION ALL SELECT l - 5 FROM r) SELECT l FROM r WHERE l < 9",
        "SELECT lat FROM (SELECT lat, max(rain) AS m FROM w GROUP BY lat) WHERE m > 5",
        "SELECT lat FROM (SELECT lat, max(rain) AS m FROM w GROUP BY ROLLUP (lat)) WHERE lat > 5",
        "SELECT lat FROM (SELECT lat, sum(max(rain)) OVER () AS m FROM w GROUP BY lat) WHERE lat > 5",
        "SELECT lat FROM (SELECT max(lat) AS lat, lon FROM w GROUP BY lon) WHERE lat > 5",
        "SELECT lat FROM (SELECT lat, rain FROM w ORDER BY rain LIMIT 5) WHERE lat > 5",
        "SELECT lat FROM (SELECT lat FROM w UNION ALL SELECT lat FROM w LIMIT 5) WHERE lat > 5",
        "SELECT lat FROM ((SELECT lat FROM w) LIMIT 5) x WHERE lat > 5",
        "SELECT lat FROM (((SELECT lat FROM w) LIMIT 5) UNION ALL SELECT 7) WHERE lat > 5",
        "SELECT lat FROM (SELECT lat FROM w) x TABLESAMPLE (5 ROWS) WHERE lat > 5",
        "WITH c AS (SELECT lat FROM w) SELECT * FROM c x LEFT SEMI JOIN c y ON x.lat > y.lat WHERE x.lat > 5",
        "FROM w |> LIMIT 5 |> WHERE lat > 5",
    ],
)
def test_conditions_that_cannot_be_pushed_down_stay_in_the_query(text: str) -> None:
    assert next(iter(needs(text))).conditions == []


def test_versions_and_positions_of_tables_are_found() -> None:
    text = "SELECT * FROM w VERSION AS OF 'v1' a JOIN w FOR TIMESTAMP AS OF '2024-05-01' JOIN w.refs r, v.x"

    query = parse_query(text, ["W"])

    assert [use.version for use in query.uses] == [{"versionAsOf": "v1"}, {"timestampAsOf": "2024-05-01"}, {}]
    assert [use.rest for use in query.uses] == [(), (), ("refs",)]
    assert (
        query.rewrite({0: "t0", 1: "t1", 2: "t2"}) == "SELECT * FROM {t0} a JOIN {t1} AS `W` JOIN {t2} r, v.x"
    )


def test_table_alias_may_follow_tablesample() -> None:
    query = parse_query("SELECT w.lat FROM w TABLESAMPLE (5 ROWS) REPEATABLE (1) WHERE w.lat > 5", ["w"])

    made = query.rewrite({0: "t"})

    assert made == "SELECT w.lat FROM {t} TABLESAMPLE (5 ROWS) REPEATABLE (1) AS `w` WHERE w.lat > 5"


def test_unparsable_query_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="the query cannot be parsed"):
        parse_query("SELECT FROM WHERE", ["w"])
    with pytest.raises(InvalidInputError, match="the version of w must be a literal"):
        parse_query("SELECT * FROM w TIMESTAMP AS OF current_date()", ["w"])


@pytest.mark.parametrize("text", ["OPTIMIZE w", "EXPLAIN SELECT * FROM w", "SHOW TABLES", "CALL f()"])
def test_parsing_logs_no_warnings(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with suppress(InvalidInputError):
        parse_query(text, ["w"])

    assert caplog.messages == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("TABLE w", "w is a repository, which this statement cannot use"),
        ("DESCRIBE w", "w is a repository"),
        ("EXPLAIN SELECT * FROM w", "w is a repository"),
        ("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT * FROM w", "create it from the result"),
        ("CACHE TABLE v AS SELECT * FROM w", "create it from the result"),
    ],
)
def test_statements_other_than_queries_are_rejected(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        parse_query(text, ["w"])
