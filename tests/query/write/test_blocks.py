"""Write rows to arrays without Spark: positions, extension, templates and invalid rows."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.query.write.target import Template
from icefloe.session import Session
from tests.support.query import as_rows, write_table
from tests.support.spark.weather import CHUNKS, opened, repository, weather


def fresh() -> Session:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    return repo.writable_session("main")


def test_rows_round_trip_to_arrays() -> None:
    session = fresh()
    template = Template(("time", "lat", "lon"), {"time": 4, "lat": 3}, {"rain": "int32"}, {"rain": -1})
    dataset = weather().sortby("lat")

    write_table(session, as_rows(dataset), template)

    found = opened(session)
    xr.testing.assert_equal(found, dataset)
    assert found["rain"].encoding["chunks"] == (4, 3, 8)
    assert found["rain"].encoding["dtype"] == np.int32


@given(st.data())
def test_append_changes_only_the_given_cells(data: st.DataObject) -> None:
    dataset = weather()
    session = repository(dataset, encoding=CHUNKS).writable_session("main")
    rows = as_rows(dataset[["rain", "t2m"]])
    chosen = data.draw(st.sets(st.integers(0, rows.num_rows - 1), min_size=1, max_size=60))
    part = rows.take(sorted(chosen, key=lambda n: (n * 7919) % 480))
    changed = part.set_column(
        part.schema.get_field_index("rain"), "rain", pa.array([999] * len(part), pa.int16())
    )
    more = data.draw(st.integers(0, 5))
    later = [datetime(2020, 1, 7 + n) for n in range(more)]
    if more:
        template = changed.slice(0, 1)
        extra = [template.set_column(0, "time", pa.array([day], pa.timestamp("us"))) for day in later]
        changed = pa.concat_tables([changed, *extra])

    write_table(session, changed.select(["time", "lat", "lon", "rain"]))

    found = opened(session)
    assert found.sizes["time"] == 10 + more
    flat = dataset["rain"].values.ravel().copy()
    flat[sorted(chosen)] = 999
    assert (found["rain"].values[:10].ravel() == flat).all()
    xr.testing.assert_equal(found["t2m"].isel(time=slice(0, 10)), dataset["t2m"])
    assert (found["rain"].values[10:] == 999).sum() == more
    if more:
        assert found["time"].values[-1] == np.datetime64(later[-1])


def test_packed_values_times_and_text_round_trip() -> None:
    dataset = xr.Dataset(
        {
            "packed": ("x", np.array([1.5, np.nan, -2.5, 3.0])),
            "when": ("x", np.array(["2000-01-01", "2001-01-01", "2002-01-01", "NaT"], "M8[ns]")),
            "unsigned": ("x", np.array([0.0, 200.0, np.nan, 5.0])),
        },
        {"x": [10.0, 20.0, 30.0, 40.0]},
    )
    encoding = {
        "packed": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9},
        "unsigned": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1},
    }
    session = repository(dataset, encoding=encoding).writable_session("main")
    turned = pa.table(
        {
            "x": [40.0, 30.0, 20.0, 10.0],
            "packed": [1.5, None, -2.5, 3.0],
            "when": pa.array(
                [datetime(2000, 1, 1), None, datetime(2002, 1, 1), datetime(2003, 1, 1)], pa.timestamp("us")
            ),
            "unsigned": pa.array([0, 255 - 1, None, 7], pa.int16()),
        }
    )

    write_table(session, turned)

    found = opened(session)
    assert found["packed"].values[::-1].tolist()[0] == 1.5
    assert np.isnan(found["packed"].values[2])
    assert found["unsigned"].values.tolist()[2:] == [254.0, 0.0]
    assert np.isnat(found["when"].values[2])


def test_overwrite_replaces_named_variables() -> None:
    dataset = weather()
    session = repository(dataset, encoding=CHUNKS).writable_session("main")
    one = as_rows(dataset[["rain"]].isel(time=[0]))

    write_table(session, one, mode="overwrite")

    found = opened(session)
    assert (found["rain"].isel(time=0).values == dataset["rain"].isel(time=0).values).all()
    assert (found["rain"].isel(time=slice(1, None)).values == 0).all()
    xr.testing.assert_equal(found["t2m"], dataset["t2m"])


def test_overwrite_of_all_variables_replaces_coordinates() -> None:
    session = repository(weather(), encoding=CHUNKS).writable_session("main")
    smaller = weather(3, (2, 2)).sortby("lat")

    write_table(session, as_rows(smaller), Template(("time", "lat", "lon")), mode="overwrite")

    assert dict(opened(session).sizes) == {"time": 3, "lat": 2, "lon": 2}


def test_decreasing_and_text_coordinates_are_extended() -> None:
    session = fresh()
    write_table(
        session,
        pa.table({"name": ["b", "a"], "depth": [20.0, 10.0], "v": [1.0, 2.0]}),
        Template(("depth", "name")),
    )
    falling = repository(xr.Dataset({"v": ("y", [1.0, 2.0])}, {"y": [5.0, 4.0]})).writable_session("main")

    write_table(falling, pa.table({"y": [2.0, 3.0], "v": [9.0, 8.0]}))

    assert opened(falling)["y"].values.tolist() == [5.0, 4.0, 3.0, 2.0]
    assert opened(falling)["v"].values.tolist() == [1.0, 2.0, 8.0, 9.0]
    found = opened(session)
    assert found["name"].values.tolist() == ["a", "b"]
    assert float(found["v"].sel(depth=10.0, name="a")) == 2.0


def test_decimal_coordinates_match_floats_and_integers() -> None:
    session = fresh()
    lat = pa.array([Decimal("45.5"), Decimal("44.5")], pa.decimal128(3, 1))
    level = pa.array([Decimal(1), Decimal(2)], pa.decimal128(10, 0))

    write_table(session, pa.table({"lat": lat, "level": level, "v": [1.0, 2.0]}), Template(("lat", "level")))

    found = opened(session)
    assert found["lat"].values.tolist() == [44.5, 45.5]
    assert found["level"].dtype == np.int64
    assert float(found["v"].sel(lat=45.5, level=1)) == 1.0


def day(*hours: int) -> pa.Array:
    return pa.array([datetime(2020, 1, 1 + hour) for hour in hours], pa.timestamp("us"))


WRONG: dict[str, tuple[dict[str, Any], Template, str]] = {
    "null": (
        {"time": day(0), "lat": pa.array([None], pa.float64()), "lon": [0.0]},
        Template(),
        "1 rows have no lat",
    ),
    "nan": ({"time": day(0), "lat": [np.nan], "lon": [0.0]}, Template(), "a row has NaN for lat"),
    "twice": (
        {"time": day(0, 0), "lat": [60.0, 60.0], "lon": [0.0, 0.0]},
        Template(),
        r"two rows have the same coordinates \(time 2020-01-01T00:00:00, lat 60.0, lon 0.0\)",
    ),
    "off the grid": (
        {"time": day(0), "lat": [61.0], "lon": [0.0]},
        Template(),
        "lat 61.0 is not a coordinate of group /, and only time can be extended",
    ),
    "between": (
        {"time": pa.array([datetime(2020, 1, 1, 12)], pa.timestamp("us")), "lat": [60.0], "lon": [0.0]},
        Template(),
        "time 2020-01-01T12:00:00 lies between coordinates of group /",
    ),
    "no column": ({"time": day(0), "lat": [60.0]}, Template(), "no column 'lon' for a dimension of the rows"),
    "no dims": ({"p": [1.0], "q": [1.0]}, Template(), "does not determine the dimensions"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_rows_without_matching_coordinates_are_rejected(name: str) -> None:
    columns, template, sentence = WRONG[name]
    session = repository(weather(), encoding=CHUNKS).writable_session("main")
    count = len(next(iter(columns.values())))
    variable = {} if "p" in columns else {"rain": pa.array([1] * count, pa.int16())}

    with pytest.raises(InvalidInputError, match=sentence):
        write_table(session, pa.table({**columns, **variable}), template)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (pa.array([None], pa.int16()), "rain has no fill value for null"),
        (pa.array([1 << 20], pa.int32()), "a value of rain is outside the range of its type int16"),
        (pa.array([1.5]), "rain cannot hold the values of a column of type double"),
        (pa.array(["x"]), "rain cannot hold the values of a column of type string"),
        (day(1), "rain cannot hold the values of a column of type timestamp"),
    ],
)
def test_values_outside_data_type_are_rejected(column: pa.Array, sentence: str) -> None:
    session = repository(weather(), encoding=CHUNKS).writable_session("main")

    with pytest.raises(InvalidInputError, match=sentence):
        write_table(session, pa.table({"time": day(0), "lat": [60.0], "lon": [0.0], "rain": column}))


def test_duplicate_coordinates_are_rejected() -> None:
    session = repository(xr.Dataset({"v": ("x", [1.0, 2.0])}, {"x": [1, 1]})).writable_session("main")

    with pytest.raises(InvalidInputError, match="coordinate x contains a value twice"):
        write_table(session, pa.table({"x": [1], "v": [3.0]}))
    with pytest.raises(InvalidInputError, match="only coordinates \\(x\\) and no variable to write"):
        write_table(session, pa.table({"x": [1]}), Template(("x",)))
