"""Compare aggregates of arrays with pandas, without Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.query.scan.moments import FUNCTIONS
from icefloe.query.scan.plan import TableScan
from icefloe.query.scan.reduce import Aggregation, plan_aggregation, reduce_partition
from icefloe.query.scan.selection import Coordinates, Selection
from icefloe.query.schema import find_tables
from tests.support.spark.weather import CHUNKS, counted_chunks, opened, repository, weather

REPO = repository(weather(40), encoding=CHUNKS)
TERMS = ["time", "lat", "lon", "month(time)", "year(time)", "day(time)", "quarter(time)"]


def order_for(
    repo: icefloe.Repository, by: list[str], results: dict[str, Any], selection: Selection | None, size: int
) -> Aggregation:
    session = repo.readonly_session("main")
    table = find_tables(session).choose(None)
    chosen = selection or Selection.everything(table)
    scan = TableScan(session, table, Coordinates(session, table), chosen, partition_bytes=size)
    return plan_aggregation(scan, by, results)


def make_frame(repo: icefloe.Repository, order: Aggregation) -> pa.Table:
    session = repo.readonly_session("main")
    schema = order.schema if order.whole else order.partial_schema
    batches = [b for n in range(order.plan.partitions) for b in reduce_partition(session, order, n)]
    return pa.Table.from_batches(batches, schema)


def expected(dataset: xr.Dataset, by: list[str], variable: str, function: str) -> dict[Any, Any]:
    frame = dataset[[variable]].to_dataframe().reset_index()
    frame[variable] = frame[variable].astype("f8")
    keys = []
    for term in by:
        part = term.partition("(")[0]
        keys.append(frame["time"].dt.__getattribute__(part) if "(" in term else frame[term])
    if not keys:
        keys = [frame[variable].isna() | True]
    grouped = frame.groupby([key.rename(str(n)) for n, key in enumerate(keys)])[variable]
    found = grouped.agg(function if function != "sum" else lambda values: values.sum(min_count=1))
    return {key if isinstance(key, tuple) else (key,): value for key, value in found.items()}


@given(st.data())
def test_aggregates_equal_pandas(data: st.DataObject) -> None:
    by = data.draw(st.lists(st.sampled_from(TERMS), unique=True, max_size=3))
    variable = data.draw(st.sampled_from(["t2m", "rain"]))
    function = data.draw(st.sampled_from(FUNCTIONS))
    indices = [
        np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))) for size in (40, 6, 8)
    ]
    session = REPO.readonly_session("main")
    selection = Selection(tuple(indices))
    dataset = opened(session).isel(time=indices[0], lat=indices[1], lon=indices[2]).load()

    order = order_for(REPO, by, {"out": (variable, function)}, selection, 10**9)
    found = make_frame(REPO, order)

    assert order.whole
    rows = {
        tuple(_plain(value) for value in row[:-1]) if by else (True,): row[-1]
        for row in zip(*(column.to_pylist() for column in found.columns), strict=True)
    }
    wanted = {
        tuple(_plain(k) for k in key): v for key, v in expected(dataset, by, variable, function).items()
    }
    assert rows.keys() == wanted.keys()
    for key, value in wanted.items():
        if value != value:
            assert rows[key] is None
        else:
            assert rows[key] == pytest.approx(value, rel=1e-9, abs=1e-9)


def _plain(value: Any) -> Any:
    return (
        str(value)[:10] if hasattr(value, "year") else float(value) if not isinstance(value, bool) else value
    )


@pytest.mark.parametrize(
    ("by", "whole", "partitions"),
    [
        (["lat", "lon", "month(time)"], False, 8),
        (["time"], True, 10),
        ([], False, 15),
        (["lat", "time"], True, 20),
    ],
)
def test_whole_groups_are_kept_in_one_partition(by: list[str], whole: bool, partitions: int) -> None:
    order = order_for(REPO, by, {"t2m": "mean"}, None, 1)

    assert (order.whole, order.plan.partitions) == (whole, partitions)


def test_partial_groups_are_combined() -> None:
    order = order_for(REPO, ["month(time)"], {"t2m": ["sum", "count", "var", "max"]}, None, 1)
    parts = make_frame(REPO, order).to_pandas()

    sums = parts.groupby("month(time)").sum()
    n, total, squares = sums["t2m.count"], sums["t2m.shifted"], sums["t2m.squares"]
    variance = (squares - total**2 / n) / (n - 1)

    wanted = expected(opened(REPO.readonly_session("main")), ["month(time)"], "t2m", "var")
    assert {(k,): v for k, v in variance.items()} == pytest.approx(wanted, rel=1e-9)


def test_each_chunk_is_read_once() -> None:
    order = order_for(
        REPO, ["month(time)", "lat"], {"t2m": ["mean", "min"], "n": ("rain", "count")}, None, 5000
    )

    with counted_chunks(pytest.MonkeyPatch()) as fetched:
        make_frame(REPO, order)

    assert len(fetched) == len(set(fetched)) == 2 * 10 * 2 * 2


def test_aggregate_results_have_the_expected_names_and_types() -> None:
    results = {"t2m": ["mean", "max"], "n": ("rain", "count"), "rain": "sum"}

    schema = order_for(REPO, ["lat", "month(time)"], results, None, 10**9).schema

    assert schema.names == ["lat", "month(time)", "t2m_mean", "t2m_max", "n", "rain"]
    kinds = [pa.float64(), pa.int32(), pa.float64(), pa.float32(), pa.int64(), pa.int64()]
    assert schema.types == kinds


@pytest.mark.parametrize(
    ("by", "results", "sentence"),
    [
        (["t2m"], {"t2m": "mean"}, "t2m is not a one-dimensional coordinate"),
        (["mnth(time)"], {"t2m": "mean"}, r"no date part 'mnth' in mnth\(time\); did you mean 'month'"),
        (["month(lat)"], {"t2m": "mean"}, "lat has no dates"),
        ([], {"t2m": "median"}, "no aggregate 'median' for t2m"),
        ([], {"lat": "mean"}, "lat is a coordinate"),
        ([], {}, "no aggregates given"),
    ],
)
def test_invalid_aggregates_are_rejected(by: list[str], results: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        order_for(REPO, by, results, None, 10**9)
