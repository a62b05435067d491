"""Pages of arrays of all kinds: classes, infinite numbers, scalars, texts, complex numbers."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import Repository, local_filesystem_storage
from icefloe.serve import pages, series
from tests.support.serve import memory_repository, page_text, sample_repository, serving

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


def _html(values: Any, query: str = "", **options: Any) -> str:
    repo = memory_repository(values, values.shape, **options)
    with serving(repo) as client:
        found = client.get(f"/array/main/a{query}")
    assert found.status_code == 200
    return found.text


def test_flag_values_are_shown_with_their_meanings() -> None:
    attributes = {"flag_values": [0, 1, 4], "flag_meanings": "water forest urban_area"}

    text = page_text(_html(np.array([[0, 1], [4, 9]], "u1"), "?cell=1,0", attributes=attributes))

    assert "Classes: 0 water, 1 forest, 4 urban_area." in text
    assert "4 urban_area In each commit" in text


@pytest.mark.parametrize(
    "attributes",
    [
        {"flag_values": [0, 1], "flag_meanings": "water"},
        {"flag_values": [0.5], "flag_meanings": "water"},
        {"flag_values": "0", "flag_meanings": ["water"]},
        {"flag_masks": [1], "flag_meanings": "water"},
    ],
)
def test_invalid_flag_attributes_are_ignored(attributes: dict[str, Any]) -> None:
    assert "Classes" not in page_text(_html(np.array([[0, 1], [1, 0]], "u1"), attributes=attributes))


def test_infinite_values_are_not_shown_as_missing() -> None:
    text = page_text(_html(np.array([[1, np.inf], [-np.inf, np.nan]])))

    assert "minimum 1, maximum 1, mean 1; 1 of 4 cells missing, 2 infinite." in text


def test_an_array_without_finite_values_has_no_minimum() -> None:
    assert "main: no finite value; 4 of 4 cells missing." in page_text(_html(np.full((2, 2), np.nan)))


def test_indices_on_the_axes_of_a_picture_are_whole_numbers() -> None:
    html = _html(np.eye(2))
    config = json.loads(re.search(r'id="view">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]

    assert [text for _, text in config["x_ticks"]] == ["0", "1"]


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (np.array(7, "i4"), "/a · int32 · scalar · bytes"),
        (np.array([1j, 2]), "Values of type complex128 are listed, not drawn."),
        (np.array(["x", "y"]), "Values of type fixed_length_utf32 are listed, not drawn."),
    ],
)
def test_values_that_cannot_be_drawn_are_listed_before_the_chunks(values: Any, facts: str) -> None:
    text = page_text(_html(values))

    assert facts in text
    assert text.index("Values ") < text.index("Chunks 1 of 1 chunk is stored, ")


def test_numbers_of_encoded_times_have_their_stored_units() -> None:
    attributes = {"units": "hours since 2024-01-01"}

    text = page_text(_html(np.arange(0, 96, 24), attributes=attributes, dimension_names=["time"]))

    assert "mean 36 hours since 2024-01-01" in text
    assert "2024-01-04" in text


def test_unwritten_arrays_have_no_stored_chunks() -> None:
    text = page_text(_html(np.full((2,), np.nan), fill_value=np.nan))

    assert "fill value NaN" in text
    assert "0 of 1 chunk is stored. " in text


def test_the_origin_of_a_cell_that_cannot_be_read_is_shown(tmp_path: Path) -> None:
    sample_repository(tmp_path)
    unauthorized = Repository.open(local_filesystem_storage(str(tmp_path / "repo")))
    with serving(unauthorized) as client:
        found = client.get("/array/main/virtual?cell=1,2")
    cell = page_text(found.text.split('id="cell"')[1].split("</section>")[0])

    assert found.status_code == 200
    assert "authorize the virtual chunk container" in cell
    assert f"file file://{tmp_path}/files/f.bin" in cell
    assert "written by every kind of chunk" in cell
    assert "In each commit" not in cell


def test_virtual_chunk_page_shows_since_when_its_file_must_be_unchanged(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    session = repo.writable_session("main")
    location, checksum = f"file://{tmp_path}/files/f.bin", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    session.store.set_virtual_ref("virtual/c/0/0", location, offset=4, length=4000, checksum=checksum)
    session.commit("with a checksum")
    with serving(repo) as client:
        text = page_text(client.get("/array/main/virtual?chunk=0,0").text)

    assert "unchanged since 2023-11-14 22:13:20 UTC" in text


def test_encoded_fill_values_are_shown_as_numbers() -> None:
    values, attributes = np.zeros((2, 2)), {"_FillValue": "AAAAAAAA+H8=", "missing_value": "none"}

    text = page_text(_html(values, attributes=attributes))

    assert "_FillValue AAAAAAAA+H8= (nan)" in text
    assert "missing_value none" in text


def test_only_the_newest_commits_of_a_cell_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_COMMITS", 2)
    monkeypatch.setattr(pages, "MAX_COMMITS", 2)
    repo = memory_repository(np.zeros((2, 2)), (2, 2))
    with repo.transaction("main", message="again") as store:
        zarr.open_array(store, path="a", mode="r+")[0, 0] = 5
    with serving(repo) as client:
        texts = [page_text(client.get(f"/array/{each}/a?cell=0,0").text) for each in ("main", "main~1")]

    assert ["Older commits are not listed." in text for text in texts] == [True, False]


@pytest.mark.parametrize(
    ("longitudes", "ticks"),
    [
        (np.linspace(-20, 40, 7), ["20°W", "10°W", "0°", "10°E", "20°E", "30°E", "40°E"]),
        (np.arange(0, 360, 30.0), ["0°", "60°E", "120°E", "180°", "120°W", "60°W"]),
    ],
)
def test_maps_have_several_ticks(longitudes: Any, ticks: list[str]) -> None:
    shape = (3, len(longitudes))
    repo = memory_repository(np.zeros(shape), shape, dimension_names=["lat", "lon"])
    with repo.transaction("main", message="coordinates") as store:
        for name, values in (("lat", np.array([0.0, 1, 2])), ("lon", longitudes)):
            made = zarr.create_array(store, name=name, shape=values.shape, dtype="f8", dimension_names=[name])
            made[...] = values
    with serving(repo) as client:
        html = client.get("/array/main/a").text
    config = json.loads(re.search(r'id="view">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]

    assert [text for _, text in config["x_ticks"]] == ticks
