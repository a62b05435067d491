"""Export of rows as Parquet files, read by DuckDB and pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import icefloe
from icefloe._internal.executor import ProcessExecutor
from icefloe.errors import InvalidInputError, StorageError
from icefloe.query.export import parquet as exporting
from icefloe.query.scan.read import read_partition
from tests.support.query import REPO, SESSION
from tests.support.spark.weather import repository, weather

ROWS = icefloe.scan(REPO).to_arrow()
ORDER = [("time", "ascending"), ("lat", "descending"), ("lon", "ascending")]


def _storage(folder: Path) -> icefloe.Storage:
    return icefloe.local_filesystem_storage(str(folder))


def _read(folder: Path) -> pa.Table:
    """Read files with DuckDB, which gets the values of partitions from the names of folders."""
    found: Any = duckdb.sql(f"SELECT * FROM read_parquet('{folder}/**/*.parquet', hive_partitioning = true)")
    names = [name for name in found.columns if name in ROWS.schema.names]
    return found.to_arrow_table().select(names).sort_by(ORDER).select(ROWS.schema.names)


def test_parquet_rows_equal_the_rows_of_a_scan(tmp_path: Path) -> None:
    report = icefloe.export_parquet(SESSION, _storage(tmp_path / "out"))

    assert parquet.read_table(tmp_path / "out").equals(ROWS)
    assert (report.rows, report.files, report.dry_run) == (ROWS.num_rows, 1, False)
    assert report.columns == tuple(ROWS.schema.names)
    assert (tmp_path / "out" / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("terms", "folders"),
    [
        (["month(time)"], {"time_month=2019-12", "time_month=2020-01"}),
        (["year(time)", "lat"], {"time_year=2019/lat=60.0", "time_year=2020/lat=35.0"}),
        (["time"], {"time=2019-12-28 00%3A00%3A00"}),
    ],
)
def test_parquet_partitions_are_hive_folders(tmp_path: Path, terms: list[str], folders: set[str]) -> None:
    icefloe.export_parquet(SESSION, _storage(tmp_path), partition_by=terms)

    found = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")}
    assert found >= folders
    assert _read(tmp_path).cast(ROWS.schema).equals(ROWS.sort_by(ORDER))


def test_rows_with_missing_coordinates_get_their_own_partition(tmp_path: Path) -> None:
    cycles = weather(3).drop_vars("rain").assign_coords(cycle=("time", [1.0, np.nan, 2.0]))
    session = repository(cycles).readonly_session("main")

    icefloe.export_parquet(session, _storage(tmp_path), partition_by=["cycle"])

    assert len(list(tmp_path.glob("cycle=__HIVE_DEFAULT_PARTITION__/*.parquet"))) == 1
    found: Any = duckdb.sql(f"SELECT count(*), count(cycle) FROM '{tmp_path}/*/*.parquet'")
    assert found.fetchall() == [(144, 96)]


def test_export_in_processes_writes_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_PARTITION_BYTES", 1)

    with ProcessExecutor(2) as executor:
        report = icefloe.export_parquet(SESSION, _storage(tmp_path), executor=executor, sel={"lat": 60.0})

    assert report.files > 1
    wanted = ROWS.filter(pa.compute.equal(ROWS["lat"], 60.0))
    assert parquet.read_table(tmp_path).sort_by(ORDER).equals(wanted.sort_by(ORDER))


@pytest.mark.spark
def test_spark_writes_and_reads_the_same_rows(tmp_path: Path, spark: Any) -> None:
    session = repository(weather(), _storage(tmp_path / "repo")).readonly_session("main")

    report = icefloe.export_parquet(
        session,
        _storage(tmp_path / "out"),
        partition_by=["month(time)"],
        executor=icefloe.spark.SparkExecutor(spark),
    )

    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.count() == report.rows == ROWS.num_rows
    assert frame.where("time_month = '2020-01'").count() == 6 * 48
    assert frame.toArrow().select(ROWS.schema.names).sort_by(ORDER).equals(ROWS.sort_by(ORDER))


def test_existing_files_are_kept_unless_overwritten(tmp_path: Path) -> None:
    target = _storage(tmp_path)
    icefloe.export_parquet(SESSION, target)
    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(InvalidInputError, match=r"choose an empty location.*overwrite=True"):
        icefloe.export_parquet(SESSION, target)
    icefloe.export_parquet(SESSION, target, overwrite=True, isel={"time": slice(0, 2)})

    assert parquet.read_table(list(tmp_path.glob("*.parquet"))).num_rows == ROWS.num_rows // 5
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_failed_export_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_PARTITION_BYTES", 1)

    def fail(session: Any, plan: Any, number: int) -> Any:
        if number == 3:
            raise StorageError("the chunk is lost")
        return read_partition(session, plan, number)

    monkeypatch.setattr(exporting, "read_partition", fail)

    with pytest.raises(StorageError, match="the chunk is lost"):
        icefloe.export_parquet(SESSION, _storage(tmp_path))

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    report = icefloe.export_parquet(SESSION, _storage(tmp_path / "out"), dry_run=True)

    assert (report.rows, report.files, report.dry_run) == (ROWS.num_rows, 0, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("term", "problem"),
    [
        ("week(time)", "unknown date part week; use year, month, day, hour"),
        ("month(lat)", "lat does not contain times"),
        ("t2m", "t2m is a variable; partition by a coordinate"),
        ("tim", "there is no column 'tim' in group /; did you mean 'time'?"),
    ],
)
def test_impossible_partitions_are_rejected(tmp_path: Path, term: str, problem: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        icefloe.export_parquet(SESSION, _storage(tmp_path), partition_by=[term])

    assert problem in str(caught.value)
    assert list(tmp_path.iterdir()) == []
