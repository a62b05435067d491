"""Export of rows as Iceberg tables, read by pyiceberg."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

import icefloe
from icefloe.errors import AlreadyExistsError, ConflictError, InvalidInputError, StorageError
from icefloe.query.export import iceberg as exporting
from tests.support.query import REPO, SESSION

ROWS = icefloe.scan(REPO).to_arrow()
ORDER = [("time", "ascending"), ("lat", "descending"), ("lon", "ascending")]
NAME = "weather.t2m"
OPENED: list[Catalog] = []


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/wärter 1/catalog.db"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    (tmp_path / "wärter 1").mkdir()


@pytest.fixture(autouse=True)
def open_catalogs() -> Iterator[None]:
    """Close the catalogs that a test has opened."""
    yield
    while OPENED:
        OPENED.pop().close()


def _open(catalog: str) -> Catalog:
    OPENED.append(load_catalog("default", uri=catalog))
    return OPENED[-1]


def _rows(catalog: str) -> pa.Table:
    found: pa.Table = _open(catalog).load_table(NAME).scan().to_arrow()
    return found.sort_by(ORDER).select(ROWS.schema.names).cast(ROWS.schema)


@pytest.mark.parametrize("terms", [[], ["month(time)"], ["lat", "day(time)"]])
def test_pyiceberg_reads_the_rows_of_a_scan(catalog: str, terms: list[str]) -> None:
    report = icefloe.export_iceberg(SESSION, NAME, catalog=catalog, partition_by=terms)

    table = _open(catalog).load_table(NAME)
    assert _rows(catalog).equals(ROWS.sort_by(ORDER))
    assert report.rows == ROWS.num_rows
    assert [field.name for field in table.spec().fields] == [
        {"month(time)": "time_month", "day(time)": "time_day"}.get(term, term) for term in terms
    ]
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["icefloe.snapshot-id"] == SESSION.snapshot_id
    january = table.scan(row_filter="time >= '2020-01-01T00:00:00'")
    assert january.to_arrow().num_rows == 6 * 48
    assert len(list(january.plan_files())) <= report.files


def test_overwrite_replaces_rows_and_keeps_older_snapshots(catalog: str) -> None:
    icefloe.export_iceberg(SESSION, NAME, catalog=catalog, partition_by=["month(time)"])

    with pytest.raises(AlreadyExistsError, match="overwrite=True"):
        icefloe.export_iceberg(SESSION, NAME, catalog=catalog)
    icefloe.export_iceberg(SESSION, NAME, catalog=catalog, overwrite=True, isel={"time": slice(0, 5)})

    table = _open(catalog).load_table(NAME)
    assert _rows(catalog).equals(ROWS.sort_by(ORDER).slice(0, ROWS.num_rows // 2))
    first = table.history()[0].snapshot_id
    assert table.scan(snapshot_id=first).to_arrow().num_rows == ROWS.num_rows


def test_iceberg_overwrite_with_other_columns_or_partitions_is_rejected(catalog: str) -> None:
    icefloe.export_iceberg(SESSION, NAME, catalog=catalog, partition_by=["month(time)"])

    with pytest.raises(InvalidInputError, match=r"weather\.t2m has the columns time, lat, lon, rain, t2m"):
        icefloe.export_iceberg(SESSION, NAME, catalog=catalog, variables=["t2m"], overwrite=True)
    with pytest.raises(InvalidInputError, match=r"partitioned by month\(time\), which differs"):
        icefloe.export_iceberg(SESSION, NAME, catalog=catalog, partition_by=["lat"], overwrite=True)

    assert _rows(catalog).equals(ROWS.sort_by(ORDER))


def test_failed_export_creates_no_table(
    tmp_path: Path, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(exporting, "_add_files", fail)

    with pytest.raises(StorageError, match=r"catalog sqlite:.* failed: OSError: no space left"):
        icefloe.export_iceberg(SESSION, NAME, catalog=catalog)

    assert not _open(catalog).table_exists(NAME)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_concurrent_change_of_an_iceberg_table_raises_a_conflict(
    catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    icefloe.export_iceberg(SESSION, NAME, catalog=catalog)
    add = exporting._add_files

    def add_later(*arguments: Any) -> None:
        monkeypatch.setattr(exporting, "_add_files", add)
        icefloe.export_iceberg(SESSION, NAME, catalog=catalog, overwrite=True, isel={"time": 0})
        add(*arguments)

    monkeypatch.setattr(exporting, "_add_files", add_later)

    with pytest.raises(ConflictError, match="another writer changed the Iceberg table"):
        icefloe.export_iceberg(SESSION, NAME, catalog=catalog, overwrite=True)

    assert _rows(catalog).num_rows == ROWS.num_rows // 10


def test_iceberg_table_name_without_a_namespace_is_rejected(catalog: str) -> None:
    with pytest.raises(InvalidInputError, match="expected a namespace and a name, such as weather"):
        icefloe.export_iceberg(SESSION, "t2m", catalog=catalog)


def test_errors_contain_no_secrets_of_the_iceberg_catalog() -> None:
    with pytest.raises(StorageError) as caught:
        icefloe.export_iceberg(SESSION, NAME, catalog="postgresql://user:hunter2@127.0.0.1:9/db")

    assert "hunter2" not in str(caught.value)
