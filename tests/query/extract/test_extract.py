"""Compare values at points with xarray, and aggregates over zones with exactextract."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, ZstdCodec

import icefloe
from icefloe.core.workspace import Workspace
from icefloe.errors import InvalidInputError
from icefloe.query.extract.points import plan_points
from icefloe.query.extract.run import Extraction, collect, divide_blocks
from icefloe.query.extract.zones import plan_zones
from icefloe.query.scan.plan import TableScan, scan_table
from icefloe.query.schema import find_tables
from icefloe.store import IcechunkStore
from icefloe.xarray import to_icechunk

GRIDS = {
    "descending": (np.linspace(90, -90, 19), np.arange(0, 360, 10.0)),
    "ascending": (np.linspace(-85, 85, 18), np.arange(-180, 180, 10.0)),
    "regional": (np.linspace(60, 30, 16), np.linspace(-10, 20, 16)),
}


def make_dataset(lat: Any, lon: Any) -> xr.Dataset:
    random = np.random.default_rng(0)
    shape = (5, len(lat), len(lon))
    values = random.normal(size=shape).astype("f4")
    values[random.random(shape) < 0.05] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values),
            "rain": (("time", "lat", "lon"), random.integers(0, 100, shape).astype("i2")),
        },
        {
            "time": np.datetime64("2024-01-01", "ns") + np.arange(5) * np.timedelta64(1, "D"),
            "lat": ("lat", lat, {"units": "degrees_north"}),
            "lon": ("lon", lon, {"units": "degrees_east"}),
        },
    )


def scan_dataset(
    dataset: xr.Dataset, chunks: tuple[int, ...] = (2, 5, 7), encoding: Mapping[str, Any] | None = None
) -> TableScan:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    encodings = {name: {"chunks": chunks, **(encoding or {})} for name in dataset.data_vars}
    to_icechunk(dataset, session, encoding=encodings)
    session.commit("data")
    opened = repo.readonly_session("main")
    return scan_table(opened, find_tables(opened).choose(None))


def run(job: Extraction) -> Any:
    """Run an extraction as tasks do, from a pickle."""
    return collect(pickle.loads(pickle.dumps(job))).to_pandas()


@pytest.fixture(params=GRIDS)
def dataset(request: pytest.FixtureRequest) -> xr.Dataset:
    return make_dataset(*GRIDS[request.param])


def draw_points(dataset: xr.Dataset, number: int = 50) -> dict[str, Any]:
    random = np.random.default_rng(1)
    lat, lon = dataset["lat"].values, dataset["lon"].values
    return {
        "station": np.arange(number),
        "lat": random.uniform(lat.min(), lat.max(), number),
        "lon": random.uniform(lon.min(), lon.max(), number),
    }


def test_nearest_values_equal_xarray(dataset: xr.Dataset) -> None:
    points = draw_points(dataset)

    found = run(plan_points(scan_dataset(dataset), points))

    places = {name: xr.DataArray(points[name], dims="station") for name in ("lat", "lon")}
    expected = dataset.sel(places, method="nearest").transpose("time", "station")
    found = found.sort_values(["time", "station"])
    np.testing.assert_array_equal(found["t2m"].to_numpy(np.float32), expected["t2m"].values.ravel())
    np.testing.assert_array_equal(found["rain"], expected["rain"].values.ravel())


def interpolate(dataset: xr.Dataset, lat: float, lon: float) -> Any:
    """Interpolate between the four cells around a point, one dimension after the other."""
    rows = dataset["t2m"].astype("f8").sortby("lat").sortby("lon").values
    lats, lons = np.sort(dataset["lat"].values), np.sort(dataset["lon"].values)
    y, x = (
        np.clip(np.searchsorted(axis, at) - 1, 0, len(axis) - 2) for axis, at in ((lats, lat), (lons, lon))
    )
    v, u = (lat - lats[y]) / (lats[y + 1] - lats[y]), (lon - lons[x]) / (lons[x + 1] - lons[x])
    low = rows[:, y, x] * (1 - u) + rows[:, y, x + 1] * u
    high = rows[:, y + 1, x] * (1 - u) + rows[:, y + 1, x + 1] * u
    return low * (1 - v) + high * v


def test_linear_values_equal_interpolation_between_four_cells(dataset: xr.Dataset) -> None:
    points = draw_points(dataset)

    found = run(plan_points(scan_dataset(dataset), points, "linear")).sort_values(["station", "time"])

    expected = [interpolate(dataset, *place) for place in zip(points["lat"], points["lon"], strict=True)]
    np.testing.assert_allclose(found["t2m"].to_numpy(float), np.concatenate(expected), rtol=1e-12, atol=1e-12)


def test_points_beyond_the_date_line_are_neighbours_of_the_first_longitude() -> None:
    dataset = make_dataset(*GRIDS["descending"]).fillna(0)
    scan = scan_dataset(dataset)

    nearest = run(plan_points(scan, {"lat": [0, 0], "lon": [358.0, -3.0]}))
    linear = run(plan_points(scan, {"lat": [0.0], "lon": [-2.5]}, "linear"))

    row = dataset["t2m"].sel(lat=0).astype("f8")
    first, last = row.sel(lon=0).values, row.sel(lon=350).values
    np.testing.assert_array_equal(nearest["t2m"].to_numpy(), np.repeat(first, 2))
    np.testing.assert_allclose(linear["t2m"], 0.75 * first + 0.25 * last, rtol=1e-12)


def test_points_without_a_cell_within_the_tolerance_are_null() -> None:
    scan = scan_dataset(make_dataset(*GRIDS["regional"]).fillna(0))

    found = run(plan_points(scan, {"lat": [50.0, 70.0], "lon": [0.0, 0.0]}, tolerance=2))

    by_point = found.groupby("lat")["t2m"].count()
    assert by_point.to_dict() == {50.0: 5, 70.0: 0}


def test_points_can_have_times() -> None:
    dataset = make_dataset(*GRIDS["regional"])
    times = dataset["time"].values[[3, 1]]

    found = run(plan_points(scan_dataset(dataset), {"time": times, "lat": [44.0, 60.0], "lon": [6.0, -10.0]}))

    expected = [dataset["rain"].sel(time=times[0], lat=44, lon=6), dataset["rain"].values[1, 0, 0]]
    assert found["rain"].tolist() == [int(value) for value in expected]


def make_curvilinear() -> xr.Dataset:
    y, x = np.meshgrid(np.linspace(-1, 1, 12), np.linspace(-1, 1, 14), indexing="ij")
    lat, lon = 80 + 9 * y - 2 * x**2, 175 + 12 * x + 4 * y
    values = np.arange(lat.size, dtype="f4").reshape(lat.shape)
    north, east = {"units": "degrees_north"}, {"units": "degrees_east"}
    return xr.Dataset(
        {"t2m": (("y", "x"), values)}, {"lat": (("y", "x"), lat, north), "lon": (("y", "x"), lon, east)}
    )


def test_nearest_cell_of_two_dimensional_coordinates_has_the_smallest_great_circle_distance() -> None:
    dataset = make_curvilinear()
    points = {"lat": [85.0, 75.0, 88.9], "lon": [-178.0, 170.0, 20.0]}

    found = run(plan_points(scan_dataset(dataset, (5, 5)), points))

    lat, lon = np.deg2rad(dataset["lat"].values), np.deg2rad(dataset["lon"].values)
    for place, value in zip(zip(*points.values(), strict=True), found["t2m"], strict=True):
        phi, lam = np.deg2rad(place)
        distance = np.arccos(
            np.clip(np.sin(lat) * np.sin(phi) + np.cos(lat) * np.cos(phi) * np.cos(lon - lam), -1, 1)
        )
        assert distance.ravel()[int(value)] == pytest.approx(distance.min(), abs=1e-9)


@pytest.mark.parametrize(
    ("points", "options", "words"),
    [
        ({"x": [1]}, {}, r"\(x\) is a coordinate; coordinates are lat, lon, time"),
        ({"lat": [1.0], "lon": [None]}, {}, "1 points have no lon"),
        ({"lat": [1.0], "lon": [np.nan]}, {}, "1 points have no lon"),
        (
            {"lat": [1.0], "lon": ["east"]},
            {},
            "lon of the points must be numbers or times, not string: 'east'",
        ),
        ({"lat": [1.0]}, {"method": "cubic"}, "no method 'cubic'"),
        ({"lat": [1.0]}, {"tolerance": {"lati": 1}}, "no coordinate 'lati' in tolerance"),
        ({"lat": [1.0]}, {"tolerance": 1, "method": "linear"}, "tolerance applies to the method nearest"),
        ({"lat": [1.0], "rain": [3]}, {}, "points have a column rain like the table"),
    ],
)
def test_invalid_points_are_rejected(points: Any, options: Any, words: str) -> None:
    scan = scan_dataset(make_dataset(*GRIDS["regional"]))

    with pytest.raises(InvalidInputError, match=words):
        plan_points(scan, pa.table(points), **options)


def test_points_with_columns_of_different_lengths_are_rejected() -> None:
    with pytest.raises(InvalidInputError, match="the points are not a table"):
        plan_points(scan_dataset(make_dataset(*GRIDS["regional"])), {"lat": [1.0, 2.0], "lon": [1.0]})


def test_points_on_two_dimensional_coordinates_can_have_times() -> None:
    dataset = make_curvilinear().expand_dims(time=np.array(["2024-01-01", "2024-01-02"], "M8[ns]"))
    dataset["t2m"] = dataset["t2m"] + xr.DataArray(np.array([0, 1000], "f4"), dims="time")
    points = {"lat": [85.0, 75.0], "lon": [-178.0, 170.0], "time": dataset["time"].values[::-1]}

    found = run(plan_points(scan_dataset(dataset, (1, 5, 5)), points, tolerance={"time": timedelta(hours=1)}))

    assert (found["time"].to_numpy() == points["time"]).all()
    assert [value >= 1000 for value in found["t2m"]] == [True, False]


def test_linear_interpolation_is_rejected_for_two_dimensional_coordinates() -> None:
    with pytest.raises(
        InvalidInputError, match="two-dimensional, which linear interpolation does not support"
    ):
        plan_points(scan_dataset(make_curvilinear(), (5, 5)), {"lat": [80.0], "lon": [170.0]}, "linear")


# Zones


def draw_zones(dataset: xr.Dataset, number: int = 6) -> dict[str, Any]:
    shapely = pytest.importorskip("shapely")
    random = np.random.default_rng(2)
    lat, lon = dataset["lat"].values, dataset["lon"].values
    features = []
    for place in range(number):
        radius = random.uniform(2, 12)
        middle = [random.uniform(each.min() + radius, each.max() - radius) for each in (lon, lat)]
        geometry = json.loads(shapely.to_geojson(shapely.Point(middle).buffer(radius)))
        features.append(
            {"type": "Feature", "id": place, "properties": {"name": f"z{place}"}, "geometry": geometry}
        )
    return {"type": "FeatureCollection", "features": features}


def aggregate_exactly(
    dataset: xr.Dataset, time: int, zones: dict[str, Any], functions: list[str]
) -> list[Any]:
    exactextract = pytest.importorskip("exactextract")
    ordered = dataset.sortby("lat", ascending=False)
    lat, lon = ordered["lat"].values, ordered["lon"].values
    dy, dx = (lat[0] - lat[1]) / 2, (lon[1] - lon[0]) / 2
    extent = {"xmin": lon[0] - dx, "xmax": lon[-1] + dx, "ymin": lat[-1] - dy, "ymax": lat[0] + dy}
    values = ordered["t2m"].values[time].astype("f8")
    source = exactextract.raster.NumPyRasterSource(values, nodata=np.nan, **extent)
    return [each["properties"] for each in exactextract.exact_extract(source, zones["features"], functions)]


@pytest.mark.needs("exactextract")
@pytest.mark.parametrize("name", ["ascending", "regional"])
def test_zones_equal_exactextract(name: str) -> None:
    dataset = make_dataset(*GRIDS[name])
    zones = draw_zones(dataset)
    functions = ["mean", "sum", "min", "max", "count"]

    found = run(plan_zones(scan_dataset(dataset), zones, {"t2m": functions})).set_index(["time", "zone"])

    for time, moment in enumerate(dataset["time"].values):
        for zone, expected in enumerate(aggregate_exactly(dataset, time, zones, functions)):
            for function in functions:
                value = found.loc[(moment, zone), f"t2m_{function}"]
                assert value == pytest.approx(expected[function], rel=1e-9, abs=1e-9)


@pytest.mark.needs("shapely")
def test_zone_across_the_date_line_has_cells_on_both_sides() -> None:
    dataset = make_dataset(*GRIDS["descending"]).fillna(0)
    ring = [[350, -10], [370, -10], [370, 10], [350, 10], [350, -10]]
    zone = {"type": "Polygon", "coordinates": [ring]}

    found = run(plan_zones(scan_dataset(dataset), zone, {"rain": "count"}))

    assert found["rain"].tolist() == pytest.approx([4.0] * 5)


@pytest.mark.needs("shapely")
def test_area_weights_equal_cell_areas_on_the_sphere() -> None:
    dataset = make_dataset(*GRIDS["ascending"]).fillna(0)
    ring = [[-180, -90], [180, -90], [180, 90], [-180, 90], [-180, -90]]
    globe = {"type": "Polygon", "coordinates": [ring]}

    found = run(plan_zones(scan_dataset(dataset), globe, {"rain": "mean"}, weights="area"))

    lat = np.deg2rad(dataset["lat"].values)
    half = np.deg2rad(5)
    weights = xr.DataArray(np.sin(lat + half) - np.sin(lat - half), dims="lat")
    expected = dataset["rain"].astype("f8").weighted(weights).mean(("lat", "lon"))
    np.testing.assert_allclose(found["rain"], expected, rtol=1e-12)


def test_mask_zones_contain_only_whole_cells(dataset: xr.Dataset) -> None:
    shape = (dataset.sizes["lat"], dataset.sizes["lon"])
    mask = np.where(np.arange(np.prod(shape)).reshape(shape) % 3 == 0, np.nan, 7.0)

    found = run(plan_zones(scan_dataset(dataset), mask, {"t2m": ["mean", "max"]}))

    inside = dataset["t2m"].astype("f8").where(xr.DataArray(np.isfinite(mask), dims=("lat", "lon")))
    assert found["zone"].tolist() == [7] * 5
    np.testing.assert_allclose(found["t2m_mean"], inside.mean(("lat", "lon")), rtol=1e-12)
    np.testing.assert_array_equal(found["t2m_max"], inside.max(("lat", "lon")))


def test_xarray_mask_is_transposed_to_the_dimensions_of_the_variable() -> None:
    dataset = make_dataset(*GRIDS["regional"])
    scan = scan_dataset(dataset)
    mask = (dataset["lat"] > 50) & (dataset["lon"] > 0)

    found = run(plan_zones(scan, mask.transpose("lon", "lat"), {"t2m": "max"}))

    assert found["zone"].tolist() == [1] * 5
    np.testing.assert_array_equal(found["t2m"], dataset["t2m"].where(mask).max(("lat", "lon")))
    with pytest.raises(InvalidInputError, match="lat of the mask differs"):
        plan_zones(scan, mask.isel(lat=slice(None, None, -1)), {"t2m": "max"})


@pytest.mark.parametrize(
    ("zones", "results", "words"),
    [
        ("{}", {"rain": "mean"}, "the zones are not GeoJSON"),
        ("missing.geojson", {"rain": "mean"}, "the zones in missing.geojson cannot be read"),
        (np.zeros((2, 2)), {"rain": "mean"}, r"the mask has the shape \(2, 2\), and the grid \(16, 16\)"),
        (np.zeros((16, 16)), {"rain": "median"}, "no function 'median'"),
        (np.zeros((16, 16)), {"snow": "mean"}, "no variable 'snow'"),
        (np.zeros((16, 16)), {}, "no results were requested"),
        (xr.DataArray(np.zeros((16, 16)), dims=("y", "x")), {"rain": "mean"}, "mask has the dimensions y, x"),
        ({"type": "FeatureCollection", "features": []}, {"rain": "mean"}, "zones have no features"),
        pytest.param(
            {"type": "Point", "coordinates": [0, 40]},
            {"rain": "mean"},
            "feature 0 is a Point, which has no area",
            marks=pytest.mark.needs("shapely"),
        ),
    ],
)
def test_invalid_zones_are_rejected(zones: Any, results: Any, words: str) -> None:
    scan = scan_dataset(make_dataset(*GRIDS["regional"]))

    with pytest.raises(InvalidInputError, match=words):
        plan_zones(scan, zones, results)


def test_local_scan_supports_points_and_zones(dataset: xr.Dataset) -> None:
    session = scan_dataset(dataset).session
    mask = np.zeros((dataset.sizes["lat"], dataset.sizes["lon"]))

    scan = icefloe.scan(session, variables="rain").isel(time=0)

    assert scan.points({"lat": [45.0], "lon": [5.0]}).num_rows == 1
    found = scan.zones(mask, rain="max").column("rain").to_pylist()
    assert found == [float(dataset["rain"].values[0].max())]
    with pytest.raises(InvalidInputError, match="filters do not apply to points"):
        icefloe.scan(session, filters="rain > 3").points({"lat": [45.0], "lon": [5.0]})


def test_chunks_on_a_server_are_requested_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset(*GRIDS["descending"])
    scan = scan_dataset(dataset, (1, 5, 7))
    points, mask = draw_points(dataset), np.zeros((dataset.sizes["lat"], dataset.sizes["lon"]))
    jobs: list[Extraction] = [plan_points(scan, points, "linear"), plan_zones(scan, mask, {"rain": "sum"})]
    expected = [run(job) for job in jobs]

    monkeypatch.setattr(IcechunkStore, "_at_once", False)
    found = [run(job) for job in jobs]

    for one, other in zip(found, expected, strict=True):
        assert one.equals(other)


def test_coordinates_need_not_be_selected() -> None:
    dataset = make_dataset(*GRIDS["descending"])
    scan = scan_dataset(dataset).select("rain")
    mask = np.zeros((dataset.sizes["lat"], dataset.sizes["lon"]))

    points = run(plan_points(scan, {"lat": [90.0], "lon": [0.0]}))
    zones = run(plan_zones(scan, mask, {"rain": "max"}))

    assert points.columns.tolist() == ["lat", "lon", "rain"]
    assert points["rain"].tolist() == dataset["rain"].values[:, 0, 0].tolist()
    assert zones.columns.tolist() == ["zone", "rain"]


def test_extraction_fetches_each_chunk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset(*GRIDS["descending"])
    scan = scan_dataset(dataset[["rain"]], (5, 5, 7))
    wanted: list[str] = []
    original = Workspace.read

    def read(self: Workspace, ref: Any, start: int, stop: int, chunk: str = "") -> bytes:
        if chunk.endswith("of /rain"):
            wanted.append(chunk)
        return original(self, ref, start, stop, chunk)

    monkeypatch.setattr(Workspace, "read", read)
    points = {"lat": np.linspace(80, 50, 40), "lon": np.linspace(2, 60, 40)}
    collect(plan_points(scan, points, "linear"))

    assert len(wanted) == len(set(wanted)) > 1


DIMS = ("time", "lat", "level", "lon")


@pytest.mark.parametrize(
    "encoding",
    [
        {"compressors": BloscCodec()},
        {"compressors": GzipCodec()},
        {"compressors": None},
        {"compressors": [ZstdCodec(), GzipCodec()]},
        {"serializer": BytesCodec(endian="big")},
        {"shards": (4, 10, 4, 14)},
    ],
)
@pytest.mark.parametrize("times", [slice(None), slice(1, 4), [0, 3, 4]])
def test_values_match_xarray_for_any_encoding(encoding: dict[str, Any], times: Any) -> None:
    dataset = make_dataset(*GRIDS["regional"])[["t2m"]]
    dataset["t2m"][{"lat": slice(5)}] = np.nan  # chunks that are not stored
    dataset = (dataset * xr.DataArray(np.arange(5, dtype="f4"), dims="level")).transpose(*DIMS)
    scan = scan_dataset(dataset, (2, 5, 2, 7), {**encoding, "fill_value": np.nan})
    points = draw_points(dataset)

    found = run(plan_points(scan.isel(time=times, level=[1, 4]), points))
    found = found.sort_values(["time", "level", "station"])

    places = {name: xr.DataArray(points[name], dims="station") for name in ("lat", "lon")}
    expected = dataset["t2m"].isel(time=times, level=[1, 4]).sel(places, method="nearest")
    expected = expected.transpose("time", "level", "station")
    np.testing.assert_array_equal(found["t2m"], expected.values.ravel())


def test_extraction_tasks_read_at_most_a_partition_and_use_all_slots() -> None:
    scan = scan_dataset(make_dataset(*GRIDS["regional"])[["rain"]], (1, 5, 7))
    job = plan_points(scan, {"lat": [44.0], "lon": [6.0]})
    small = plan_points(replace(scan, partition_bytes=2 * 5 * 7 * 2), {"lat": [44.0], "lon": [6.0]})

    assert divide_blocks(job, 1) == [range(5)]
    assert divide_blocks(job, 2) == [range(2), range(2, 5)]
    assert divide_blocks(small, 1) == [range(1), range(1, 3), range(3, 5)]
    assert len(divide_blocks(job, 100)) == 5
