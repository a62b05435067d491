"""Scans in one process: rows, filters, aggregates and Arrow streams."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.query.local.sql import run_local_query
from tests.support.query import REPO
from tests.support.spark.weather import counted_chunks, weather

DATASET = weather()
T2M = DATASET.t2m.values
RAIN = DATASET.rain.values
REPO.collect_statistics()


def _scan(**options: Any) -> icefloe.LocalScan:
    return icefloe.scan(REPO, variables=["t2m", "rain"], branch="main", **options)


@pytest.mark.parametrize("statistics", [True, False])
def test_aggregates_match_numpy(statistics: bool) -> None:
    found = _scan(statistics=statistics).aggregate(t2m=["min", "max", "count"], rain=["sum", "mean", "std"])

    (row,) = found.to_pylist()
    assert (row["t2m_min"], row["t2m_max"]) == (float(np.nanmin(T2M)), float(np.nanmax(T2M)))
    assert row["t2m_count"] == np.isfinite(T2M).sum()
    assert row["rain_sum"] == RAIN.sum()
    assert row["rain_mean"] == pytest.approx(RAIN.mean(), rel=1e-12)
    assert row["rain_std"] == pytest.approx(RAIN.std(ddof=1), rel=1e-12)


def test_aggregates_over_whole_chunks_read_no_data() -> None:
    scan = _scan().isel(time=slice(0, 4))
    scan.sel(lat=60.0)  # reads the coordinates, which are then cached

    with counted_chunks(pytest.MonkeyPatch()) as fetched:
        found = scan.aggregate(t2m="max").to_pylist()

    assert found == [{"t2m": float(np.nanmax(T2M[:4]))}]
    assert fetched == []


def test_aggregates_can_be_grouped_by_date_parts() -> None:
    found = _scan().aggregate("month(time)", rain="sum")

    months = DATASET.time.dt.month.values
    expected = {int(month): int(RAIN[months == month].sum()) for month in np.unique(months)}
    assert {row["month(time)"]: row["rain"] for row in found.to_pylist()} == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("t2m > 300", T2M > 300),
        ([("t2m", ">", 300), ("rain", "<=", 50)], (T2M > 300) & (RAIN <= 50)),
        ([("rain", "in", [1, 2, 3])], np.isin(RAIN, [1, 2, 3])),
        ("t2m IS NULL OR t2m < 260", ~(T2M >= 260)),
        ("lat > 40 AND rain = 7", (DATASET.lat.values[:, None] > 40) & (RAIN == 7)),
        ("time >= '2020-01-03' AND t2m < 270", (np.arange(10)[:, None, None] >= 6) & (T2M < 270)),
    ],
)
def test_filters_return_exactly_the_rows_that_satisfy_them(filters: Any, expected: Any) -> None:
    found = _scan(filters=filters, columns=["lat", "rain"]).to_arrow()
    counted = _scan(filters=filters).aggregate(rain="count").to_pylist()

    assert found.schema.names == ["lat", "rain"]
    assert sorted(found.column("rain").to_pylist()) == sorted(RAIN[expected].tolist())
    assert counted == [{"rain": int(expected.sum())}]


def test_a_selective_filter_reads_only_chunks_with_matches() -> None:
    limit = float(np.nanmax(T2M)) - 0.1
    scan = _scan(filters=[("t2m", ">", limit)])
    chunks = {(t // 4, y // 3, x // 4) for t, y, x in zip(*np.nonzero(limit < T2M), strict=True)}

    with counted_chunks(pytest.MonkeyPatch()) as fetched:
        scan.select("t2m").to_arrow()

    assert scan.select("t2m").count_chunks().read == len(chunks)
    assert len(fetched) == len(chunks)


def test_a_filter_that_compares_two_columns_is_rejected() -> None:
    with pytest.raises(icefloe.InvalidInputError, match="cannot be evaluated"):
        _scan(filters="t2m > rain")


def test_a_sum_beyond_64_bits_is_an_error() -> None:
    import zarr

    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="write", collect_statistics=True) as store:
        array = zarr.create_array(store, name="big", shape=(4,), chunks=(2,), dtype="i8")
        array[:] = 2**62

    for statistics in (True, False):
        with pytest.raises(icefloe.InvalidInputError, match="ARITHMETIC_OVERFLOW"):
            icefloe.scan(repo, statistics=statistics).aggregate(big="sum")
        assert icefloe.scan(repo, statistics=statistics).aggregate(big="max").to_pylist() == [{"big": 2**62}]


def test_duckdb_and_polars_read_a_scan() -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    scan = _scan(filters="t2m > 290", columns=["time", "t2m"])

    counted = duckdb.sql("SELECT count(*), max(t2m) FROM scan").fetchall()
    frame = polars.DataFrame(scan)

    assert counted == [(int((T2M > 290).sum()), float(np.nanmax(T2M)))]
    assert frame.height == int((T2M > 290).sum())


@pytest.mark.parametrize("statistics", [True, False])
def test_standard_deviation_of_equal_values_is_zero_despite_distant_groups(statistics: bool) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    named: Any = {"dimension_names": ["y", "x"], "chunks": (1, 5)}
    values = np.array([[1e9, 1e9, 2e9, 3e9, 3e9], [0.1] * 5])
    with repo.transaction("main", message="write", collect_statistics=True) as store:
        zarr.create_array(store, name="a", data=values, **named)

    text = "SELECT y, stddev(a) AS s FROM r GROUP BY y ORDER BY y"
    found = run_local_query(text, {"r": repo}, statistics=statistics).table.to_pylist()

    assert found == [{"y": 0, "s": 1e9}, {"y": 1, "s": 0.0}]


@pytest.mark.parametrize("statistics", [True, False])
def test_extremes_of_times_are_times(statistics: bool) -> None:
    repo = _create_repository(np.array([1, 2, 3, np.nan]), units="days since 2001-01-01")

    found = icefloe.scan(repo, variables="v", statistics=statistics).aggregate(v=["count", "min", "max"])

    first, last = datetime(2001, 1, 2), datetime(2001, 1, 4)
    assert found.to_pylist() == [{"v_count": 3, "v_min": first, "v_max": last}]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    ("values", "units"),
    [
        (np.array(["2020-01-02", "2021-01-01", "900000-01-01", "2020-01-01"], "M8[D]"), None),
        (np.array([0, 1, 4 * 10**11, 2]), "days since 2000-01-01"),
        (np.array([0, 1, np.inf, 2]), "days since 2000-01-01"),
    ],
)
def test_reading_a_chunk_with_a_time_beyond_timestamps_fails(
    values: Any, units: str | None, statistics: bool
) -> None:
    repo = _create_repository(values, **({} if units is None else {"units": units}))

    scan = icefloe.scan(repo, variables="v", statistics=statistics)

    assert scan.isel(x=slice(0, 2)).aggregate(v="count").to_pylist() == [{"v": 2}]
    with pytest.raises(InvalidInputError, match="/v contains a time that is infinite or outside the years"):
        scan.aggregate(v="max")
    with pytest.raises(InvalidInputError, match="no column can represent"):
        icefloe.scan(repo, filters="v > '2030-01-01'", statistics=statistics).to_arrow()


@pytest.mark.parametrize("statistics", [True, False])
def test_filtered_infinities_do_not_affect_aggregates(statistics: bool) -> None:
    repo = _create_repository(np.array([np.inf, 1, 2, 6]))

    scan = icefloe.scan(repo, variables="v", filters="v < 10", statistics=statistics)

    assert scan.aggregate(v="var").to_pylist() == [{"v": 7.0}]


@pytest.mark.parametrize("statistics", [True, False])
def test_variance_of_negative_integers_is_exact(statistics: bool) -> None:
    repo = _create_repository(np.array([-4, -2, 0, 2]))

    found = icefloe.scan(repo, variables="v", statistics=statistics).aggregate(v="var")

    assert found.to_pylist() == [{"v": pytest.approx(20 / 3)}]


def _create_repository(values: Any, **attributes: Any) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="values", collect_statistics=True) as store:
        names = ("x",)
        array = zarr.create_array(
            store,
            name="v",
            shape=values.shape,
            chunks=(2,),
            dtype=values.dtype,
            dimension_names=names,
            attributes=attributes,
        )
        array[...] = values
    return repo


@pytest.mark.parametrize("statistics", [True, False])
def test_filtered_outliers_do_not_reduce_the_precision_of_other_values(statistics: bool) -> None:
    repo = _create_repository(np.array([1, 2, 4, 5, 7, 9, 11, 9.96921e36, 9.96921e36, 12]))

    scan = icefloe.scan(repo, variables="v", filters="v < 10", statistics=statistics)

    expected = np.std([1, 2, 4, 5, 7, 9], ddof=1)
    assert scan.aggregate(v="std").to_pylist() == [{"v": pytest.approx(expected, rel=1e-12)}]
