"""Run typical SQL queries over climate and satellite data, and compare the results with full scans.

Part of `make test-cluster`, because they take a minute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.spark import sql
from tests.support.query import rounded
from tests.support.spark.weather import put, repository

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def air() -> xr.Dataset:
    """Create two years of temperatures and winds: four times a day, three days per month, with gaps."""
    random = np.random.default_rng(1)
    days = np.arange(np.datetime64("2013-01-01", "D"), np.datetime64("2015-01-01", "D"))
    first = days[[day.astype(object).day <= 3 for day in days]]
    times = (first[:, None] + np.array([0, 6, 12, 18], "m8[h]")).reshape(-1).astype("M8[ns]")
    shape = (len(times), 7, 9)
    season = 15 * np.sin(2 * np.pi * (times.astype("M8[D]").astype(int) % 365) / 365)[:, None, None]
    values = (280 + season + random.normal(0, 4, shape)).astype("f4")
    values[random.random(shape) < 0.05] = np.nan
    dims = ("time", "lat", "lon")
    return xr.Dataset(
        {
            "air": (dims, values, {"units": "K"}),
            "u": (dims, random.normal(0, 5, shape).astype("f4")),
            "v": (dims, random.normal(0, 5, shape)),
            "rain": (dims, random.gamma(0.3, 4, shape).astype("f4")),
        },
        {"time": times, "lat": np.linspace(75, 15, 7), "lon": 200 + np.arange(9) * 2.5},
    )


def scene() -> xr.Dataset:
    """Create two packed bands of a satellite, with a mask."""
    random = np.random.default_rng(2)
    shape = (4, 12, 10)
    red, nir = (random.integers(1, 4000, shape, "i2") for _ in range(2))
    packed = {"scale_factor": 0.0001, "add_offset": 0.0, "_FillValue": np.int16(-1)}
    bands = {"red": (("time", "y", "x"), red * 0.0001), "nir": (("time", "y", "x"), nir * 0.0001)}
    made = xr.Dataset(
        {**bands, "quality": (("time", "y", "x"), random.integers(0, 4, shape, "u1"))},
        {
            "time": np.array(["2020-03-01", "2020-06-01", "2020-09-01", "2020-12-01"], "M8[ns]"),
            "y": 5_000_000.0 - np.arange(12) * 10,
            "x": 600_000.0 + np.arange(10) * 10,
        },
    )
    for name in bands:
        made[name].encoding = {**packed, "dtype": "i2"}
    return made


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> icefloe.Repository:
    path = str(tmp_path_factory.mktemp("cases") / "repo")
    chunks = {name: {"chunks": (16, 4, 5)} for name in ("air", "u", "v", "rain")}
    made = repository(air(), icefloe.local_filesystem_storage(path), chunks)
    put(made, scene(), group="scene")
    return made


TEXT = (Path(__file__).parent / "cases.sql").read_text(encoding="utf-8").partition("\n\n")[2]
CASES = {
    name.removeprefix("-- "): " ".join(lines).removesuffix(";")
    for name, *lines in (part.splitlines() for part in TEXT.split("\n\n"))
}


@pytest.mark.parametrize("name", CASES)
def test_results_equal_full_scan(spark: Any, repo: icefloe.Repository, name: str) -> None:
    path = repo.storage.describe()["path"]
    spark.read.format("icechunk").options(path=path).load().createOrReplaceTempView("air")
    spark.read.format("icechunk").options(path=path, group="scene").load().createOrReplaceTempView("scene")

    found = sql(spark, CASES[name], {"air": repo})
    expected = spark.sql(CASES[name].replace("air.scene", "scene"))

    assert found.schema.simpleString() == expected.schema.simpleString()
    ours, theirs = ([tuple(row) for row in frame.collect()] for frame in (found, expected))
    assert rounded(ours) == rounded(theirs)
    assert ours


def test_results_equal_xarray(spark: Any, repo: icefloe.Repository) -> None:
    data = air()

    def rows(name: str) -> list[Any]:
        found: list[Any] = sql(spark, CASES[name], {"air": repo}).collect()
        return found

    spread = data["air"].astype("f8").std(("time", "lon"), ddof=1)
    weights: Any = np.cos(np.radians(data["lat"]))
    mean = data["air"].astype("f8").weighted(weights).mean(("lat", "lon"))
    months = data["air"].astype("f8").groupby("time.month").mean("time")
    assert [row[-1] for row in rows("zonal mean")] == pytest.approx(spread.values.tolist(), rel=1e-9)
    assert sorted(row[-1] for row in rows("weighted")) == pytest.approx(sorted(mean.values), rel=1e-9)
    found = rows("climatology")
    assert len(found) == months.size
    for month, lat, lon, value, _ in found:
        assert value == pytest.approx(float(months.sel(month=month, lat=lat, lon=lon)), rel=1e-9)
