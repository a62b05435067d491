"""Compare the names, types and values of tables with xarray."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.query.scan.plan import make_plan
from icefloe.query.scan.selection import Selection
from icefloe.query.schema import ArrayTable, find_tables
from tests.support.spark.weather import CHUNKS, frame_rows, opened, read_all, repository, rows, weather

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


def table_of(repo: icefloe.Repository, variables: list[str] | None = None, group: str = "/") -> ArrayTable:
    return find_tables(repo.readonly_session("main"), group).choose(variables)


def contents(repo: icefloe.Repository, table: ArrayTable) -> pa.Table:
    session = repo.readonly_session("main")
    return read_all(session, make_plan(table, Selection.everything(table)))


def test_table_equals_xarray_dataframe() -> None:
    repo = repository(weather(), encoding=CHUNKS)
    table = table_of(repo)

    found = contents(repo, table)

    assert table.ddl == ("`time` timestamp_ntz, `lat` double, `lon` double, `rain` smallint, `t2m` float")
    expected = opened(repo.readonly_session("main"))
    assert rows(found) == frame_rows(expected, table.schema.names)


def test_rows_follow_dimension_order() -> None:
    dataset = weather()
    repo = repository(dataset)  # one chunk
    table = table_of(repo, ["t2m"])

    found = contents(repo, table)

    expected = dataset["t2m"].values.ravel()
    assert np.array_equal(found["t2m"].to_numpy(), expected, equal_nan=True)


VARIABLES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "b1": (np.array([True, False, True]), {}, "boolean"),
    "i1": (np.array([-128, 0, 127], "i1"), {}, "tinyint"),
    "u1": (np.array([0, 1, 255], "u1"), {}, "smallint"),
    "u2": (np.array([0, 1, 65535], "u2"), {}, "int"),
    "u4": (np.array([0, 1, 2**32 - 1], "u4"), {}, "bigint"),
    "u8": (np.array([0, 1, 2**64 - 1], "u8"), {}, "decimal(20,0)"),
    "f2": (np.array([1.5, np.nan, -2], "f2"), {}, "float"),
    "f8": (np.array([1.5, np.nan, -2], "f8"), {}, "double"),
    "packed": (
        np.array([1.5, np.nan, -2.5]),
        {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9},
        "double",
    ),
    "shifted": (
        np.array([273.15, np.nan, 300.0]),
        {"dtype": "u1", "scale_factor": 0.1, "add_offset": 273.15, "_FillValue": 255},
        "double",
    ),
    "unsigned": (
        np.array([0.0, 200.0, np.nan]),
        {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1},
        "smallint",
    ),
    "filled": (np.array([1.0, np.nan, 3.0], "f4"), {"_FillValue": 1e20}, "float"),
    "s": (np.array(["a", "", "ßé"]), {}, "string"),
    "when": (np.array(["2000-01-01", "NaT", "2020-06-01T12:30:00.25"], "M8[ns]"), {}, "timestamp_ntz"),
    "span": (np.array([1, 2 * 10**9, -(10**12)], "m8[ns]") * 1000, {}, "interval day to second"),
}


@pytest.mark.parametrize("name", list(VARIABLES))
def test_decoded_values_equal_xarray(name: str) -> None:
    values, encoding, spark_type = VARIABLES[name]
    repo = repository(xr.Dataset({name: ("x", values)}), encoding={name: encoding})
    table = table_of(repo)

    found = contents(repo, table)[name]

    assert table.ddl == f"`x` bigint, `{name}` {spark_type}"
    expected = opened(repo.readonly_session("main"), decode_timedelta=True)[name].values
    missing = np.isnat(expected) if expected.dtype.kind in "mM" else expected != expected
    assert found.is_null().to_pylist() == missing.tolist()
    shown = expected.astype(f"{expected.dtype.kind}8[us]") if expected.dtype.kind in "mM" else expected
    assert [v for v in found.to_pylist() if v is not None] == shown[~missing].tolist()


def test_complex_numbers_become_structs() -> None:
    repo = repository(xr.Dataset({"c": ("x", np.array([1 + 2j, 3 - 4j]))}))

    found = contents(repo, table_of(repo))["c"].to_pylist()

    assert found == [{"real": 1.0, "imag": 2.0}, {"real": 3.0, "imag": -4.0}]


def test_byte_strings_are_binary_columns() -> None:
    repo = repository(xr.Dataset({"s": ("x", np.array([b"a", b"bc"]))}))

    assert contents(repo, table_of(repo))["s"].to_pylist() == [b"a", b"bc"]


def test_times_of_other_calendars_have_text_and_number_columns() -> None:
    times = xr.date_range("2000-02-27", periods=4, calendar="noleap", use_cftime=True)
    repo = repository(xr.Dataset({"v": ("time", np.arange(4.0))}, {"time": times}))

    found = contents(repo, table_of(repo))

    assert found.schema.names == ["time", "time_numeric", "v"]
    assert found["time"].to_pylist()[1:3] == ["2000-02-28T00:00:00", "2000-03-01T00:00:00"]
    assert found["time_numeric"].to_pylist() == [0.0, 1.0, 2.0, 3.0]


def test_times_before_1582_are_text() -> None:
    session_repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = session_repo.writable_session("main")
    group = zarr.create_group(session.store)
    time: Any = group.create_array("time", shape=(2,), dtype="i8", dimension_names=("time",))
    time.attrs.update({"units": "days since 1582-10-14", "calendar": "proleptic_gregorian"})
    old: Any = group.create_array("old", shape=(2,), dtype="i8", dimension_names=("old",))
    old[:] = [0, 1]
    old.attrs.update({"units": "days since 1582-10-04", "calendar": "standard"})
    group.create_array("v", shape=(2, 2), dtype="i8", dimension_names=("time", "old"))
    session.commit("times")

    found = contents(session_repo, table_of(session_repo))

    assert found.schema.field("time").type == pa.timestamp("us")
    assert set(found["old"].to_pylist()) == {"1582-10-04T00:00:00", "1582-10-15T00:00:00"}


def test_auxiliary_coordinates_are_columns() -> None:
    dataset = xr.Dataset(
        {"v": (("y", "x"), np.arange(6.0).reshape(2, 3))},
        {
            "lat": (("y", "x"), np.arange(6.0).reshape(2, 3) + 0.5),
            "name": ("x", ["a", "b", "c"]),
            "height": 2.0,
            "y": [10, 20],
        },
    )
    repo = repository(dataset)
    table = table_of(repo)

    found = contents(repo, table)

    assert table.schema.names == ["y", "x", "height", "lat", "name", "v"]
    assert found["x"].to_pylist() == [0, 1, 2] * 2  # an index column, because there is no coordinate
    expected = opened(repo.readonly_session("main")).drop_vars("x", errors="ignore")
    assert rows(found.drop(["x"])) == frame_rows(expected, ["y", "height", "lat", "name", "v"])


def test_variables_with_different_dimensions_form_separate_tables() -> None:
    dataset = weather().assign(height=(("lat", "lon"), np.ones((6, 8))))
    repo = repository(dataset)
    tables = find_tables(repo.readonly_session("main"))

    assert [table.dims for table in tables.tables] == [("time", "lat", "lon"), ("lat", "lon")]
    assert tables.choose(["height"]).dims == ("lat", "lon")
    assert tables.choose(["time"]).dims == ("time", "lat", "lon")
    for unclear in (None, [], ["lat"]):
        with pytest.raises(
            InvalidInputError, match=r"2 tables.*\(lat, lon\): height; select one with the option"
        ):
            tables.choose(unclear)
    with pytest.raises(InvalidInputError, match="height, t2m have different dimensions"):
        tables.choose(["height", "t2m"])


def test_variables_with_the_same_dimensions_in_any_order_share_a_table() -> None:
    dataset = weather()
    dataset["turned"] = dataset["t2m"].transpose("lon", "time", "lat") * 2
    repo = repository(dataset, encoding={"turned": {"chunks": (8, 2, 6)}, **CHUNKS})
    table = table_of(repo, ["t2m", "turned"])

    found = contents(repo, table)

    assert table.dims == ("time", "lat", "lon") or table.dims == ("lon", "time", "lat")
    assert rows(found) == frame_rows(opened(repo.readonly_session("main")), table.schema.names)


def test_unknown_variable_suggests_nearest_name() -> None:
    repo = repository(weather())

    with pytest.raises(InvalidInputError, match="no variable 'T2N' in group /; did you mean 't2m'"):
        table_of(repo, ["T2N"])


def test_missing_group_is_rejected() -> None:
    repo = repository(weather(), group="era5")

    assert table_of(repo, group="era5").group == "/era5"
    with pytest.raises(NodeNotFoundError, match="no group /era6"):
        table_of(repo, group="era6")
    with pytest.raises(InvalidInputError, match="is an array; pass its group"):
        table_of(repo, group="era5/t2m")
    with pytest.raises(InvalidInputError, match="no arrays that form a table"):
        table_of(repo)


def test_unsupported_array_is_reported_and_can_be_excluded() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("good", shape=(2,), dtype="i4", dimension_names=("x",))
    group.create_array("twice", shape=(2, 2), dtype="i4", dimension_names=("x", "x"))
    group.create_array("pair", shape=(2,), dtype=np.dtype([("a", "i4"), ("b", "f4")]), dimension_names=("x",))
    session.commit("arrays")

    with pytest.raises(InvalidInputError, match="/pair has the data type"):
        table_of(repo, ["pair"])
    with pytest.raises(InvalidInputError, match="/twice has a dimension twice"):
        table_of(repo, ["twice"])
    with pytest.raises(InvalidInputError, match="exclude it"):
        table_of(repo)
    assert table_of(repo, ["good"]).schema.names == ["x", "good"]


def test_unnamed_dimensions_become_index_columns() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    array: Any = zarr.create_array(session.store, name="a", shape=(2, 2), dtype="i4")
    array[...] = [[1, 2], [3, 4]]
    session.commit("array")

    found = contents(repo, table_of(repo))

    assert rows(found) == [(0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 4)]


def test_scalar_is_table_with_one_row() -> None:
    repo = repository(xr.Dataset({"v": ((), 5.0)}))

    assert rows(contents(repo, table_of(repo))) == [(5.0,)]


def test_empty_dimension_has_no_rows() -> None:
    repo = repository(xr.Dataset({"v": ("x", np.zeros(0))}, {"x": np.zeros(0)}))

    assert rows(contents(repo, table_of(repo))) == []
