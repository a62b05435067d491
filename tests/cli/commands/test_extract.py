"""Test `icefloe extract`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from pyarrow import parquet

import icefloe
from icefloe.xarray import to_icechunk
from tests.support.terminal import Terminal


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    values = np.arange(2 * 3 * 4, dtype="f4").reshape(2, 3, 4)
    dataset = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), values)},
        {"time": [0, 1], "lat": [10.0, 20.0, 30.0], "lon": [0.0, 10.0, 20.0, 30.0]},
    )
    session = repo.writable_session("main")
    to_icechunk(dataset, session)
    session.commit("data")
    (tmp_path / "points.csv").write_text("name,lat,lon\nA,11,1\nB,29,28\n")
    return Terminal(capsys, str(tmp_path / "repo"))


def test_points_are_printed_with_their_columns(typed: Terminal, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = typed.json("extract", "t2m", "--points", str(tmp_path / "points.csv"))

    assert [(row["name"], row["time"], row["t2m"]) for row in rows] == [
        *[("A", 0, 0.0), ("B", 0, 11.0)],
        *[("A", 1, 12.0), ("B", 1, 23.0)],
    ]


def test_columns_of_points_may_be_dates_and_times(typed: Terminal, tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("since,at,lat,lon\n2019-05-01,12:30:00,11,1\n")

    rows: list[dict[str, Any]] = typed.json("extract", "t2m", "--points", str(tmp_path / "points.csv"))

    assert [(row["since"], row["at"]) for row in rows] == 2 * [("2019-05-01", "12:30:00")]


def test_selected_times_are_written_to_a_file(typed: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "out.parquet"

    shown = typed("extract", "--points", str(tmp_path / "points.csv"), "--isel", "time=1", "-f", str(file))

    assert "2 rows" in shown
    assert parquet.read_table(file).column("t2m").to_pylist() == [12.0, 23.0]


def test_points_and_zones_cannot_be_combined(typed: Terminal) -> None:
    typed("extract", code=2)

    assert "pass either --points or --zones" in typed.errors
