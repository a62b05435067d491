"""Compare the grid mappings of GeoTIFF files with the coordinate reference systems of pyproj."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
import tifffile

from icefloe.virtual import combine, virtualize
from tests.support.virtual.files import aged, assert_reads_back
from tests.support.virtual.formats import geo_tiff

MODEL, RASTER, CITATION = 1024, 1025, 1026
GEOGRAPHIC, GEO_CITATION, DATUM, ELLIPSOID, MAJOR, FLATTENING = 2048, 2049, 2050, 2056, 2057, 2059
PROJECTED, PCS_CITATION, PROJECTION, METHOD, UNITS, VERTICAL = 3072, 3073, 3074, 3075, 3076, 4096
USER = 32767
OWN_DATUM = {
    GEOGRAPHIC: USER,
    GEO_CITATION: "GCS Name = unknown|Datum = unknown|Ellipsoid = unknown|Primem = Greenwich|",
    DATUM: USER,
    ELLIPSOID: USER,
}
PROJECTED_OWN = {MODEL: 1, PROJECTED: USER, PROJECTION: USER, UNITS: 9001}


SPHERE = {**OWN_DATUM, MAJOR: 6371007.181, FLATTENING: 0.0}
SYSTEMS: dict[str, tuple[dict[int, Any], str]] = {
    "projected code": ({MODEL: 1, PROJECTED: 32633}, "EPSG:32633"),
    "geographic code": ({MODEL: 2, GEOGRAPHIC: 4326}, "EPSG:4326"),
    "code of ESRI": ({MODEL: 1, PROJECTED: 54009}, "ESRI:54009"),
    "compound": ({MODEL: 1, PROJECTED: 28992, VERTICAL: 5709}, "EPSG:28992+5709"),
    "geographic with heights": ({MODEL: 2, GEOGRAPHIC: 4326, VERTICAL: 4979}, "EPSG:4979"),
    "zone on another datum": (
        {MODEL: 1, PROJECTED: USER, PROJECTION: 16033, GEOGRAPHIC: 4269},
        "+proj=utm +zone=33 +datum=NAD83",
    ),
    "sinusoidal sphere": (
        {**PROJECTED_OWN, **SPHERE, METHOD: 24, 3088: 0.0},
        "+proj=sinu +R=6371007.181",
    ),
    "two parallels": (
        {**PROJECTED_OWN, GEOGRAPHIC: 4326, METHOD: 8, 3078: 25.0, 3079: 60.0, 3084: -100.0, 3085: 42.5},
        "+proj=lcc +lat_1=25 +lat_2=60 +lat_0=42.5 +lon_0=-100 +datum=WGS84",
    ),
    "polar": (
        {**PROJECTED_OWN, GEOGRAPHIC: 4326, METHOD: 15, 3081: 60.0, 3092: 1.0, 3095: 10.0},
        "+proj=stere +lat_0=90 +lat_ts=60 +lon_0=10 +datum=WGS84",
    ),
    "feet": (
        {**PROJECTED_OWN, UNITS: 9003, GEOGRAPHIC: 4269, METHOD: 1}
        | {3080: -75.0, 3081: 40.0, 3082: 492125.0, 3092: 0.9999},
        "+proj=tmerc +lat_0=40 +lon_0=-75 +k=0.9999 +x_0=150000 +datum=NAD83 +units=us-ft",
    ),
    "text of ESRI": (
        {MODEL: USER, PCS_CITATION: "ESRI PE String = " + pyproj.CRS("ESRI:54009").to_wkt("WKT1_ESRI")},
        "ESRI:54009",
    ),
}


@pytest.mark.parametrize(("keys", "expected"), SYSTEMS.values(), ids=SYSTEMS)
def test_grid_mapping_describes_the_coordinate_reference_system(
    tmp_path: Path, keys: Any, expected: str
) -> None:
    dataset = virtualize(geo_tiff(tmp_path / "f.tif", {**keys, RASTER: 1}))

    found = dataset.variables["spatial_ref"]
    for attribute in ("crs_wkt", "spatial_ref"):
        system = pyproj.CRS.from_wkt(found.attributes[attribute])
        assert system.equals(pyproj.CRS(expected), ignore_axis_order=True)
    assert found.shape == ()
    assert dataset.variables["image"].attributes["grid_mapping"] == "spatial_ref"


def test_grid_mapping_has_cf_attributes_and_transform(tmp_path: Path) -> None:
    path = geo_tiff(tmp_path / "f.tif", {MODEL: 1, RASTER: 1, PROJECTED: 32633})

    attributes = virtualize(path).variables["spatial_ref"].attributes
    overview = virtualize(path, group="overview_1").variables

    assert attributes["grid_mapping_name"] == "transverse_mercator"
    assert attributes["longitude_of_central_meridian"] == 15.0
    assert attributes["GeoTransform"] == "100.0 10.0 0.0 900.0 0.0 -20.0"
    assert overview["spatial_ref"].attributes["GeoTransform"] == "100.0 20.0 0.0 900.0 0.0 -40.0"
    assert overview["image"].attributes["grid_mapping"] == "spatial_ref"


def test_rotated_rasters_have_a_transform(tmp_path: Path) -> None:
    path = geo_tiff(tmp_path / "f.tif", {MODEL: 1, RASTER: 2, PROJECTED: 32633}, turned=True)

    variables = virtualize(path).variables

    assert list(variables) == ["image", "spatial_ref"]
    assert variables["spatial_ref"].attributes["GeoTransform"] == "93.5 8.0 5.0 908.0 1.0 -17.0"


def test_xarray_makes_the_grid_mapping_a_coordinate(tmp_path: Path) -> None:
    dataset = virtualize(geo_tiff(tmp_path / "f.tif", {MODEL: 1, PROJECTED: 32633})).to_xarray()

    assert list(dataset.data_vars) == ["image"]
    assert "spatial_ref" in dataset["image"].coords


def test_crs_is_found_after_importing_eccodes(tmp_path: Path) -> None:
    path = geo_tiff(tmp_path / "f.tif", {**PROJECTED_OWN, **SPHERE, METHOD: 24, 3088: 0.0, RASTER: 1})
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; import eccodes; from icefloe.virtual import virtualize; "
        f"print(virtualize({str(path)!r}).variables['spatial_ref'].attributes['crs_wkt'])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert pyproj.CRS.from_wkt(done.stdout).equals(
        pyproj.CRS("+proj=sinu +R=6371007.181"), ignore_axis_order=True
    )
    assert done.stdout.strip() == virtualize(path).variables["spatial_ref"].attributes["crs_wkt"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({MODEL: 1, PROJECTED: 32633}, {"spatial_ref": "EPSG:32633"}),
        ({MODEL: 2, GEOGRAPHIC: 4326}, {"spatial_ref": "EPSG:4326"}),
        ({**PROJECTED_OWN, **SPHERE, METHOD: 24}, None),
    ],
)
def test_epsg_code_is_kept_without_pyproj(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: Any, expected: Any
) -> None:
    path = geo_tiff(tmp_path / "f.tif", keys)
    monkeypatch.setitem(sys.modules, "pyproj", None)  # the import fails

    variables = virtualize(path).variables

    if expected is None:
        assert "spatial_ref" not in variables
    else:
        attributes = dict(variables["spatial_ref"].attributes)
        assert attributes.pop("GeoTransform") == "100.0 10.0 0.0 900.0 0.0 -20.0"
        assert attributes == expected


@pytest.mark.parametrize(
    "keys", [{MODEL: 1, PROJECTED: 1}, {**PROJECTED_OWN, METHOD: 999}, {**PROJECTED_OWN, METHOD: 24}]
)
def test_file_with_unknown_crs_is_parsed(tmp_path: Path, keys: Any) -> None:
    variables = virtualize(geo_tiff(tmp_path / "f.tif", keys)).variables

    assert {"image", "x", "y"} <= set(variables)


def test_combined_tiles_drop_geotransform(tmp_path: Path) -> None:
    keys = {MODEL: 1, RASTER: 1, PROJECTED: 32633}
    left, again, right = (
        virtualize(geo_tiff(tmp_path / f"{name}.tif", keys, x))
        for name, x in {"left": 100.0, "again": 100.0, "right": 740.0}.items()
    )

    in_time = combine([left.expand_dims("time", 0), again.expand_dims("time", 1)], "time")
    in_place = combine([left, right], "x")

    assert "GeoTransform" in in_time.variables["spatial_ref"].attributes
    assert "GeoTransform" not in in_place.variables["spatial_ref"].attributes
    assert "crs_wkt" in in_place.variables["spatial_ref"].attributes


def test_image_without_reference_system_has_coordinates(tmp_path: Path) -> None:
    tags = [
        (33550, "d", 3, (10.0, 20.0, 0.0), True),
        (33922, "d", 6, (0.0, 0.0, 0.0, 1000.0, 2000.0, 0.0), True),
    ]
    tifffile.imwrite(tmp_path / "f.tif", np.zeros((2, 3), "u1"), extratags=tags)

    dataset = virtualize(aged(tmp_path / "f.tif"))

    assert "spatial_ref" not in dataset.variables
    assert_reads_back(dataset, "x", np.array([1005.0, 1015.0, 1025.0]))
    assert_reads_back(dataset, "y", np.array([1990.0, 1970.0]))
