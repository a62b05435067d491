"""Tables, generated SQL queries and their expected rows."""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import xarray as xr
from hypothesis import strategies as st

from icefloe.query.encode import merge_keys, to_keys
from icefloe.query.scan.plan import TableScan, make_plan
from icefloe.query.scan.selection import Coordinates, Selection
from icefloe.query.schema import ArrayTable, find_tables
from icefloe.query.spark_types import to_spark_type
from icefloe.query.sql.analysis import TableNeeds
from icefloe.query.sql.parse import Edit, Query
from icefloe.query.sql.pruning import prune_scan
from icefloe.query.write.blocks import place_rows, write_sorted
from icefloe.query.write.target import Template, find_dims, prepare
from icefloe.session import Session
from tests.support.spark.weather import CHUNKS, read_all, repository, weather


def write_table(
    session: Session, rows: pa.Table, template: Template | None = None, mode: str = "append", group: str = "/"
) -> None:
    """Write a data frame as Spark does, in one process."""
    template = template or Template()
    dims = find_dims(session, group, rows.schema.names, template)
    whole = rows.combine_chunks()
    keys = {dim: merge_keys([to_keys(whole.column(dim).combine_chunks(), dim)]) for dim in dims}
    target = prepare(session, group, rows.schema, dims, keys, template, mode)
    batches = [place_rows(target, batch) for batch in whole.to_batches(max_chunksize=7)]
    ordered = pa.Table.from_batches(batches).sort_by("__block")
    write_sorted(session, target, iter(ordered.to_batches(max_chunksize=5)))


def as_rows(dataset: xr.Dataset) -> pa.Table:
    frame = dataset.to_dataframe().reset_index()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    at = table.schema.get_field_index("time")
    return table.set_column(at, "time", table["time"].cast(pa.timestamp("us"))) if at >= 0 else table


REPO = repository(weather(), encoding=CHUNKS)


SESSION = REPO.readonly_session("main")


TABLE = find_tables(SESSION).choose(None)


COLUMNS = {column.name: to_spark_type(column.arrow) for column in TABLE.columns}


COORDINATES = Coordinates(SESSION, TABLE)


EVERYTHING = Selection.everything(TABLE)


WHOLE = read_all(SESSION, make_plan(TABLE, EVERYTHING))


def pruned(need: TableNeeds) -> tuple[ArrayTable, Selection]:
    scan = prune_scan(TableScan(SESSION, TABLE, COORDINATES, EVERYTHING), need, utc=True)
    return scan.table, scan.selection


