"""Select cells by labels and positions as xarray does, without reading unneeded chunks."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.query.scan.plan import make_plan
from icefloe.query.scan.selection import Coordinates, Selection, select_labels, select_positions
from icefloe.query.schema import ArrayTable, find_tables
from icefloe.session import Session
from tests.support.spark.weather import (
    CHUNKS,
    counted_chunks,
    frame_rows,
    opened,
    read_all,
    repository,
    rows,
    weather,
)

REPO = repository(weather(), encoding=CHUNKS)


def parts(repo: icefloe.Repository = REPO) -> tuple[Session, ArrayTable, Coordinates]:
    session = repo.readonly_session("main")
    table = find_tables(session).choose(None)
    return session, table, Coordinates(session, table)


def chosen_rows(labels: dict[str, Any], repo: icefloe.Repository = REPO) -> list[tuple[Any, ...]]:
    session, table, coordinates = parts(repo)
    selection = select_labels(coordinates, Selection.everything(table), labels)
    return rows(read_all(session, make_plan(table, selection)))


def expected_rows(labels: dict[str, Any], repo: icefloe.Repository = REPO) -> list[tuple[Any, ...]]:
    session, table, _ = parts(repo)
    chosen = opened(session).sel({name: _kept(label) for name, label in labels.items()})
    return frame_rows(chosen, table.schema.names)


def _kept(label: Any) -> Any:
    """Wrap a label in a list, so that xarray keeps the dimension."""
    return label if isinstance(label, slice | list) else [label]


@pytest.mark.parametrize(
    "labels",
    [
        {"time": slice("2019-12-30", "2020-01-02")},
        {"time": slice("2020", None)},
        {"time": slice(None, "2019-12")},
        {"time": slice(None, None, 3)},
        {"time": slice(np.datetime64("2019-12-30T12:00"), np.datetime64("2020-01-02"))},
        {"lat": slice(50, 40)},
        {"lat": slice(40, 50)},
        {"lat": 45.0},
        {"lat": [60.0, 35.0], "lon": slice(2.5, 10)},
        {"lon": slice(3, 4)},
        {"lon": [17.5, 0.0]},
    ],
)
def test_sel_equals_xarray(labels: dict[str, Any]) -> None:
    assert chosen_rows(labels) == expected_rows(labels)


def forecasts() -> icefloe.Repository:
    steps = np.arange(5) * np.timedelta64(6 * 3600 * 10**9, "ns")
    heights = np.array([0.1, 0.2, 20.3, 30.4], "f4")
    return repository(
        xr.Dataset(
            {"wind": (("step", "height"), np.arange(20.0).reshape(5, 4))}, {"step": steps, "height": heights}
        )
    )


@pytest.mark.parametrize(
    "labels",
    [
        {"height": 20.3},
        {"height": [0.1, 30.4]},
        {"height": slice(20.3, 30.4)},
        {"height": slice(0.2, 20.3)},
        {"height": slice(0.15, 20.2)},
        {"step": "6h"},
        {"step": slice("6 hours", "1 day")},
        {"step": timedelta(hours=12)},
        {"step": [np.timedelta64(0, "s"), np.timedelta64(24, "h")]},
    ],
)
def test_sel_finds_float32_and_timedelta_labels(labels: dict[str, Any]) -> None:
    repo = forecasts()

    found, expected = (sorted(row[-1] for row in each(labels, repo)) for each in (chosen_rows, expected_rows))

    assert found == expected


def test_partial_time_selects_the_whole_period() -> None:
    session, table, _ = parts()
    expected = frame_rows(opened(session).sel(time="2020-01"), table.schema.names)

    assert chosen_rows({"time": "2020-01"}) == expected
    assert chosen_rows({"time": date(2020, 1, 2)}) == chosen_rows({"time": datetime(2020, 1, 2)})


def test_selection_ranges_may_be_json_objects() -> None:
    assert chosen_rows({"lat": {"start": 50, "stop": 40}}) == chosen_rows({"lat": slice(50, 40)})
    with pytest.raises(InvalidInputError, match="no key 'end' in a range; known names are start, stop, step"):
        chosen_rows({"lat": {"start": 50, "end": 40}})


@pytest.mark.parametrize(
    "places",
    [
        {"time": 0},
        {"time": -1, "lat": [0, -1]},
        {"lat": slice(1, 5, 2)},
        {"lon": slice(None, None, -1)},
        {"lon": slice(100, 200)},
        {"lat": []},
    ],
)
def test_isel_equals_xarray(places: dict[str, Any]) -> None:
    session, table, _ = parts()
    selection = select_positions(table, Selection.everything(table), places)

    found = rows(read_all(session, make_plan(table, selection)))

    kept = {dim: place if isinstance(place, slice | list) else [place] for dim, place in places.items()}
    assert found == frame_rows(opened(session).isel(kept), table.schema.names)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({"lat": 41.0}, r"coordinate lat has no 41.0; it runs from 60.0 to 35.0"),
        ({"lat": "north"}, "coordinate lat has no 'north'"),
        ({"time": "2021"}, "coordinate time has no '2021'"),
        (
            {"time": "monday"},
            "no 'monday'; it runs from .*; times have no zone and are written 2020",
        ),
        ({"time": "2020-02-31"}, "coordinate time has no '2020-02-31'"),
        ({"time": datetime(2020, 1, 1, tzinfo=UTC)}, "coordinate time has no .*times have no zone"),
        ({"t2m": 280}, "t2m is not a one-dimensional coordinate; select by time, lat, lon"),
        ({"latitude": 1}, "no column 'latitude' in group /; did you mean 'lat'"),
        ({"lat": slice(None, None, -1)}, "must be a positive integer, not -1"),
    ],
)
def test_invalid_labels_are_rejected(labels: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        chosen_rows(labels)


@pytest.mark.parametrize(
    ("places", "sentence"),
    [
        ({"time": 10}, "10 is not a position along time, which has length 10"),
        ({"time": 1.5}, "1.5 is not a position along time"),
        ({"tim": 1}, "no dimension 'tim'; did you mean 'time'"),
        ({"time": slice(None, None, 0)}, "is not a position along time"),
    ],
)
def test_invalid_positions_are_rejected(places: dict[str, Any], sentence: str) -> None:
    _, table, _ = parts()

    with pytest.raises(InvalidInputError, match=sentence):
        select_positions(table, Selection.everything(table), places)


def test_range_needs_monotonic_coordinate() -> None:
    repo = repository(xr.Dataset({"v": ("x", np.arange(4.0))}, {"x": [3, 1, 2, 1]}))

    with pytest.raises(InvalidInputError, match="coordinate x is not monotonic"):
        chosen_rows({"x": slice(1, 2)}, repo)
    assert chosen_rows({"x": 1}, repo) == [(1, 1.0), (1, 3.0)]


def test_times_of_other_calendars_are_selected_as_text() -> None:
    times = xr.date_range("2000-02-27", periods=4, calendar="noleap", use_cftime=True)
    repo = repository(xr.Dataset({"v": ("time", np.arange(4.0))}, {"time": times}))

    found = chosen_rows({"time": slice("2000-02-28", "2000-03-01T00:00:00")}, repo)

    assert [row[-1] for row in found] == [1.0, 2.0]


SIZES = (10, 6, 8)


@given(st.data())
def test_only_needed_chunks_are_fetched_once(data: st.DataObject) -> None:
    session, table, _ = parts()
    table = table.select_columns(
        ["time", "lat", "lon", *data.draw(st.sampled_from([["t2m"], ["t2m", "rain"]]))]
    )
    wanted = [np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))) for size in SIZES]
    selection = Selection(tuple(wanted))
    made = make_plan(table, selection, partition_bytes=data.draw(st.sampled_from([1, 3000, 10**6])))

    with counted_chunks(pytest.MonkeyPatch()) as fetched:
        found = read_all(session, made, batch_rows=data.draw(st.integers(1, 100)))

    assert found.num_rows == np.prod([len(each) for each in wanted])
    boxes = np.prod([len(np.unique(each // size)) for each, size in zip(wanted, (4, 3, 4), strict=True)])
    coordinates = 3 * made.partitions
    assert len(fetched) == boxes * len(table.variables) + coordinates
    expected = opened(session).isel(dict(zip(table.dims, wanted, strict=True)))
    assert rows(found) == frame_rows(expected, table.schema.names)


def test_variables_with_different_chunks_share_blocks() -> None:
    dataset = weather(12)
    encoding = {"t2m": {"chunks": (4, 3, 4)}, "rain": {"chunks": (6, 6, 4)}}
    repo = repository(dataset, encoding=encoding)
    session, table, _ = parts(repo)
    made = make_plan(table, Selection.everything(table), partition_bytes=1)

    with counted_chunks(pytest.MonkeyPatch()) as fetched:
        found = read_all(session, made)

    assert made.partitions == 2  # shared boundaries: only the ends of time, and those of the longitudes
    assert len(fetched) == 3 * 2 * 2 + 2 * 1 * 2 + 3 * made.partitions
    assert rows(found) == frame_rows(opened(session), table.schema.names)


def test_each_shard_is_read_once() -> None:
    repo = repository(weather(8), encoding={"t2m": {"chunks": (2, 3, 4), "shards": (4, 6, 8)}})
    session, _, _ = parts(repo)
    table = find_tables(session).choose(["t2m"])

    made = make_plan(table, Selection.everything(table), partition_bytes=1)

    assert made.partitions == 2
    assert rows(read_all(session, made)) == frame_rows(opened(session)[["t2m"]], table.schema.names)


def test_coordinate_columns_fetch_no_data_chunks() -> None:
    session, table, _ = parts()
    made = make_plan(table.select_columns(["lat"]), Selection.everything(table))

    with counted_chunks(pytest.MonkeyPatch()) as fetched:
        found = read_all(session, made)

    assert found.num_rows == 10 * 6 * 8
    assert len(fetched) == 1


def test_plan_of_million_chunks_is_small() -> None:
    _, table, _ = parts()
    big = 1_000_000
    column = table.column("t2m")
    assert column.array is not None
    edges = (np.arange(big + 1), np.array([0, 6]), np.array([0, 8]))
    array = replace(column.array, shape=(big, 6, 8), edges=edges)
    large = ArrayTable("/", table.dims, (big, 6, 8), (replace(column, array=array),))

    made = make_plan(large, Selection.everything(large), partition_bytes=2**20)

    again = pickle.loads(pickle.dumps(made))
    assert len(pickle.dumps(made)) < 100_000
    assert list(again.blocks(3))[:2] == list(made.blocks(3))[:2]
    assert again.rows == made.rows == big * 48
    assert made.partitions == -(-big * 48 * 4 // 2**20)
    counts = np.diff(made.starts)
    assert counts.max() - counts.min() <= 2
