"""Read repositories of the official package as tables, and let it read rows that Spark wrote."""

from __future__ import annotations

from pathlib import Path

import icechunk
import pyarrow as pa
import pytest
import xarray as xr

import icefloe
from icefloe.query.scan.plan import make_plan
from icefloe.query.scan.selection import Coordinates, Selection, select_labels
from icefloe.query.schema import find_tables
from tests.support.query import as_rows, write_table
from tests.support.spark.weather import CHUNKS, frame_rows, read_all, rows, weather

pytestmark = pytest.mark.compat


def official(folder: Path) -> icechunk.Repository:
    storage = icechunk.local_filesystem_storage(str(folder))
    repo = icechunk.Repository.create(storage)
    session = repo.writable_session("main")
    weather().to_zarr(session.store, consolidated=False, encoding=CHUNKS, zarr_format=3)
    session.commit("written officially")
    return repo


def test_table_of_an_official_repository_can_be_read(tmp_path: Path) -> None:
    repo = official(tmp_path / "repo")
    session = icefloe.Repository.open(
        icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    ).readonly_session("main")
    table = find_tables(session).choose(None)
    wanted = select_labels(Coordinates(session, table), Selection.everything(table), {"lat": slice(50, 40)})

    found = read_all(session, make_plan(table, wanted))

    store = repo.readonly_session("main").store
    expected = xr.open_zarr(store, consolidated=False, chunks=None).sel(lat=slice(50, 40))
    assert rows(found) == frame_rows(expected, table.schema.names)


def test_official_library_reads_written_rows(tmp_path: Path) -> None:
    repo = official(tmp_path / "repo")
    session = icefloe.Repository.open(
        icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    ).writable_session("main")
    changed = as_rows((weather() + 1)[["rain"]])

    write_table(session, changed.set_column(3, "rain", changed["rain"].cast(pa.int16())))
    session.commit("rows")

    store = repo.readonly_session("main").store
    found = xr.open_zarr(store, consolidated=False, chunks=None)
    assert (found["rain"].values == weather()["rain"].values + 1).all()