class _Spread:
    """An aggregate function that SQLite lacks."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def step(self, value: float | None, /) -> None:
        self._values += [] if value is None else [value]

    def finalize(self) -> float | None:
        return statistics.stdev(self._values) if len(self._values) > 1 else None


class _SpreadOfAll(_Spread):
    def finalize(self) -> float | None:
        return statistics.pvariance(self._values) if self._values else None


def answer(query: Query, tables: list[pa.Table], edits: Iterable[Edit] = ()) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(":memory:")
    database.create_function("month", 1, lambda day: day and int(day[5:7]), deterministic=True)
    database.create_function("year", 1, lambda day: day and int(day[:4]), deterministic=True)
    database.create_function("greatest", 2, lambda a, b: None if None in (a, b) else max(a, b))
    database.create_aggregate("stddev", 1, _Spread)  # type: ignore[arg-type]
    database.create_aggregate("var_pop", 1, _SpreadOfAll)  # type: ignore[arg-type]
    names = {}
    for number, table in enumerate(tables):
        names[number] = f"t{number}"
        columns = ", ".join(f'"{name}"' for name in table.schema.names)
        database.execute(f"CREATE TABLE t{number} ({columns})")
        places = ", ".join("?" * table.num_columns)
        values = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
        database.executemany(f"INSERT INTO t{number} VALUES ({places})", zip(*values, strict=True))
    made = query.rewrite(names, edits).format(**{name: name for name in names.values()})
    found = database.execute(made).fetchall()
    database.close()
    return sorted(found, key=repr)


def _plain(value: Any) -> Any:
    return f"{value:%Y-%m-%d}" if hasattr(value, "year") else value


numbers = st.sampled_from(["35", "40.0", "45", "47.5", "-10", "60", "2.5", "7", "12.5", "1e1"])


days = st.sampled_from(["'2019-12-28'", "'2019-12-31'", "'2020-01-01'", "'2020-01-04'", "'2021-01-01'"])


words = st.sampled_from(["=", "<", "<=", ">", ">=", "<>", "!="])


def comparisons(alias: str) -> st.SearchStrategy[str]:
    column = st.sampled_from([f"{alias}lat", f"{alias}lon"])
    time = st.just(f"{alias}time")
    return st.one_of(
        st.builds("{} {} {}".format, column, words, numbers),
        st.builds("{2} {1} {0}".format, column, words, numbers),
        st.builds("{} BETWEEN {} AND {}".format, column, numbers, numbers),
        st.builds("{} NOT BETWEEN {} AND {}".format, column, numbers, numbers),
        st.builds("{} IN ({}, {})".format, column, numbers, numbers),
        st.builds("{} NOT IN ({}, {}, NULL)".format, column, numbers, numbers),
        st.builds("{} {} {}".format, time, words, days),
        st.builds("month({}) {} {}".format, time, words, st.sampled_from(["1", "12", "6"])),
        st.builds("year({}) = {}".format, time, st.sampled_from(["2019", "2020"])),
        st.builds("{}t2m > {}".format, st.just(alias), st.sampled_from(["270", "285"])),
        st.builds("{}rain * 2 < {}".format, st.just(alias), st.sampled_from(["50", "150"])),
        st.builds("{}lat + 0 > {}".format, st.just(alias), numbers),
        st.builds("{}t2m IS NULL".format, st.just(alias)),
        st.builds("{0}lat < {0}lon".format, st.just(alias)),
    )


def conditions(alias: str = "") -> st.SearchStrategy[str]:
    return st.recursive(
        comparisons(alias),
        lambda inner: st.one_of(
            st.builds("({} AND {})".format, inner, inner),
            st.builds("({} OR {})".format, inner, inner),
            st.builds("NOT ({})".format, inner),
        ),
        max_leaves=5,
    )


joins = st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "INNER JOIN"])


sums = st.sampled_from(["count(*)", "sum(rain)", "min(t2m)", "count(t2m), max(lat)", "count(DISTINCT time)"])


def queries() -> st.SearchStrategy[str]:
    c, a, b = conditions(), conditions("a."), conditions("b.")
    match = "a.time = b.time AND a.lat = b.lat AND a.lon = b.lon"
    few = "a.time = b.time AND a.lon = 0 AND b.lon = 2.5"
    return st.one_of(
        st.builds("SELECT {} FROM w WHERE {}".format, sums, c),
        st.builds("SELECT lat, {} FROM w WHERE {} GROUP BY lat HAVING count(*) > 3".format, sums, c),
        st.builds("SELECT * FROM w WHERE {}".format, c),
        st.builds(
            "SELECT a.lat, b.rain FROM w a JOIN w AS b ON {} AND {} WHERE {}".format, st.just(match), a, b
        ),
        st.builds(
            "SELECT count(*), sum(a.rain), sum(b.rain) FROM w a {} w b ON {} AND {} WHERE {}".format,
            joins,
            st.just(few),
            b,
            a,
        ),
        st.builds(
            "SELECT count(*), sum(b.lat) FROM w a, w b WHERE {} AND {} AND {}".format, st.just(few), a, b
        ),
        st.builds("SELECT lat FROM w WHERE {} UNION SELECT lon FROM w WHERE {}".format, c, c),
        st.builds("SELECT lat, rain FROM w WHERE {} EXCEPT SELECT lat, rain FROM w WHERE {}".format, c, c),
        st.builds(
            "WITH x AS (SELECT lat, time, rain FROM w WHERE {}) SELECT {} FROM x JOIN (SELECT 1 AS one)"
            " WHERE lat > {}".format,
            c,
            st.just("sum(rain)"),
            numbers,
        ),
        st.builds(
            "WITH x AS (SELECT lat AS l, rain FROM w) SELECT p.l, count(*) FROM x p JOIN x q ON p.l = q.l"
            " AND p.rain = q.rain WHERE p.l > {} AND q.l < {} GROUP BY p.l".format,
            numbers,
            numbers,
        ),
        st.builds("SELECT {} FROM (SELECT * FROM w WHERE {}) AS s WHERE {}".format, sums, c, c),
        st.builds(
            "SELECT {} FROM (SELECT * FROM w ORDER BY rain, time, lat, lon LIMIT 100) AS s WHERE {}".format,
            sums,
            c,
        ),
        st.builds(
            "SELECT count(*) FROM (SELECT lat AS l, rain AS r FROM w UNION ALL SELECT lon, rain FROM w"
            " WHERE {}) AS s WHERE l >= {}".format,
            c,
            numbers,
        ),
        st.builds("SELECT {} FROM w WHERE {} AND lat IN (SELECT lat FROM w WHERE {})".format, sums, c, c),
        st.builds(
            "SELECT count(*) FROM w a WHERE {} AND NOT EXISTS (SELECT 1 FROM w b WHERE b.rain > a.rain AND"
            " b.lat = a.lat AND {})".format,
            a,
            b,
        ),
        st.builds(
            "SELECT lat, (SELECT max(b.rain) FROM w b WHERE b.lat = a.lat AND {}) FROM w a WHERE {}".format,
            b,
            a,
        ),
        st.builds("SELECT CASE WHEN {} THEN 1 ELSE 0 END AS k, count(*) FROM w GROUP BY k".format, c),
        st.builds("SELECT sum(rain) FILTER (WHERE {}) FROM w".format, c),
        st.builds(
            "SELECT row_number() OVER (PARTITION BY lat ORDER BY rain, time, lon) FROM w WHERE {}".format,
            c,
        ),
        st.builds("SELECT LAT, Sum(Rain) FROM W WHERE {} GROUP BY Lat".format, c),
    )


def rounded(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    def plain(value: Any) -> Any:
        return float(f"{value:.9g}") if isinstance(value, float) else value

    return sorted((tuple(map(plain, row)) for row in rows), key=repr)


AGGREGATES = [
    "count(*)",
    "count(1)",
    "count(t2m)",
    "sum(rain)",
    "avg(t2m)",
    "min(t2m), max(t2m)",
    "stddev(t2m)",
    "var_pop(rain)",
    "max(rain) - min(rain) AS width",
    "avg(t2m - 273.15)",
    "sum(t2m * 1.5 * lat) / sum(lat)",
    "avg(w.t2m) - avg(lat)",
    "max(t2m * 1.8 - 459.67)",
    "avg(CASE WHEN month(time) = 1 THEN t2m END)",
    "count(CASE WHEN lat > 45 THEN rain END)",
    "sum(rain) FILTER (WHERE lon < 5)",
    "count(*) FILTER (WHERE lat + 1 > 45)",
    "count(DISTINCT lat)",
    "min(time), max(lat)",
    "count(lat)",
]


KEYS = [
    "lat",
    "lon",
    "month(time)",
    "year(time), lat",
    "CASE WHEN lat > 45 THEN 'north' ELSE 'south' END",
    "round(lat / 10)",
    "lat + lon",
    "time",
]


about_coordinates = comparisons("").filter(lambda text: "t2m" not in text and "rain" not in text)


about_values = st.sampled_from(
    [
        *("t2m > 285", "t2m <= 300.5", "260 < t2m", "NOT (t2m < 275)", "t2m <> 280", "rain = 7", "rain < 12"),
        *("rain BETWEEN 10 AND 60", "rain IN (1, 2, 3)", "rain NOT IN (4, 5)", "(rain < 5 OR rain > 95)"),
        *("t2m IS NULL", "t2m IS NOT NULL", "(t2m IS NULL OR t2m > 290)", "t2m > 400", "rain >= 0"),
    ]
)
"""Conditions on variables. Of the chunks, they select all cells, some or none."""


def shaped(*, by_value: bool = False) -> st.SearchStrategy[str]:
    """Generate SELECTs that groups of cells can answer, unless they have certain conditions `by_value`."""
    aggregates = st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=3, unique=True).map(", ".join)
    key, one = st.sampled_from(KEYS), st.sampled_from([each for each in AGGREGATES if "," not in each])
    where = st.lists(
        st.one_of(about_coordinates, about_values) if by_value else about_coordinates, max_size=2
    ).map(lambda parts: "WHERE " + " AND ".join(parts) if parts else "")
    plain = one.map(lambda text: text.partition(" AS ")[0])
    return st.one_of(
        st.builds("SELECT {} FROM w {}".format, aggregates, where),
        st.builds("SELECT {0}, {1} FROM w {2} GROUP BY {0}".format, key, aggregates, where),
        st.builds(
            "SELECT {0} AS k, {1} FROM w {2} GROUP BY {0} HAVING {3} > 10".format,
            key,
            aggregates,
            where,
            plain,
        ),
        st.builds(
            "SELECT {0}, {1} AS t2m FROM w {2} GROUP BY {0} ORDER BY t2m LIMIT 100".format, key, plain, where
        ),
        st.builds("SELECT DISTINCT {} FROM w {}".format, key, where),
        st.builds(
            "WITH m AS (SELECT lat, {0} AS v FROM w {1} GROUP BY lat) SELECT a.lat, a.v, b.v FROM m a"
            " JOIN m b ON a.lat = b.lat WHERE a.lat > 40".format,
            plain,
            where,
        ),
        st.builds(
            "SELECT lat, rain - m FROM (SELECT lat AS l, avg(rain) AS m FROM w {} GROUP BY lat) s"
            " JOIN w ON w.lat = s.l WHERE lon = 0".format,
            where,
        ),
        st.builds("SELECT lon, sum({}) OVER (ORDER BY lon) FROM w {} GROUP BY lon".format, plain, where),
        st.builds(
            "SELECT {} FROM w WHERE lat IN (SELECT lat FROM w WHERE {})".format, aggregates, conditions()
        ),
    )
