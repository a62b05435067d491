"""Derived arrays and pyramids on the pages of arrays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import zarr

from icefloe import Repository, ThreadExecutor, derive_arrays, in_memory_storage, local_filesystem_storage
from tests.support.serve import serving

SHAPE = (800, 1600)
"""More cells than a picture has."""


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Create a repository with a large map, its pyramid, a mean, and a copy that is out of date."""
    location = str(tmp_path_factory.mktemp("derived") / "repo")
    repo = Repository.create(local_filesystem_storage(location))
    with repo.transaction("main", message="a map") as store:
        root = zarr.create_group(store)
        for name in ("height", "other"):
            array = root.create_array(
                name, shape=SHAPE, chunks=(200, 400), dtype="f4", dimension_names=("y", "x")
            )
            array[...] = np.add.outer(np.arange(SHAPE[0]), np.arange(SHAPE[1])).astype("f4")
    zonal = {"function": "mean", "inputs": {"height": "height"}, "dimensions": {"x": {"reduce": True}}}
    outputs = {
        "height_pyramid": {"function": {"pyramid": {}}, "inputs": {"height": "height"}},
        "zonal": zonal,
        "copy": {"function": {"expression": "other * 2"}, "inputs": {"other": "other"}},
    }
    derive_arrays({"repository": location, "outputs": outputs}, executor=ThreadExecutor(1))
    with repo.transaction("main", message="change the other map") as store:
        zarr.open_array(store, path="other")[0, 0] = 5
    return location


@pytest.fixture(scope="module")
def client(location: str) -> Iterator[httpx.Client]:
    with serving(Repository.open(local_filesystem_storage(location)), location=location) as found:
        yield found


