"""Compare `icefloe.spark.scan` and `icefloe.spark.sql` on a local Spark with xarray and with full scans."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import functions

import icefloe
from icefloe.errors import IcechunkError, InvalidInputError
from icefloe.spark import scan, sql
from icefloe.spark.progress import describe_jobs
from tests.support.query import queries, rounded, shaped
from tests.support.spark.weather import CHUNKS, frame_rows, opened, put, repository, weather

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> icefloe.Repository:
    path = str(tmp_path_factory.mktemp("sql") / "repo")
    made = repository(weather(), icefloe.local_filesystem_storage(path), CHUNKS)
    made.create_tag("v1", made.lookup_branch("main"))
    put(made, (weather() + 1).assign(height=(("lat", "lon"), np.ones((6, 8)))), group="more")
    session = made.writable_session("main")
    changed = weather().assign(rain=weather()["rain"] + 1000)
    changed[["rain"]].drop_vars(["time", "lat", "lon"]).to_zarr(session.store, mode="r+", consolidated=False)
    session.commit("more rain")
    return made


def collected(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_scan_equals_xarray_selection(spark: Any, repo: icefloe.Repository) -> None:
    made = scan(spark, repo, tag="v1").sel(lat=slice(50, 40), time=slice("2020", None)).isel(lon=[0, 3])

    found = made.select("t2m", "lat").to_df()

    chosen = opened(repo.readonly_session(tag="v1")).sel(lat=slice(50, 40), time=slice("2020", None))
    assert found.columns == ["t2m", "lat"]
    assert scan(spark, repo, columns=["t2m", "lat"]).to_df().columns == found.columns
    assert collected(found) == frame_rows(chosen.isel(lon=[0, 3]), ["t2m", "lat"])
    frame = made.to_df()
    assert frame.where("lat = 45").union(frame.where("lat = 40")).select("lat").distinct().count() == 2


def test_query_joins_two_versions(spark: Any, repo: icefloe.Repository) -> None:
    found = sql(
        spark,
        "SELECT b.lat, sum(a.rain - b.rain) FROM w a JOIN w VERSION AS OF 'v1' b USING (time, lat, lon)"
        " WHERE lat >= 50 GROUP BY b.lat",
        {"w": repo},
    )

    assert collected(found) == [(50.0, 80000), (55.0, 80000), (60.0, 80000)]


def test_sql_example_of_the_guide_works(spark: Any, repo: icefloe.Repository) -> None:
    found = sql(
        spark,
        "SELECT month(time) AS m, avg(t2m) AS mean FROM era5 VERSION AS OF 'v1' WHERE lat BETWEEN 40 AND 50"
        " AND time >= '2019-12-30' GROUP BY month(time)",
        {"era5": repo},
    )

    t2m = opened(repo.readonly_session(tag="v1"))["t2m"].astype("f8")
    chosen = t2m.sel(lat=slice(50, 40), time=slice("2019-12-30", None))
    expected = chosen.groupby("time.month").mean(...)
    assert {row.m: pytest.approx(row["mean"]) for row in found.collect()} == {
        int(month): float(expected.sel(month=month)) for month in (1, 12)
    }


def test_query_names_groups_arrays_and_metadata_tables(spark: Any, repo: icefloe.Repository) -> None:
    repos = {"w": repo}

    assert sql(spark, "SELECT max(rain) FROM w.more", repos).collect()[0][0] == weather()["rain"].max() + 1
    assert sql(spark, "SELECT count(height) FROM w.more", repos).collect()[0][0] == 48
    assert sql(spark, "SELECT * FROM w.more.height", repos).count() == 48
    assert sql(spark, "SELECT name FROM w.refs WHERE kind = 'tag'", repos).collect()[0][0] == "v1"
    assert sql(spark, "SELECT count(*) FROM w.snapshots", repos).collect()[0][0] == 4
    assert sql(spark, "SELECT sum(length) FROM w.chunks WHERE path = '/t2m'", repos).collect()[0][0] > 0
    changed = sql(spark, "SELECT DISTINCT path FROM w.`diff:v1..main` WHERE change = 'updated chunk'", repos)
    assert ("/rain",) in collected(changed)
    with pytest.raises(InvalidInputError, match="no table 'snapshot' in w; did you mean 'snapshots'"):
        sql(spark, "SELECT * FROM w.snapshot", repos)


def test_query_joins_spark_tables(spark: Any, repo: icefloe.Repository) -> None:
    spark.createDataFrame(
        [(60.0, "north"), (35.0, "south")], "lat double, name string"
    ).createOrReplaceTempView("places")

    found = sql(
        spark,
        "SELECT name, count(t2m) FROM w JOIN places ON w.lat = places.lat WHERE name = 'north' GROUP BY name",
        {"w": repo},
    )

    counted = int(opened(repo.readonly_session("main"))["t2m"].sel(lat=60.0).count())
    assert collected(found) == [("north", counted)]


def test_query_with_braces_can_have_an_empty_result(spark: Any, repo: icefloe.Repository) -> None:
    found = sql(spark, "SELECT '{x}' AS b, count(*), max(t2m) FROM w WHERE lat > 1000", {"w": repo})

    assert collected(found) == [("{x}", 0, None)]


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(st.one_of(queries(), shaped()))
def test_generated_queries_equal_full_scan(spark: Any, repo: icefloe.Repository, text: str) -> None:
    spark.read.format("icechunk").options(
        path=repo.storage.describe()["path"]
    ).load().createOrReplaceTempView("w")

    found, expected = sql(spark, text, {"w": repo}), spark.sql(text)

    assert found.columns == expected.columns
    assert [field.dataType for field in found.schema] == [field.dataType for field in expected.schema]
    assert rounded(collected(found)) == rounded(collected(expected))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "SELECT lat, avg(t2m), std(rain) FROM w WHERE month(time) = 1 GROUP BY ROLLUP (lat) ORDER BY 1",
            1,
        ),
        ("SELECT avg(t2m) FROM w WHERE lat > 40 UNION ALL SELECT max(t2m) FROM w WHERE rain > 1", 2),
        (
            "WITH m AS (SELECT date_trunc('MONTH', time) d, mean(t2m) t2m FROM w GROUP BY 1), x AS (SELECT"
            " max(t2m) AS t FROM m) SELECT d, t2m - t, lag(t2m) OVER (ORDER BY d) FROM m CROSS JOIN x",
            1,
        ),
        ("SELECT count(*), sum(t2m * cos(radians(lat))) / sum(cos(radians(lat))) FROM w", 1),
        (
            "SELECT * FROM (SELECT year(time) AS y, month(time) AS m, lon, rain FROM w)"
            " PIVOT (sum(rain) FOR m IN (1, 12))",
            0,
        ),
        ("SELECT lat, sum(rain) AS r FROM w GROUP BY lat HAVING avg(t2m) > 0 ORDER BY r DESC LIMIT 3", 1),
        ("SELECT lat FROM w WHERE t2m > (SELECT avg(t2m) FROM w) GROUP BY lat ORDER BY min(lat) + 1", 1),
        ("SELECT `avg(t2m)` FROM (SELECT lat, avg(t2m) FROM w GROUP BY lat)", 0),
    ],
)
def test_aggregate_queries_use_groups(spark: Any, repo: icefloe.Repository, text: str, parts: int) -> None:
    spark.read.format("icechunk").options(
        path=repo.storage.describe()["path"]
    ).load().createOrReplaceTempView("w")

    found, expected = sql(spark, text, {"w": repo}), spark.sql(text)

    assert found.schema.simpleString() == expected.schema.simpleString()
    assert rounded(collected(found)) == rounded(collected(expected))
    plan = found._jdf.queryExecution().analyzed().toString()
    assert len(set(re.findall(r"MapInArrow (icefloe [^(]* aggregate)", plan))) == parts


def test_small_tables_are_aggregated_from_rows_with_the_same_result(
    spark: Any, repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "SELECT sum(rain), count(*) FROM w WHERE lat > 40"
    from_groups = sql(spark, text, {"w": repo})
    monkeypatch.setattr("icefloe.query.sql.relations.FEW_ROWS", 10 * 4 * 8)
    from_rows = sql(spark, text, {"w": repo})

    shown = [str(each._jdf.queryExecution().analyzed()) for each in (from_groups, from_rows)]

    assert [" aggregate(" in each for each in shown] == [True, False]
    assert collected(from_groups) == collected(from_rows)


def test_star_over_union_ignores_case(spark: Any, repo: icefloe.Repository) -> None:
    text = "WITH Far AS (SELECT * FROM w WHERE lat > 50) SELECT count(*) FROM fAR TABLESAMPLE (100 PERCENT)"
    union = "SELECT * FROM w WHERE lat > 58 UNION SELECT * FROM w WHERE lat < 36 ORDER BY 3 LIMIT 2"

    assert collected(sql(spark, text, {"w": repo})) == [(10 * 2 * 8,)]
    assert [row["lon"] for row in sql(spark, union, {"w": repo}).collect()] == [0.0, 0.0]


def test_group_with_several_tables_needs_variable(spark: Any, repo: icefloe.Repository) -> None:
    with pytest.raises(InvalidInputError, match=r"has 2 tables.*such as repo\.more\.rain"):
        sql(spark, "SELECT count(*) FROM w.more", {"w": repo})
    with pytest.raises(AnalysisException, match="cannot be resolved"):
        sql(spark, "SELECT heigt, t2m FROM w.more", {"w": repo})

    assert collected(sql(spark, "SELECT count(*) FROM w.more.height", {"w": repo})) == [(6 * 8,)]
    assert collected(sql(spark, "SELECT count(height), max(lat) FROM w.more", {"w": repo})) == [(48, 60.0)]


def test_time_filters_select_the_same_rows_in_every_time_zone(spark: Any, repo: icefloe.Repository) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        for word in ("TIMESTAMP", "TIMESTAMP_NTZ", "DATE", ""):
            found = sql(spark, f"SELECT count(*) FROM w WHERE time >= {word} '2020-01-02'", {"w": repo})
            assert found.collect()[0][0] == 5 * 48
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_spark_errors_have_no_java_stack_trace(
    spark: Any, repo: icefloe.Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AnalysisException, match=r"`t2n` cannot be resolved. Did you mean .*`t2m`, .*`rain`"):
        sql(spark, "SELECT t2n FROM w VERSION AS OF 'v1' WHERE lat > 40", {"w": repo})

    assert "org.apache" not in capfd.readouterr().err


def test_missing_chunk_is_reported(spark: Any, tmp_path: Path) -> None:
    repository(weather(), icefloe.local_filesystem_storage(str(tmp_path)), CHUNKS)
    for chunk in (tmp_path / "chunks").iterdir():
        chunk.unlink()

    with pytest.raises(IcechunkError, match="object not found: chunks/"):
        sql(spark, "SELECT max(t2m) FROM w", {"w": str(tmp_path)})


def test_in_memory_repository_is_queried(spark: Any) -> None:
    made = repository(xr.Dataset({"v": ("x", np.arange(5))}))

    assert sql(spark, "SELECT sum(v) FROM r WHERE x >= 3", {"r": made}).collect()[0][0] == 7


@pytest.mark.parametrize(
    ("by", "size"),
    [("lat", 2**26), ("month(time), lon", 1), ("", 5000)],
)
def test_aggregates_equal_spark(spark: Any, repo: icefloe.Repository, by: str, size: int) -> None:
    keys = [each for each in by.split(", ") if each]
    made = scan(spark, repo, tag="v1", partition_bytes=size)
    results = {"t2m": ["mean", "max", "std"], "rain": ["sum", "min", "var"], "n": ("t2m", "count")}

    found = made.aggregate(by=keys, **results)

    wanted = (
        made.to_df()
        .groupBy(*(functions.expr(key) for key in keys))
        .agg(
            *(functions.expr(f"{name}(t2m)") for name in ("avg", "max", "stddev")),
            *(functions.expr(f"{name}(rain)") for name in ("sum", "min", "variance")),
            functions.expr("count(t2m)"),
        )
    )
    assert [field.dataType for field in found.schema] == [field.dataType for field in wanted.schema]
    for ours, theirs in zip(collected(found), collected(wanted), strict=True):
        assert ours[: len(keys)] == theirs[: len(keys)]
        assert ours[len(keys) :] == pytest.approx(theirs[len(keys) :], rel=1e-9)
    nothing = made.isel(lat=[]).aggregate(by=keys, n=("t2m", "count"), t2m="mean")
    assert collected(nothing) == ([] if keys else [(0, None)])


def jobs(spark: Any) -> list[str | None]:
    """Return the descriptions of all jobs from Spark's status, newest first."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    listed = context.statusStore().jobsList(None)
    found = (listed.apply(number).description() for number in range(listed.size()))
    return [description.get() if description.isDefined() else None for description in found]


