"""Views that follow a repository, and procedures as table functions, through Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import zarr
from pyspark.sql.functions import udtf
from pyspark.sql.types import IntegerType, StructType
from pyspark.sql.udtf import AnalyzeResult

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.query.metadata_tables import TABLES
from icefloe.spark import register, sql, views
from tests.support.servers.moto import make_bucket
from tests.support.spark.weather import CHUNKS, opened, put, repository, weather

METADATA_TABLES = views.METADATA_TABLES

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def few_metadata_tables() -> Iterator[None]:
    """Create views of three metadata tables only: Spark starts a Python process to analyze each of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "METADATA_TABLES", ("snapshots", "chunks", "refs"))
        yield


@pytest.fixture(scope="module")
def repo(
    few_metadata_tables: None, spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> icefloe.Repository:
    folder = tmp_path_factory.mktemp("register")
    found = repository(weather(), icefloe.local_filesystem_storage(str(folder / "repo")), CHUNKS)
    put(found, weather(2)[["rain"]], group="a/b")
    register(spark, reg=found)
    return found


def query(spark: Any, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(text).collect()]


def set_rain(repo: icefloe.Repository, value: int) -> str:
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="rain", mode="r+")
    array[0, 0, :2] = value
    return session.commit(f"rain {value}")


def test_view_shows_the_tip_and_a_frame_keeps_its_snapshot(spark: Any, repo: icefloe.Repository) -> None:
    text = "SELECT max(rain), count(*), count(t2m) FROM reg"
    set_rain(repo, 500)
    frame = spark.sql(text)
    frame.collect()
    set_rain(repo, 501)

    newer = query(spark, text)

    now = opened(repo.readonly_session("main"))
    assert newer == [(501, 480, int(now["t2m"].count()))]
    assert [tuple(row) for row in frame.collect()] == [(500, *newer[0][1:])]


def test_all_views_of_a_query_show_one_snapshot(spark: Any, repo: icefloe.Repository) -> None:
    set_rain(repo, 600)

    class Commit:
        @staticmethod
        def analyze() -> AnalyzeResult:
            set_rain(repo, 601)  # after Spark has analyzed the first view, and before the second
            return AnalyzeResult(StructType().add("value", IntegerType()))

        def eval(self) -> Iterator[tuple[int]]:
            yield (0,)

    spark.udtf.register("commit_in_analysis", udtf(Commit))
    rain = "SELECT max(rain) FROM reg"
    newest = "SELECT count(*) FROM reg_snapshots WHERE message LIKE 'rain 60%'"

    found = query(
        spark, f"{rain} UNION ALL SELECT * FROM commit_in_analysis() UNION ALL {rain} UNION ALL {newest}"
    )

    commits = sum(info.message.startswith("rain 60") for info in repo.ancestry(branch="main"))
    assert found == [(601,), (0,), (601,), (commits,)]