def read_config(html: str) -> Any:
    """Return the description of the picture that the script draws."""
    return json.loads(re.search(r'id="view">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]


def test_a_large_map_is_drawn_from_a_level_of_its_pyramid(client: httpx.Client) -> None:
    html = client.get("/array/main/height").text

    sources = read_config(html)["sources"]
    assert [each["path"] for each in sources] == [
        "height_pyramid/3/height",
        "height_pyramid/2/height",
        "height_pyramid/1/height",
        "height",
    ]
    assert [each["every"] for each in sources] == [[8, 8], [4, 4], [2, 2], [1, 1]]
    assert "level 1 of the pyramid, with one cell for 2 × 2" in html
    assert "0 of 320000 cells missing" in html
    window = client.get("/api/window/main/height_pyramid/1/height?index=:,:").content
    assert len(window) == 2 * 400 * 800


def test_a_large_map_without_a_pyramid_is_subsampled(client: httpx.Client) -> None:
    html = client.get("/array/main/other").text

    assert "one of every 2 × 2 cells is drawn" in html
    assert [each["path"] for each in read_config(html)["sources"]] == ["other"]


def test_the_page_of_a_derived_array_shows_its_lineage(client: httpx.Client, location: str) -> None:
    html = client.get("/array/main/zonal/zonal").text

    repo = Repository.open(local_filesystem_storage(location))
    commit = next(info for info in repo.ancestry(branch="main") if info.message.startswith("Derive"))
    assert "up to date" in html
    assert f'href="/array/{commit.parent_id}/height"' in html
    assert f'href="/commit/{commit.id}"' in html
    assert "reduce: true" in html


def test_the_page_says_that_an_input_changed(client: httpx.Client) -> None:
    assert "out of date" in client.get("/array/main/copy").text


def test_page_of_an_input_lists_derived_arrays(client: httpx.Client) -> None:
    html = client.get("/array/main/height").text

    assert 'Derived from this array: <a href="/array/main/height_pyramid/0/height">' in html
    assert 'href="/array/main/zonal/zonal"' in html


def test_pyramid_levels_are_listed_separately_from_data(client: httpx.Client) -> None:
    html = client.get("/").text

    assert 'href="/array/main/zonal/zonal"' in html
    assert "height_pyramid/0/height" not in html


@pytest.mark.parametrize(
    "attributes", [{"recipe": {}, "inputs": 3}, {"recipe": "x"}, {"recipe": {}, "inputs": [{"array": 1}]}]
)
def test_derivation_records_with_an_unknown_structure_are_ignored(attributes: dict[str, Any]) -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="records that no run wrote") as store:
        root = zarr.create_group(store)
        root.create_array("a", shape=(3,), dtype="f4")[...] = 1
        root.create_array(
            "_icefloe/derived/a/records", shape=(1, 33), dtype="u1", attributes={**attributes, "level": 1}
        )

    with serving(repo) as client:
        found = client.get("/array/main/a")

    assert found.status_code == 200
    assert "Lineage" not in found.text


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("at.time=2025-03-03&at.lat=50N&at.lon=10E", "i.time=61&cell=2,1"),
        ("at.time=2025-03-03T11&at.lat=-51.2&at.lon=351W", "i.time=61&cell=0,1"),
        ("at.lat=0&cell=2,2", "cell=1,2&i.time=0"),
        ("at.lat=&at.lon=10E&at.time=&cell=2,2&i.time=7", "cell=2,1&i.time=7"),
        ("at.lat=70N&at.lon=355", "i.time=0&cell=2,0"),
        ("at.time=2025-01-08&at.lat=&at.lon=", "i.time=7"),
    ],
)
def test_labels_in_the_url_select_a_cell(gridded: httpx.Client, labels: str, expected: str) -> None:
    found = gridded.get(f"/array/main/t?{labels}")

    assert found.status_code == 302
    assert found.headers["location"] == f"/array/main/t?{expected.replace(',', '%2C')}#cell"


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ("at.time=soon", "time has no time &#39;soon&#39;; write 2025-03-03"),
        ("at.lat=north", "&#39;north&#39; is not a number, and lat has numbers as labels"),
        ("at.depth=3", "/t has no dimension depth"),
        ("at.lat=95&at.lon=0", "lat 95 is outside -50 to 50"),
        ("at.lat=0&at.lon=40E", "lon 40E is outside 0 to 20"),
        ("at.time=2026-01-01", "time 2026-01-01 is outside 2025-01-01 to 2025-03-31"),
        ("at.lat=0&at.lon=", "no cell is selected yet: lon is needed, too"),
    ],
)
def test_labels_that_do_not_exist_are_reported_on_the_page(
    gridded: httpx.Client, labels: str, problem: str
) -> None:
    found = gridded.get(f"/array/main/t?{labels}")

    assert found.status_code == 200
    assert f'role="alert">{problem}</p>' in found.text
    assert '"bands": [[0, 3]]' in found.text  # the picture is drawn nevertheless


@pytest.fixture(scope="module")
def gridded() -> Iterator[httpx.Client]:
    """Serve a small array over time, latitude and longitude."""
    repo = Repository.create(in_memory_storage())
    coordinates: dict[str, tuple[Any, str]] = {
        "time": (np.arange(90), "days since 2025-01-01"),
        "lat": (np.array([-50.0, 0, 50]), "degrees_north"),
        "lon": (np.array([0.0, 10, 20]), "degrees_east"),
    }
    with repo.transaction("main", message="a grid") as store:
        root = zarr.create_group(store)
        for name, (values, units) in coordinates.items():
            array = root.create_array(name, shape=values.shape, dtype=values.dtype, dimension_names=(name,))
            array[...] = values
            array.attrs["units"] = units
        root.create_array("t", shape=(90, 3, 3), dtype="f4", dimension_names=(*coordinates,))[...] = 1
    with serving(repo) as client:
        yield client


def test_first_page_links_to_the_lineage_of_derived_arrays(client: httpx.Client) -> None:
    html = client.get("/").text

    assert re.search(r'href="/array/main/copy#lineage"[^>]*>derived</a>', html)
    assert "/array/main/other#lineage" not in html
    assert "out of date" in client.get("/array/main/copy").text
