"""Chunk statistics on the pages: the range of all values, and where values are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import zarr

from icefloe import Repository, in_memory_storage
from icefloe.serve.chunkmap import classify_missing
from tests.support.serve import sample_repository, serving

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")


def _repository(*, collect: bool = True) -> Repository:
    """Create a 4 x 6 array in chunks of 2 x 2: nothing, half and everything is missing in its columns."""
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="values", collect_statistics=collect) as store:
        named: Any = {"dimension_names": ["y", "x"], "fill_value": np.nan}
        array = zarr.create_array(store, name="a", shape=(4, 6), chunks=(2, 2), dtype="f4", **named)
        values = np.arange(24, dtype="f4").reshape(4, 6)
        values[:, 2] = np.nan
        array[:, :4] = values[:, :4]
        text: Any = {"dimension_names": ["x"]}
        zarr.create_array(store, name="t", shape=(2,), dtype=str, **text)[...] = np.array(["a", "b"])
    return repo


def _missing(client: httpx.Client, path: str = "a") -> tuple[dict[str, Any], list[list[int]]]:
    response = client.get(f"/api/chunks/main/{path}?by=missing")
    response.raise_for_status()
    meta = json.loads(response.headers["x-icefloe-meta"])
    codes = np.frombuffer(response.content, "u1").reshape(meta["rows"], meta["columns"])
    return meta, codes.tolist()


def _config(page: str) -> Any:
    return json.loads(page.partition('id="view">')[2].partition("</script>")[0])


def test_the_page_describes_all_values_and_their_range() -> None:
    with serving(_repository()) as client:
        page = client.get("/array/main/a").text

    assert "minimum 0, mean 10.33333, maximum 21, standard deviation 6.82" in page
    assert "12 of 24 cells missing" in page
    assert _config(page)["scale"] == [0, 21]


def test_the_map_of_missing_data_classifies_every_chunk() -> None:
    with serving(_repository()) as client:
        meta, codes = _missing(client)

    by_name = dict(zip(meta["legend"], meta["counts"], strict=True))
    assert codes == [[1, 4, 6], [1, 4, 6]]
    assert by_name["none missing"] == by_name["up to 50 % missing"] == by_name["all missing"] == 2
    assert sum(meta["counts"]) == 6
    assert len(meta["colours"]) == len(set(meta["colours"])) == len(meta["legend"])


def test_chunks_without_statistics_are_marked_and_do_not_set_the_scale() -> None:
    with serving(_repository(collect=False)) as client:
        page = client.get("/array/main/a").text
        meta, codes = _missing(client)

    unknown = 1 + meta["legend"].index("no statistics")
    assert codes == [[unknown, unknown, 6], [unknown, unknown, 6]]  # chunks that are not stored are known
    assert _config(page)["scale"] is None
    assert "Statistics cover only 2 of 6 chunks:" in page
    assert "icefloe statistics REPO" in page


def test_a_chunk_shows_its_values_and_missing_cells() -> None:
    with serving(_repository()) as client:
        half = client.get("/array/main/a?chunk=0,1").text
        empty = client.get("/array/main/a?chunk=0,2").text

    assert "<dt>values</dt><dd><bdi>3 to 9</bdi></dd><dt>missing</dt><dd><bdi>2 of 4 cells</bdi></dd>" in half
    assert "<dt>values</dt>" not in empty
    assert "4 of 4 cells" in empty


def test_virtual_chunks_without_a_checksum_cannot_have_statistics(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    repo.collect_statistics(arrays=["/native"])
    session = repo.writable_session("main")
    location = f"file://{tmp_path}/files/f.bin"
    session.store.set_virtual_ref("native/c/0/0", location, offset=4, length=2000)
    session.commit("no checksum")

    with serving(repo, location="my data") as client:
        page = client.get("/array/main/native").text

    assert "1 virtual chunk has no checksum and cannot have statistics" in page
    assert "icefloe statistics" not in page.partition("cannot have")[0]


def test_statistics_of_text_count_missing_values_but_have_no_range() -> None:
    with serving(_repository()) as client:
        page = client.get("/array/main/t").text
        _, codes = _missing(client, "t")

    assert codes == [[1]]
    assert "0 of 2 cells missing" in page
    assert "minimum" not in page


def test_side_by_side_view_uses_one_colour_range_for_both_versions() -> None:
    repo = _repository()
    repo.create_tag("v1", repo.lookup_branch("main"))
    with repo.transaction("main", message="warmer", collect_statistics=True) as store:
        zarr.open_array(store, path="a", mode="r+")[0, 0] = 50

    with serving(repo) as client:
        page = client.get("/compare/tag:v1...main/a").text

    assert _config(page)["scale"] == [0, 50]


@pytest.mark.parametrize("damage", [b"", b"garbage"])
def test_chunks_with_damaged_statistics_are_shown_as_unknown(damage: bytes) -> None:
    repo = _repository()
    for info in list(repo.storage.list_prefix("icefloe/statistics/")):
        repo.storage.put(info.key, damage)

    with serving(repo) as client:
        page = client.get("/array/main/a")

    assert page.status_code == 200
    assert "Statistics cover only 2 of 6 chunks:" in page.text


def test_a_large_chunk_grid_is_shown_in_bins() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="values", collect_statistics=True) as store:
        array = zarr.create_array(store, name="a", shape=(500,), chunks=(1,), dtype="f4", fill_value=np.nan)
        array[:2] = 1
        array[3] = 1

    with serving(repo) as client:
        meta, codes = _missing(client)

    assert (meta["rows"], meta["columns"]) == (1, 250)
    assert codes[0][:3] == [1, 4, 6]
    assert meta["counts"][0] == 3


def test_missing_data_of_an_array_with_too_many_chunks_is_not_computed() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="wide") as store:
        zarr.create_array(store, name="a", shape=(2_000_001,), chunks=(1,), dtype="u1")

    with serving(repo) as client:
        drawn = client.get("/api/chunks/main/a?by=missing")
        page = client.get("/array/main/a")

    assert drawn.status_code == 400
    assert "too many chunks" in drawn.json()["error"]
    assert page.status_code == 200
    assert "touches 2000001 chunks" in page.text


def test_missing_value_classes_have_exact_limits() -> None:
    missing, cells = np.array([0, 1, 10, 50, 51, 100, 0]), np.array([100] * 6 + [0])

    classes = classify_missing(missing, cells)

    assert classes.tolist() == [0, 1, 2, 3, 4, 5, 6]