def test_spark_jobs_have_descriptions(spark: Any, repo: icefloe.Repository) -> None:
    path, tip = repo.storage.describe()["path"], repo.lookup_branch("main")
    spark.sparkContext.setJobDescription(None)

    frame = scan(spark, repo, variables="t2m").to_df()
    frame.count()
    title, counts = str(jobs(spark)[0]).split(" (")
    assert title == f"icefloe {path} main @ {tip}: /t2m"
    assert counts == "12 chunks: 0 skipped, 0 from statistics, 12 read)"

    sql(spark, "SELECT max(rain) FROM w VERSION AS OF 'v1' WHERE t2m > 0", {"w": path}).collect()
    assert str(jobs(spark)[0]).split(" (")[0] == f"icefloe {path} v1 @ {repo.lookup_tag('v1')}: /rain, /t2m"

    scan(spark, repo, group="more", variables="rain").aggregate(rain="max").collect()
    assert str(jobs(spark)[0]).split(" (")[0] == f"icefloe {path} main @ {tip}: /more/rain"


def test_user_job_descriptions_are_kept(spark: Any, repo: icefloe.Repository) -> None:
    spark.sparkContext.setJobDescription("mine")
    try:
        sql(spark, "SELECT max(rain) FROM w", {"w": repo}).collect()

        assert jobs(spark)[0] == "mine"
        with describe_jobs(spark, "write"):
            spark.range(1).collect()
        assert jobs(spark)[0] == "mine: icefloe write"
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "mine"
    finally:
        spark.sparkContext.setJobDescription(None)
    spark.conf.set("spark.icefloe.jobDescriptions", "false")
    try:
        scan(spark, repo, variables="t2m").to_df().count()

        assert jobs(spark)[0] is None
    finally:
        spark.conf.unset("spark.icefloe.jobDescriptions")
