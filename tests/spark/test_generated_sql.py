"""Compare generated queries on Spark with full scans, with pruning and with partial aggregates.

Part of `make test-cluster`; `ICEFLOE_QUERIES=2000` runs more queries.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

import icefloe
from icefloe.spark import sql
from tests.support.query import rounded
from tests.support.spark.weather import CHUNKS, put, repository, weather

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
    pytest.mark.filterwarnings(
        "ignore::zarr.errors.UnstableSpecificationWarning"
    ),  # string columns are recent there
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

QUERIES = int(os.environ.get("ICEFLOE_QUERIES", "40"))
ZONES = ["UTC", "America/Los_Angeles", "Asia/Kolkata", "America/Sao_Paulo"]


def stations() -> xr.Dataset:
    """Create coordinates of other types: text, integers, floats with gaps, and hours with clock changes."""
    random = np.random.default_rng(3)
    hours = np.datetime64("2018-11-03T18", "ns") + np.arange(12) * np.timedelta64(3600 * 10**9, "ns")
    shape = (12, 5, 4)
    return xr.Dataset(
        {
            "wind": (("hour", "name", "level"), random.normal(5, 3, shape).astype("f4")),
            "flag": (("hour", "name", "level"), random.random(shape) < 0.5),
        },
        {
            "hour": hours,
            "name": np.array(["Ham burg", "Zürich", "bergen", "Oslo", "O'Hare"]),
            "level": np.array([10, 20, 2**40, -5]),
            "height": ("level", np.array([0.1, 20.3, np.nan, 47.5], "f4")),
        },
    )


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> icefloe.Repository:
    path = str(tmp_path_factory.mktemp("generated") / "repo")
    made = repository(weather(), icefloe.local_filesystem_storage(path), CHUNKS)
    put(made, stations(), {"wind": {"chunks": (5, 2, 2)}}, group="s")
    made.create_tag("v1", made.lookup_branch("main"))
    session = made.writable_session("main")
    changed = weather().assign(rain=weather()["rain"] + 1000)
    changed[["rain"]].drop_vars(["time", "lat", "lon"]).to_zarr(session.store, mode="r+", consolidated=False)
    session.commit("more rain")
    for name, options in {"w": {}, "w_v1": {"tag": "v1"}, "w_s": {"group": "s"}}.items():
        loaded = spark.read.format("icechunk").options(path=path, **options).load()
        loaded.cache().createOrReplaceTempView(name)
    return made


one = st.sampled_from
WORDS = one(["=", "<", "<=", ">", ">=", "<>", "!=", "<=>"])
NUMBERS = one(
    [
        "35",
        "40.0",
        "45",
        "47.5",
        "-10",
        "60",
        "2.5",
        "7",
        "12.5",
        "1e1",
        "45.0D",
        "45L",
        "40.00000000000000000001",
        "'45'",
        "NULL",
        "1000000",
    ]
)
DAYS = one(
    [
        "'2019-12-28'",
        "DATE '2019-12-31'",
        "'2020-01-01'",
        "TIMESTAMP '2020-01-02 00:00:00'",
        "TIMESTAMP_NTZ '2020-01-03 06:00:00'",
        "CAST('2020-01-04' AS DATE)",
        "'2020'",
        "'2020-01'",
        "DATE '2020-01-01' + INTERVAL 1 DAY",
        "date_add(DATE '2020-01-01', 2)",
        "NULL",
    ]
)
HOURS = one(
    [
        "'2018-11-04 01:00'",
        "TIMESTAMP '2018-11-04 00:30:00'",
        "DATE '2018-11-04'",
        "TIMESTAMP_NTZ '2018-11-04 02:00:00'",
        "TIMESTAMP '2018-11-04 06:00:00Z'",
    ]
)


def cells(a: str) -> st.SearchStrategy[str]:
    """Generate conditions on the weather table."""
    place = one([f"{a}lat", f"{a}lon", f"{a}LAT", f"{a}`lon`"])
    return st.one_of(
        st.builds("{} {} {}".format, place, WORDS, NUMBERS),
        st.builds("{2} {1} {0}".format, place, WORDS, NUMBERS),
        st.builds("{} {}BETWEEN {} AND {}".format, place, one(["", "NOT "]), NUMBERS, NUMBERS),
        st.builds("{} {}IN ({}, {})".format, place, one(["", "NOT "]), NUMBERS, NUMBERS),
        st.builds("{} {}IN ({}, {})".format, st.just(f"{a}time"), one(["", "NOT "]), DAYS, DAYS),
        st.builds("{}time {} {}".format, st.just(a), WORDS, DAYS),
        st.builds("{}({}time) {} {}".format, one(PARTS), st.just(a), WORDS, one(["1", "12", "2020", "0"])),
        st.builds("date_trunc('{}', {}time) {} {}".format, one(UNITS), st.just(a), WORDS, DAYS),
        st.builds("{}({}time) {} {}".format, one(["date", "to_date"]), st.just(a), WORDS, DAYS),
        st.builds("extract({} FROM {}time) > {}".format, one(UNITS), st.just(a), one(["1", "11"])),
        st.builds("{}({}) {} {}".format, one(["abs", "-", "round", "floor", "cos"]), place, WORDS, NUMBERS),
        st.builds("{} IS {}NULL".format, one([f"{a}lat", f"{a}t2m"]), one(["", "NOT "])),
        st.builds("CASE WHEN {} > 45 THEN {} < 5 ELSE {} = 10 END".format, place, place, place),
        st.builds("coalesce({}, 0) > {}".format, one([f"{a}lat", f"{a}t2m"]), NUMBERS),
        st.builds("cast({} AS {}) {} {}".format, place, one(["int", "float", "string"]), WORDS, NUMBERS),
        st.builds("{0}lat {1} {0}lon".format, st.just(a), WORDS),
        st.builds("{}rain % 7 = {}".format, st.just(a), one(["1", "3"])),
        st.builds("string({}time) LIKE '{}'".format, st.just(a), one(["2019%", "%-01-0_ %"])),
    )


def points(a: str) -> st.SearchStrategy[str]:
    """Generate conditions on the stations table."""
    name = one([f"{a}name", f"lower({a}name)", f"{a}NAME"])
    texts = one(["'Oslo'", "'bergen'", "'Zürich'", "'O''Hare'", "''", "'zzz'", "5"])
    levels = one(
        [
            "10",
            "20",
            "1099511627776",
            "-5",
            "10.5",
            "10.00000000000000000001",
            "1e1",
            "'20'",
            "9223372036854775807",
        ]
    )
    return st.one_of(
        st.builds("{} {} {}".format, name, WORDS, texts),
        st.builds("{} IN ({}, {})".format, name, texts, texts),
        st.builds("{} LIKE '{}'".format, name, one(["O%", "%r%", "O''%"])),
        st.builds("{}level {} {}".format, st.just(a), WORDS, levels),
        st.builds("{}level NOT IN ({}, {})".format, st.just(a), levels, levels),
        st.builds("{}height {} {}".format, st.just(a), WORDS, one(["0.1", "20.3", "20.3F", "47.5", "20"])),
        st.builds("{}hour {} {}".format, st.just(a), WORDS, HOURS),
        st.builds("date_trunc('{}', {}hour) {} {}".format, one(["day", "hour"]), st.just(a), WORDS, HOURS),
        st.builds("hour({}hour) {} {}".format, st.just(a), WORDS, one(["0", "1", "23"])),
        st.builds("{}{}flag".format, one(["", "NOT "]), st.just(a)),
        st.builds("{}height IS NULL".format, st.just(a)),
    )


PARTS = ["year", "month", "day", "dayofmonth", "dayofyear", "quarter", "hour", "weekday", "weekofyear"]
UNITS = ["year", "month", "day", "hour"]


def joined(leaves: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Combine conditions."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds("({} {} {})".format, inner, one(["AND", "OR"]), inner),
            st.builds("NOT ({})".format, inner),
        ),
        max_leaves=4,
    )


KEYS = one(
    [
        "lat",
        "lon",
        "month(time)",
        "time",
        "date_trunc('month', time)",
        "round(lat / 10)",
        "lat > 45",
        "CASE WHEN lon < 5 THEN 1 END",
    ]
)
VALUES = one(
    [
        "count(*)",
        "sum(rain)",
        "avg(t2m)",
        "min(t2m)",
        "max(rain)",
        "count(t2m)",
        "stddev(t2m)",
        "var_pop(rain)",
        "count(DISTINCT lat)",
        "avg(t2m - 273.15)",
        "sum(t2m * cos(radians(lat)))",
        "sum(CASE WHEN month(time) = 1 THEN rain END)",
        "avg(rain * t2m)",
        "min(lat)",
        "sum(lat)",
        "max_by(lat, rain * 100 + lon)",
        "count_if(t2m > 290)",
    ]
)
TABLES = one(["w", "w VERSION AS OF 'v1'"])
PARTS_OF_QUERIES: dict[str, st.SearchStrategy[str]] = {
    **{name: joined(cells(f"{name}.")) for name in "abwx"},
    "t": joined(cells("`t`.")),
    "c": joined(cells("")),
    "d": joined(cells("")),
    "place": joined(cells("").filter(lambda text: "t2m" not in text and "rain" not in text)),
    "key": KEYS,
    "value": VALUES,
    "some": st.lists(VALUES, min_size=1, max_size=3, unique=True).map(", ".join),
    "word": WORDS,
    "number": NUMBERS,
    "table": TABLES,
    "other": TABLES,
    "match": one(
        [
            "a.time = b.time AND a.lat = b.lat AND a.lon = b.lon",
            "a.time = b.time AND a.lon = 0 AND b.lon = 2.5",
            "b.lat = a.lat AND a.time = b.time AND a.lon > b.lon",
        ]
    ),
    "join": one(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]),
    "half": one(["LEFT SEMI JOIN", "LEFT ANTI JOIN", "SEMI JOIN"]),
    "set": one(["UNION", "UNION ALL", "EXCEPT", "INTERSECT"]),
    "cube": one(["CUBE", "ROLLUP", "GROUPING SETS"]),
    "term": one(["lon", "rain", "0", "lat + 1", "'x'"]),
    "not": one(["", "NOT "]),
    "s": joined(points("")),
    "point": joined(points("").filter(lambda text: "flag" not in text and "height" not in text)),
    "by": one(
        [
            "name",
            "level",
            "height",
            "hour",
            "date(hour)",
            "date_trunc('hour', hour)",
            "level % 3",
            "upper(name)",
        ]
    ),
    "values": one(
        [
            "count(*)",
            "avg(wind)",
            "max(wind), count(flag)",
            "count(height)",
            "min(hour), max(name)",
            "sum(height)",
        ]
    ),
}
TEMPLATES = (Path(__file__).parent / "templates.sql").read_text(encoding="utf-8").split("\n\n")[1:]


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Generate a query."""
    template = draw(one(TEMPLATES)).strip().replace("\n", " ")
    names = sorted(set(re.findall(r"{(\w+)}", template)))
    return template.format(**{name: draw(PARTS_OF_QUERIES[name]) for name in names})


@settings(
    max_examples=QUERIES,
    suppress_health_check=list(HealthCheck),
)
@given(text=queries(), zone=one(ZONES), ansi=one(["true", "true", "false"]))
def test_generated_queries_equal_full_scan(
    spark: Any, repo: icefloe.Repository, text: str, zone: str, ansi: str
) -> None:
    before = {name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")}
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        try:
            expected = answer(spark.sql(text.replace("w VERSION AS OF 'v1'", "w_v1").replace("w.s ", "w_s ")))
        except PySparkException:  # Spark rejects the query or one of its values
            return
        found = answer(sql(spark, text, {"w": repo}))
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)

    assert found == expected


def answer(frame: Any) -> Any:
    """Return the columns of a data frame with their types, and its rows."""
    return frame.schema.simpleString(), rounded([tuple(row) for row in frame.collect()])