def test_view_shows_a_tip_whose_writer_has_a_clock_ahead_of_the_driver(repo: icefloe.Repository) -> None:
    ancestors = [info.id for info in repo.ancestry(branch="main")]

    assert views._find_snapshot(repo, ancestors[0], 0) == ancestors[0]
    assert views._find_snapshot(repo, ancestors[1], 0) == ancestors[1]
    assert views._find_snapshot(repo, ancestors[1], time.time_ns() // 1000) == ancestors[0]


def test_view_returns_the_rows_of_the_table(spark: Any, repo: icefloe.Repository) -> None:
    found = query(spark, "SELECT * FROM reg WHERE lat = 60 ORDER BY time, lon")
    of_group = query(spark, "SELECT count(*), sum(rain) FROM reg_a_b")

    wanted = opened(repo.readonly_session("main")).sel(lat=60).to_dataframe().reset_index()
    columns = ["time", "lat", "lon", "rain"]
    names = spark.table("reg").columns
    assert [tuple(row[names.index(name)] for name in columns) for row in found] == [
        tuple(row) for row in wanted[columns].itertuples(index=False)
    ]
    assert of_group == [(96, int(weather(2)["rain"].sum()))]


def test_insert_writes_through_the_write_view(spark: Any, repo: icefloe.Repository) -> None:
    row = "VALUES (timestamp_ntz'2020-01-07', 60D, 0D, 281.5F, 4S)"
    names = ", ".join(spark.table("reg").columns)
    order = {"time": 0, "lat": 1, "lon": 2, "t2m": 3, "rain": 4}
    values = row.removeprefix("VALUES (").removesuffix(")").split(", ")
    row = f"VALUES ({', '.join(values[order[name]] for name in names.split(', '))})"

    with pytest.raises(Exception, match="'INSERT' expects a table but `reg` is a view"):
        spark.sql(f"INSERT INTO reg {row}")
    with pytest.raises(InvalidInputError, match="INSERT INTO reg_write"):
        sql(spark, f"INSERT INTO reg {row}", {})
    with pytest.raises(Exception, match="`reg_refs` is a view"):
        sql(spark, "INSERT INTO reg_refs SELECT * FROM reg_refs", {})
    with pytest.raises(Exception, match="reg_write accepts only INSERT; SELECT from reg"):
        spark.sql("SELECT * FROM reg_write").collect()
    spark.sql(f"INSERT INTO reg_write {row}")

    assert query(spark, "SELECT t2m, rain FROM reg WHERE time > '2020-01-06' AND t2m IS NOT NULL") == [
        (281.5, 4)
    ]


def test_every_metadata_table_without_arguments_has_a_view() -> None:
    assert {*METADATA_TABLES} == {*TABLES} - {"diff"}


def test_metadata_views_show_the_tip(spark: Any, repo: icefloe.Repository) -> None:
    snapshot = set_rain(repo, 502)

    found = query(spark, "SELECT snapshot_id, committed_at FROM reg_snapshots WHERE commits_before = 0")
    chunks = query(spark, "SELECT count(*), max(size(coords)) FROM reg_chunks WHERE path = '/rain'")

    assert found[0][0] == snapshot
    assert isinstance(found[0][1], datetime)
    assert chunks[0][1] == 3


def test_procedure_runs_at_execution_and_not_during_analysis(spark: Any, repo: icefloe.Repository) -> None:
    text = "SELECT * FROM icefloe_tag('reg', name => 'v1', version => 'main~1')"
    frame = spark.sql(text)
    frame.explain(True)
    spark.sql(f"EXPLAIN EXTENDED {text}").collect()
    analyzed = repo.list_tags()

    first = frame.collect()
    second = frame.collect()

    assert analyzed == set()
    assert first == second
    assert [tuple(row) for row in first] == [("v1", [*repo.ancestry(branch="main")][1].id)]


def test_manifests_are_rewritten_once_per_query(spark: Any, repo: icefloe.Repository) -> None:
    frame = spark.sql("SELECT * FROM icefloe_rewrite_manifests('reg', message => 'tidy')")

    found = frame.collect() + frame.collect()

    assert {row.snapshot_id for row in found} == {repo.lookup_branch("main")}
    assert [each.message for each in repo.ancestry(branch="main")].count("tidy") == 1


def test_times_and_intervals_are_arguments(spark: Any, repo: icefloe.Repository) -> None:
    before = set_rain(repo, 503)
    texts = ["'0s'", "INTERVAL 0 SECONDS", "current_timestamp()", "TIMESTAMP'2024-01-01 00:00:00 UTC'"]

    counts = [
        query(spark, f"SELECT count(*) FROM icefloe_expire('reg', older_than => {each}, dry_run => true)")
        for each in texts[:2] + texts[3:]
    ]

    assert counts[0] == counts[1]
    assert counts[0][0][0] > 0
    assert counts[2] == [(0,)]
    assert repo.lookup_branch("main") == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("icefloe_gc('reg', olderthan => '1d')", "did you mean 'older_than'"),
        ("icefloe_gc('era', older_than => '1d')", "no registered repository 'era'"),
        ("range(2) r, LATERAL icefloe_tag('reg', cast(r.id AS string))", "must be constants"),
    ],
)
def test_mistakes_in_calls_are_reported_by_the_analysis(
    spark: Any, repo: icefloe.Repository, call: str, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        spark.sql(f"SELECT * FROM {call}")


def test_view_of_a_table_that_lost_a_variable_asks_to_register_again(spark: Any, tmp_path: Path) -> None:
    changing = repository(weather(2), icefloe.local_filesystem_storage(str(tmp_path / "repo")), CHUNKS)
    register(spark, changing=changing)
    session = changing.writable_session("main")
    del zarr.open_group(session.store)["t2m"]
    session.commit("without t2m")

    with pytest.raises(Exception, match=r"call icefloe\.spark\.register again"):
        query(spark, "SELECT count(*) FROM changing")
    register(spark, changing=changing)

    assert query(spark, "SELECT count(*) FROM changing") == [(96,)]
    assert spark.table("changing").columns == ["time", "lat", "lon", "rain"]


def test_secrets_of_a_view_reach_only_the_workers(
    spark: Any, s3_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_bucket(s3_server, "register")
    storage = icefloe.s3_storage(
        bucket="register",
        prefix="repo",
        region="us-east-1",
        endpoint_url=s3_server,
        allow_http=True,
        force_path_style=True,
        access_key_id="an-id",
        secret_access_key="hush-hush-hush",
    )
    repository(weather(2), storage, CHUNKS)
    register(spark, bucket=icefloe.Repository.open(storage))

    rows = query(spark, "SELECT count(*) FROM bucket")
    history = spark.sql("SELECT message FROM icefloe_history('bucket', limit => 1)")
    history.explain(True)
    spark.table("bucket").explain(True)

    assert rows == [(96,)]
    assert [row.message for row in history.collect()] == ["written"]
    assert "hush" not in capsys.readouterr().out
    kept = Path(spark.conf.get("spark.local.dir"))
    assert [file for file in kept.rglob("*") if file.is_file() and b"hush" in file.read_bytes()] == []


def test_repository_in_memory_is_refused(spark: Any) -> None:
    with pytest.raises(InvalidInputError, match="exists only in this process"):
        register(spark, memory=repository(weather(2)))


def test_tables_with_the_same_name_are_rejected(spark: Any, tmp_path: Path) -> None:
    clashing = repository(weather(2), icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    put(clashing, weather(2), group="Refs")

    with pytest.raises(InvalidInputError, match="two tables would have the name clashing_refs"):
        register(spark, clashing=clashing)
