"""Compare the Spark source `icechunk` on a local Spark with xarray."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import icefloe
from icefloe.errors import SessionStateError
from icefloe.spark import worker
from icefloe.spark.source import IcechunkSource
from tests.support.spark.weather import CHUNKS, frame_rows, opened, put, repository, weather

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

COLUMNS = ["time", "lat", "lon", "rain", "t2m"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("source") / "repo")
    repo = repository(weather(), icefloe.local_filesystem_storage(path), CHUNKS)
    repo.create_tag("v1", repo.lookup_branch("main"))
    put(repo, weather(3), group="more")
    return path


def collected(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def load(spark: Any, folder: str, **options: str) -> Any:
    return spark.read.format("icechunk").options(path=folder, **options).load()


def dataset(folder: str) -> Any:
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(folder))
    return opened(repo.readonly_session("main"))


def test_table_equals_xarray(spark: Any, folder: str) -> None:
    frame = load(spark, folder, maxPartitionBytes="4k", tag="v1")

    assert frame.rdd.getNumPartitions() > 1
    assert frame.columns == COLUMNS
    assert collected(frame) == frame_rows(dataset(folder), COLUMNS)


def test_frame_can_be_filtered_twice(spark: Any, folder: str) -> None:
    # With DataSourceReader.pushFilters, Spark 4.3 keeps one filter per load() and returns wrong rows here.
    frame = load(spark, folder, variables="t2m")

    north, south = frame.where("lat = 60"), frame.where("lat = 35")

    assert {row.lat for row in north.union(south).collect()} == {60.0, 35.0}
    assert north.count() == south.count() == 80
    assert frame.count() == 480
    assert north.alias("a").join(frame.alias("b"), ["time", "lon"]).count() == 480


def test_source_can_be_a_temporary_view_in_sql(spark: Any, folder: str) -> None:
    chosen = json.dumps({"time": {"start": "2020-01-01"}, "lat": 45.0})
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW weather USING icechunk"
        f" OPTIONS (path '{folder}', Variables 't2m', versionAsOf 'v1', sel '{chosen}',"
        " isel '{\"lon\": 0}')"
    )

    found = spark.sql("SELECT count(*), min(time), avg(t2m) FROM weather").collect()[0]

    expected = dataset(folder)["t2m"].sel(time=slice("2020-01-01", None), lat=45.0).isel(lon=0)
    assert found[0] == expected.size
    assert str(found[1]) == "2020-01-01 00:00:00"
    assert found[2] == pytest.approx(float(expected.astype("f8").mean()))


def test_spark_schema_selects_columns(spark: Any, folder: str) -> None:
    reader = spark.read.format("icechunk").option("path", folder)

    found = reader.schema("t2m float, lat double").load()

    assert found.columns == ["t2m", "lat"]
    assert found.count() == 480
    with pytest.raises(Exception, match="column t2m is of type float, not bigint; cast it after reading"):
        reader.schema("t2m bigint").load().count()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"varables": "t2m"}, "no option 'varables'; did you mean 'variables'"),
        ({"variables": "t2n"}, "no variable 't2n' in group /; did you mean 't2m'"),
        ({"tag": "v9"}, "v9"),
        ({"sel": '{"lat": 41}'}, "coordinate lat has no 41"),
    ],
)
def test_errors_are_one_line(spark: Any, folder: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(Exception, match=sentence) as caught:
        load(spark, folder, **options)

    assert "Traceback" not in str(caught.value)


def test_version_mismatch_with_executor_is_reported(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = IcechunkSource({"path": folder, "variables": "t2m"}).reader(StructType().add("t2m", "float"))
    (part, *_), sent = reader.partitions(), pickle.dumps(reader)
    received: Any = pickle.loads(sent)
    rows = StructType().add("lat", "double").add("height", "float")
    writer = IcechunkSource({"path": folder, "dims": "lat"}).writer(rows, overwrite=True)

    monkeypatch.setattr(worker, "VERSION", "0.0.1")

    tasks: list[Callable[[], Any]] = [lambda: next(received.read(part)), lambda: writer.write(iter([]))]
    for task in tasks:
        with pytest.raises(SessionStateError, match=r"the driver runs icefloe .* and this executor 0\.0\.1;"):
            task()


def test_secret_is_not_repeated(spark: Any, folder: str) -> None:
    with pytest.raises(Exception, match=r"(?i)secretAccessKey is a secret") as caught:
        load(spark, folder, secretAccessKey="hunter2")

    assert "hunter2" not in str(caught.value)


def test_worker_error_is_one_line(spark: Any, tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repository(weather(), storage, CHUNKS)
    frame = load(spark, str(tmp_path / "repo"), variables="t2m")
    frame.count()
    for chunk in (tmp_path / "repo" / "chunks").iterdir():
        chunk.unlink()

    with pytest.raises(Exception, match="object not found: chunks/") as caught:
        frame.selectExpr("avg(t2m)").collect()

    assert "Traceback" not in str(caught.value).split("JVM stacktrace")[0]
