"""The page that compares two versions of an array: where it opens, and arrays that have grown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import zarr

from icefloe import Repository, in_memory_storage
from tests.support.serve import page_text, serving

SHAPE = (4, 3, 5)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Serve an array with four times: a commit appends two, and another one corrects two cells."""
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="four times") as store:
        root = zarr.create_group(store)
        for name, size in zip(("time", "lat", "lon"), SHAPE, strict=True):
            axis = root.create_array(name, shape=(size,), chunks=(2,), dtype="i8", dimension_names=(name,))
            axis[...] = np.arange(size)
        root["time"].attrs["units"] = "days since 2025-01-01"
        named: Any = {"dimension_names": ("time", "lat", "lon")}
        root.create_array("t", shape=SHAPE, chunks=(2, 3, 5), dtype="f4", **named)[...] = 1
    with repo.transaction("main", message="two more") as store:
        root = zarr.open_group(store)
        for name in ("time", "t"):
            array: Any = root[name]
            array.resize((6, *array.shape[1:]))
            array[4:] = [4, 5] if name == "time" else 2
    with repo.transaction("main", message="a correction") as store:
        array = zarr.open_array(store, path="t", mode="r+")
        array[3, 1, 2] = array[3, 2, 4] = 7
    with serving(repo) as found:
        yield found


def _config(html: str) -> Any:
    return json.loads(re.search(r'id="view">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]


@pytest.mark.parametrize("query", ["", "?i.time=5", "?chunk=2,0,0"])
@pytest.mark.parametrize("versions", ["main~2...main~1", "main~1...main~2"])
def test_only_times_that_both_versions_contain_are_compared(
    client: httpx.Client, versions: str, query: str
) -> None:
    found = client.get(f"/compare/{versions}/t{query}")
    config = _config(found.text)

    assert found.status_code == 200, found.text
    assert config["shape"] == [*SHAPE]
    assert config["changed"] == []
    assert 'max="3"' in found.text
    assert "Only main~1 has time 2025-01-05 to 2025-01-06." in page_text(found.text)
    assert "0 of 15 cells differ" in page_text(found.text)


def test_every_position_of_the_slider_can_be_loaded(client: httpx.Client) -> None:
    source = _config(client.get("/compare/main~2...main~1/t").text)["sources"][0]

    assert source["shape"] == [*SHAPE]
    window = client.get("/api/window/main~2...main~1/t?index=2:4,:,:&axis=0")
    assert len(json.loads(window.headers["x-icefloe-meta"])["steps"]) == 2


@pytest.mark.parametrize("query", ["", "?chunk=1,0,0"])
def test_the_page_opens_at_the_first_cell_that_differs(client: httpx.Client, query: str) -> None:
    text = page_text(client.get(f"/compare/main~2...main/t{query}").text)

    assert "time 2025-01-04: 2 of 15 cells differ, by at most 6 , in lat 1 to 2, lon 2 to 4." in text


def test_versions_without_common_cells_are_not_drawn() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="empty") as store:
        zarr.create_array(store, name="a", shape=(0, 3), chunks=(1, 3), dtype="f4")
    with repo.transaction("main", message="a row") as store:
        array = zarr.open_array(store, path="a", mode="r+")
        array.resize((1, 3))
        array[...] = 1
    with serving(repo) as client:
        found = client.get("/compare/main~1...main/a")

    assert found.status_code == 200
    assert "Only main has dim_0 0." in page_text(found.text)
