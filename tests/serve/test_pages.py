"""Pages without a browser: every fact is in the HTML, hostile texts stay texts, nothing is written."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import zarr

from icefloe import Repository, in_memory_storage, local_filesystem_storage
from icefloe.cli.main import main
from icefloe.history import versions
from icefloe.serve.settings import RequestLimits
from icefloe.testing.storages import PassingStorage
from tests.support.cli_calls import EVIL
from tests.support.serve import memory_repository, page_text, sample_repository, serving
from tests.support.serve_climate import climate_repository, europe, latitudes, longitudes, temperatures

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
PAGES = [
    "/",
    "/tree/main",
    "/array/main/tas",
    "/array/main/tas?i.time=120&cell=70,96&chunk=24,1,1",
    "/array/main/profile",
    "/array/main/labels",
    "/compare/tag:v1...main",
    "/compare/tag:v1...main/tas?i.time=120",
    "/commit/main",
    "/log/main/tas",
    "/ops",
    "/storage",
    "/ledger",
    "/health",
]
DATA = [
    "/api/window/main/tas?index=120:122,:,:&axis=0",
    "/api/window/tag:v1...main/tas?index=120,:,:",
    "/api/tile/main/tas?index=120,0:4,0:4",
    "/api/series/main/tas?index=120,70,96&axis=0",
    "/api/history/main/tas?index=120,70,96",
    "/api/chunks/main/tas?by=commit",
    "/api/chunks/tag:v1...main/tas",
    "/api/coast/main/tas",
    "/api/refs?branch=main&since=x",
]


class _WriteError(AssertionError):
    """A page tried to write."""


class _NeverWritten(PassingStorage):
    """A storage that fails the test when something is written."""

    def writing(self) -> None:
        raise _WriteError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages") / "repo"


@pytest.fixture(scope="module")
def repo(folder: Path) -> Repository:
    return climate_repository(folder)


@pytest.fixture(scope="module")
def client(repo: Repository, folder: Path) -> Iterator[httpx.Client]:
    storage = _NeverWritten(local_filesystem_storage(str(folder)))
    with serving(Repository.open(storage), location=str(folder)) as found:
        yield found


@pytest.mark.parametrize("url", PAGES + DATA)
def test_every_page_responds_without_writing_to_the_repository(client: httpx.Client, url: str) -> None:
    found = client.get(url)

    assert found.status_code == 200, found.text
    assert client.head(url).headers["content-type"] == found.headers["content-type"]
    assert client.post(url).status_code == 405


@pytest.mark.parametrize("url", PAGES)
def test_pages_have_no_inline_code(client: httpx.Client, url: str) -> None:
    html = client.get(url).text

    assert not re.search(r"\sstyle=|\son\w+=|javascript:", html)
    assert all(
        'type="application/json"' in tag or " src=" in tag for tag in re.findall(r"<script[^>]*>", html)
    )
    assert not re.search(r"(?:src|href)=\"https?:", html)


def test_history_has_commits_branches_and_tags(client: httpx.Client, repo: Repository) -> None:
    html = client.get("/").text
    text = page_text(html)

    for expected in (
        "Correct the bias over Europe",
        "Warmer tropics, June",
        "experiment",
        "v1",
        "4 commits on main",
    ):
        assert expected in text
    assert html.count("<circle") == 5
    assert repo.lookup_branch("main") in html


def test_first_page_has_the_size_of_the_repository_and_the_units_and_period_of_arrays(
    client: httpx.Client, repo: Repository
) -> None:
    texts = (page_text(client.get("/").text) for _ in range(20))  # a busy machine counts for a while

    text = next(text for text in texts if "of chunks" in text)

    size = repo.chunk_storage_stats().non_virtual_bytes()
    assert f"{size / 1e6:.1f} MB of chunks" in text
    assert "Near-surface air temperature 2025-01-01 to 2025-12-31 commits K 365×" in text


def test_first_page_lists_coordinates_if_there_is_nothing_else() -> None:
    repo = memory_repository(
        np.arange(3), (3,), dimension_names=["a"], attributes={"units": "days since 2000-01-01"}
    )
    with serving(repo) as client:
        assert "a 2000-01-01 to 2000-01-03" in page_text(client.get("/").text)


def test_long_history_is_paged() -> None:
    repo = Repository.create(in_memory_storage())
    for number in range(104):
        repo.writable_session("main").commit(f"commit {number}", allow_empty=True)
    with serving(repo) as client:
        first, second = page_text(client.get("/").text), page_text(client.get("/?page=2").text)

    assert "commit 103" in first
    assert "Page 1 of 2, 105 commits" in first
    assert "commit 3 " in second
    assert "commit 4 " not in second


def test_tree_separates_coordinates_from_data(client: httpx.Client) -> None:
    html = client.get("/tree/main").text
    data, coordinates = html.split('id="coordinates-title"')

    assert "tas" in data
    assert "Near-surface air temperature" in data
    assert "degrees_north" in coordinates
    assert "A sample climate" in page_text(html)


def test_array_page_shows_metadata_without_javascript(client: httpx.Client, repo: Repository) -> None:
    text = page_text(client.get("/array/main/tas?i.time=120").text)
    expected = temperatures(range(120, 121))[0] + europe()

    for fact in (
        "Near-surface air temperature",
        "float32",
        "time 365, lat 90, lon 180",
        "5 × 45 × 90",
        "2025-05-01",
        f"minimum {expected.min():.6g}",
        f"maximum {expected.max():.6g}",
        "0 of 16200 cells missing",
        "292 of 292 chunks are stored",
        repo.lookup_branch("main"),
        "air_temperature",
    ):
        assert fact in text


def test_value_table_is_exact(client: httpx.Client) -> None:
    expected = temperatures(range(120, 121))[0] + europe()

    text = page_text(client.get("/array/main/tas?i.time=120").text)

    assert f" {str(expected[0, 0])} " in text  # noqa: RUF010 - formatting would convert to a longer type
    assert f" {str(expected[-1, -1])} " in text  # noqa: RUF010


def test_cell_shows_value_series_and_commits(client: httpx.Client) -> None:
    html = client.get("/array/main/tas?i.time=120&cell=70,96").text
    text = page_text(html.split('id="cell"')[1].split("</section>")[0])

    assert f"lat {latitudes()[70]:g}, lon {longitudes()[96]:g}" in text
    rows = re.findall(r'class="number">([^<]+)</td><td>(.*?)</td>', html)
    before = temperatures(range(120, 121))[0, 70, 96]
    assert [float(value) for value, _ in rows] == pytest.approx(
        [before + europe()[70, 96], before, before], abs=1e-3
    )
    assert ["changed" in change for _, change in rows] == [True, False, False]
    assert 'class="chart"' in html


def test_chunk_page_names_its_commit(client: httpx.Client) -> None:
    def writer(chunk: str) -> str:
        return page_text(
            client.get(f"/array/main/tas?chunk={chunk}").text.split('id="chunk"')[1].split("</section>")[0]
        )

    assert "written by Correct the bias over Europe" in writer("24,1,1")
    assert "written by January to July" in writer("0,0,0")
    assert "written by August to December" in writer("60,0,1")
    assert "time 120:125, lat 45:90, lon 90:180" in writer("24,1,1")
    assert "covers time 2025-05-01 to 2025-05-05, lat 1 to 89, lon 1 to 179" in writer("24,1,1")


def test_virtual_chunk_page_names_its_file(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    with serving(repo) as client:
        text = page_text(client.get("/array/main/virtual?chunk=0,0").text)

    assert "f.bin" in text
    assert "1 virtual" in text


def test_any_two_versions_can_be_compared(client: httpx.Client) -> None:
    forward = page_text(client.get("/compare/tag:v1...main").text)
    across = page_text(client.get("/compare/experiment...main").text)

    assert "1 changed; 28 chunks changed, 120 added, 0 deleted" in forward
    assert "/tas array changed" in across


def test_values_are_compared_and_changed_chunks_are_listed(client: httpx.Client) -> None:
    html = client.get("/compare/tag:v1...main/tas?i.time=120").text
    config = json.loads(re.search(r'id="view">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]

    differing = int((europe()[45:] != 0).sum())
    assert f"{differing} of 16200 cells differ, by at most" in page_text(html)
    assert config["changed"] == [[45, 90, 0, 90], [45, 90, 90, 180]]


def test_a_comparison_opens_where_the_first_chunk_differs(client: httpx.Client) -> None:
    text = page_text(client.get("/compare/main~1...main/tas").text)

    assert "time 2025-04-01: 572 of 16200 cells differ" in text
    assert (
        "24 chunks changed, 0 added, 0 deleted in the whole array; they cover time 2025-04-01 to 2025-05-30"
        in text
    )
    assert "time 2025-05-01" in page_text(client.get("/compare/main~1...main/tas?chunk=24,1,1").text)


def test_a_commit_lists_where_it_changed_an_array(client: httpx.Client) -> None:
    text = page_text(client.get("/commit/main").text)

    assert "Chunks cover Metadata" in text
    assert "24 changed time 2025-04-01 to 2025-05-30, lat 1 to 89" in text


def test_groups_and_new_arrays_are_compared() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="group") as store:
        zarr.create_group(store).create_group("g").create_array("a", shape=(2,), dtype="i4")[...] = 1
    with repo.transaction("main", message="change") as store:
        root = zarr.open_group(store)
        root["g/a"][...] = 2  # type: ignore[index]
        root["g"].create_array("new", shape=(), dtype="i4")[...] = 7  # type: ignore[union-attr]
        root.create_array("elsewhere", shape=(2,), dtype="i4")
    with serving(repo) as client:
        group = page_text(client.get("/compare/main~1...main/g").text)
        new = page_text(client.get("/compare/main~1...main/g/new").text)
        missing = client.get("/compare/main~1...main/nothing")

    assert "/g/a array changed" in group
    assert "/g/new array added" in group
    assert "elsewhere" not in group
    assert "/g/new array added" in new
    assert missing.status_code == 404


def test_the_log_of_an_array_has_shapes_sizes_and_growth() -> None:
    repo = memory_repository(np.arange(4.0), (2,), compressors=None)
    with repo.transaction("main", message="grow") as store:
        array = zarr.open_array(store, path="a", mode="r+")
        array.resize((6,))
        array[4:] = 1
    repo.writable_session("main").commit("nothing", allow_empty=True)
    with repo.transaction("main", message="change") as store:
        zarr.open_array(store, path="a", mode="r+")[0] = -1
    with serving(repo) as client:
        text = page_text(client.get("/log/main/a").text)

    assert "3 of 5 commits changed it" in text
    assert re.search(r"change \S+ \S+ 6 48 B \+0 B 1 changed", text)
    assert re.search(r"grow \S+ \S+ 6 48 B \+16 B 1 added shape : \[4\] → \[6\]", text)
    assert re.search(r"a \S+ \S+ 4 32 B \+32 B created", text)


def test_the_filter_of_files_keeps_the_version(client: httpx.Client) -> None:
    html = client.get("/ledger?version=tag:v1&file=x").text

    assert 'href="/ledger?version=tag%3Av1">all' in html


def test_the_health_page_says_if_no_report_was_stored(client: httpx.Client) -> None:
    assert "No report was stored yet" in page_text(client.get("/health").text)
    assert "never verified" in page_text(client.get("/").text)


def test_the_health_page_shows_the_last_report_of_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = sample_repository(tmp_path)
    place = str(tmp_path / "repo")
    with serving(repo) as client:
        main(["verify", place, "--level", "objects"])
        intact = page_text(client.get("/health").text)
        lost = next(iter(sorted((tmp_path / "repo" / "chunks").iterdir())))
        lost.unlink()
        main(["verify", place, "--level", "objects", "--no-record"])
        unchanged = page_text(client.get("/health").text)
        main(["verify", place, "--level", "objects"])
        damaged = page_text(client.get("/health").text)
        home = page_text(client.get("/").text)
    capsys.readouterr()

    assert "result no problems" in intact
    assert unchanged == intact
    assert re.search(r"result [1-9]\d* findings?", damaged)
    assert f"chunks/{lost.name}" in damaged
    assert re.search(r"verified .* [1-9]\d* findings?", home)


def test_equal_versions_are_reported_as_equal(client: httpx.Client) -> None:
    assert "same nodes, metadata and chunks" in page_text(client.get("/compare/main...branch:main").text)


def test_the_comparison_of_an_array_shows_metadata_that_differ() -> None:
    repo = memory_repository(np.zeros((2, 2)), (2, 2), attributes={"units": "degC"})
    with repo.transaction("main", message="units") as store:
        zarr.open_array(store, path="a", mode="r+").attrs["units"] = "K"
    with serving(repo) as client:
        html = client.get("/compare/main~1...main/a").text

    assert 'Metadata that differ (1) attributes.units : "degC" → "K"' in page_text(html)
    assert 'href="/log/main/a"' in html


def test_a_branch_can_be_compared_with_earlier_times(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = memory_repository(np.zeros((2, 2)), (2, 2))
    with serving(repo) as client:
        new = client.get("/tree/main").text
        monkeypatch.setitem(versions._SECONDS, "d", 0)
        old = client.get("/tree/main").text
        first = client.get("/tree/main~1").text

    assert 'href="/compare/main~1...main"' in new
    assert "1 day ago" not in new
    assert 'href="/compare/main%401d...main"' in old
    assert "one commit earlier" not in first


def test_metadata_changes_are_shown() -> None:
    repo = memory_repository(np.arange(4.0), (2,))
    first = repo.lookup_branch("main")
    with repo.transaction("main", message="units") as store:
        zarr.open_array(store, path="a", mode="r+").attrs["units"] = "K"
    with serving(repo) as client:
        text = page_text(client.get(f"/compare/{first}...main").text)

    assert 'attributes.units : - → "K"' in text


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("/nothing", 404),
        ("/array/main/nothing", 404),
        ("/array/nope/tas", 410),
        ("/tree/main~99", 410),
        ("/compare/main", 404),
        ("/static/../pages.py", 404),
        ("/static/%2e%2e/pages.py", 404),
        ("/static/", 404),
        ("/api/window/main/tas?index=1", 400),
        ("/api/window/main/tas?index=999,:,:", 400),
        ("/api/history/main/tas?index=0:2,0,0", 400),
        ("/api/nothing", 404),
        ("/array/main/%FF", 400),
        ("/tree/main~99999999999999999999", 410),
        ("/tree/main@99999999999d", 409),
    ],
)
def test_invalid_urls_return_errors(client: httpx.Client, url: str, status: int) -> None:
    assert client.get(url).status_code == status


@pytest.mark.parametrize("page", ["/array/main/tas", "/compare/v1...main/tas"])
@pytest.mark.parametrize("number", ["²", "\uff11", "-1", "99999999999999999999999", ""])
def test_invalid_positions_are_ignored(client: httpx.Client, page: str, number: str) -> None:
    query = {"cell": f"{number},{number}", "chunk": f"{number},{number},{number}", "i.time": number}

    assert client.get(page, params=query).status_code == 200


# Windows


@pytest.mark.parametrize("index", ["120,:,:", "0:3,5:50,::7", "364,89,179", "3:9:2,44:47,88:93"])
def test_raw_window_equals_array_values(client: httpx.Client, repo: Repository, index: str) -> None:
    found = client.get(f"/api/window/main/tas?index={index}&format=raw")

    meta = json.loads(found.headers["x-icefloe-meta"])
    values = np.frombuffer(found.content, meta["dtype"]).reshape(meta["shape"])
    array = zarr.open_array(repo.readonly_session("main").store, path="tas", mode="r")
    parts = tuple(
        slice(*(int(each) if each else None for each in part.split(":")))
        if ":" in part
        else slice(int(part), int(part) + 1)
        for part in index.split(",")
    )
    np.testing.assert_array_equal(values, array[parts])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i8", "u8", "f4", "f8", "bool", "f2"])
def test_windows_of_every_dtype_are_exact(dtype: str) -> None:
    values = np.arange(35).reshape(5, 7).astype(dtype)
    with serving(memory_repository(values, (2, 3))) as client:
        found = client.get("/api/window/main/a?index=:,:&format=raw")

    assert found.content == values.tobytes()


def test_difference_of_unsigned_numbers_does_not_wrap_around() -> None:
    repo = memory_repository(np.array([[200, 0], [5, 5]], "u1"), (2, 2))
    first = repo.lookup_branch("main")
    with repo.transaction("main", message="less") as store:
        zarr.open_array(store, path="a", mode="r+")[...] = [[0, 200], [5, 5]]
    with serving(repo) as client:
        meta = json.loads(client.get(f"/api/window/{first}...main/a?index=:,:").headers["x-icefloe-meta"])
        tile = client.get(f"/api/tile/{first}...main/a?index=:,:").json()

    assert (meta["low"], meta["high"], meta["differing"], meta["most"]) == (-200, 200, 2, 200)
    assert tile["difference"] == ["-200", "200", "0", "0"]
    assert tile["values"] == [["200", "0", "5", "5"], ["0", "200", "5", "5"]]


def test_number_and_a_missing_value_differ() -> None:
    repo = memory_repository(np.array([[np.nan, np.nan], [1, 2]]), (2, 2))
    first = repo.lookup_branch("main")
    with repo.transaction("main", message="filled") as store:
        zarr.open_array(store, path="a", mode="r+")[0, 0] = 3.0
    with serving(repo) as client:
        meta = json.loads(client.get(f"/api/window/{first}...main/a?index=:,:").headers["x-icefloe-meta"])

    assert meta["differing"] == 1


def test_packed_values_are_unpacked_and_fill_values_are_missing() -> None:
    attributes = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1, "units": "m"}
    repo = memory_repository(np.array([[2, -1], [4, 6]], "i2"), (2, 2), attributes=attributes)
    with serving(repo) as client:
        tile = client.get("/api/tile/main/a?index=:,:").json()
        text = page_text(client.get("/array/main/a").text)

    assert tile["values"] == [["11", "", "12", "13"]]
    assert "minimum 11, maximum 13, mean 12 m; 1 of 4 cells missing" in text


def test_times_of_other_calendars_are_written_as_dates() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="times") as store:
        root = zarr.create_group(store)
        root.create_array("a", shape=(3, 2, 2), dtype="f4", dimension_names=["time", "y", "x"])
        time = root.create_array("time", shape=(3,), dtype="i4", dimension_names=["time"])
        time[...] = [58, 59, 60]
        time.attrs.update({"units": "days since 2000-01-01", "calendar": "360_day"})
    with serving(repo) as client:
        assert "2000-02-30" in client.get("/array/main/a?i.time=1").text


def test_numbers_that_are_no_times_are_shown_as_numbers() -> None:
    values = np.array([0, 1e300, np.nan, 1])
    repo = memory_repository(values, (4,), attributes={"units": "days since 2000-01-01"})
    with serving(repo) as client:
        text = page_text(client.get("/array/main/a").text)

    assert "0 2000-01-01" in text
    assert "1 1e+300" in text
    assert "3 2000-01-02" in text


def test_control_characters_are_shown_by_their_code() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="\x1b[31mred \u202egnp.exe") as store:
        zarr.create_group(store)
    with serving(repo) as client:
        html = client.get("/").text

    assert "⟨U+001B⟩[31mred ⟨U+202E⟩gnp.exe" in html
    assert not re.search("[\x00-\x08\x1b\u202e]", html)


# Chunk maps


@pytest.mark.parametrize(
    ("by", "legend", "counts"),
    [
        ("kind", ["native"], [292]),
        (
            "commit",
            [
                "Correct the bias over Europe in April and May",
                "August to December 2025",
                "January to July 2025",
            ],
            [24, 124, 144],
        ),
        ("source", ["this repository"], [292]),
    ],
)
def test_chunk_map_has_categories_with_counts(
    client: httpx.Client, by: str, legend: list[str], counts: list[int]
) -> None:
    found = client.get(f"/api/chunks/main/tas?by={by}")
    meta = json.loads(found.headers["x-icefloe-meta"])

    assert (meta["legend"], meta["counts"]) == (legend, counts)
    cells = np.frombuffer(found.content, "u1").reshape(meta["rows"], meta["columns"])
    assert cells.shape == (4, 73)
    assert np.bincount(cells.ravel(), minlength=len(counts) + 1).tolist() == [0, *counts]


def test_the_map_of_changes_counts_and_marks_chunks(client: httpx.Client) -> None:
    found = client.get("/api/chunks/tag:v1...main/tas")
    meta = json.loads(found.headers["x-icefloe-meta"])

    assert meta["legend"] == ["unchanged", "changed", "added", "deleted"]
    assert meta["counts"] == [144, 28, 120, 0]
    cells = np.frombuffer(found.content, "u1").reshape(4, 73)
    assert np.bincount(cells.ravel(), minlength=5).tolist() == [0, 144, 28, 120, 0]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5, 5)])
def test_arrays_without_chunks_have_pages_and_maps(shape: tuple[int, ...]) -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="nothing written") as store:
        zarr.create_array(store, name="a", shape=shape, chunks=(1,) * len(shape) or "auto", dtype="i2")
    with serving(repo) as client:
        for url in (
            "/array/main/a",
            "/api/chunks/main/a",
            "/log/main/a",
            "/tree/main",
            "/compare/main...main/a",
        ):
            assert client.get(url).status_code == 200, url


def test_arrays_without_cells_have_no_values() -> None:
    repo = memory_repository(np.zeros((0, 5, 3)), (1, 5, 3))
    with serving(repo) as client:
        html = client.get("/array/main/a").text

    assert "The array has no cells: its shape is 0 × 5 × 3" in html
    assert "<td><bdi>" not in html
    assert "next</a>" not in html


def test_a_commit_with_many_names_lists_the_first_ones() -> None:
    repo = memory_repository(np.zeros(2), (2,))
    for number in range(9):
        repo.create_branch(f"b{number}", repo.lookup_branch("main"))
    with serving(repo) as client:
        html = client.get("/").text

    assert html.count('class="label branch"') == 3
    assert 'title="b3, b4, b5, b6, b7, b8, main">+7</span>' in html


# Hostile texts


def test_hostile_text_is_escaped() -> None:
    script = "<script>alert(1)</script>"
    name = "a'\"><img src=x onerror=alert(1)>"
    repo = Repository.create(in_memory_storage())
    long = "x" * 1_000_000
    with repo.transaction("main", message=f"{script}\n{EVIL}") as store:
        root = zarr.create_group(store, attributes={script: script, "long": long, "evil": EVIL})
        array = root.create_array(
            name,
            shape=(3, 2),
            dtype="f4",
            dimension_names=[script, "</script>"],
            attributes={"long_name": script, "units": script},
        )
        array[...] = 1
    repo.create_tag(script, repo.lookup_branch("main"))
    with serving(repo, location=script) as client:
        for url in (
            "/",
            "/tree/main",
            f"/array/main/{httpx.URL('http://x/').copy_with(path='/' + name).raw_path.decode()[1:]}",
            "/commit/main",
            "/ops",
            f"/compare/main...tag:{script.replace('/', '%2F')}",
        ):
            html = client.get(url).text
            assert client.get(url).status_code == 200, url
            assert script not in html
            assert "<img" not in html
            assert len(html) < 300_000


# Resources


def test_oversized_chunk_is_rejected_before_decoding() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="one GiB of zeros") as store:
        array = zarr.create_array(
            store, name="a", shape=(1 << 15, 1 << 13), chunks=(1 << 15, 1 << 13), dtype="f4"
        )
        assert array.nbytes == 1 << 30
    with serving(repo) as client:
        start = time.monotonic()
        window = client.get("/api/window/main/a?index=0,:&format=raw")
        page = client.get("/array/main/a")
        taken = time.monotonic() - start

    assert window.status_code == 413
    assert "1024 MiB" in window.json()["error"]
    assert page.status_code == 200
    assert taken < 10


def test_response_that_is_too_large_is_rejected() -> None:
    repo = memory_repository(np.zeros((100, 100)), (10, 10))
    with serving(repo, limits=RequestLimits(response_bytes=1000)) as client:
        assert client.get("/api/window/main/a?index=:,:&format=raw").status_code == 413


def test_full_queue_returns_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    go = threading.Event()
    monkeypatch.setattr("icefloe.serve.data.coast", lambda *_: [go.wait(10)])
    repo = memory_repository(np.zeros((4, 4)), (2, 2))
    limits = RequestLimits(decoders=1, queued=2)
    with serving(repo, limits=limits) as client:
        statuses: list[int] = []

        def ask() -> None:
            found = httpx.get(f"{client.base_url}api/coast/main/a", timeout=30)
            statuses.append(found.status_code)
            if found.status_code == 503:
                assert found.headers["retry-after"]
                go.set()

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert 503 in statuses
    assert statuses.count(200) >= 1


def test_slow_work_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefloe.serve.data.coast", lambda *_: time.sleep(1))
    repo = memory_repository(np.zeros((4, 4)), (2, 2))
    with serving(repo, limits=RequestLimits(seconds=0.1)) as client:
        assert client.get("/api/coast/main/a").status_code == 504


def test_closed_tab_cancels_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from icefloe.serve.work import CancelledError, check_job

    ended, begun = threading.Event(), threading.Event()

    def work(*_: Any) -> Any:
        begun.set()
        for _step in range(1000):
            time.sleep(0.01)
            try:
                check_job()
            except CancelledError:
                ended.set()
                raise
        return []

    monkeypatch.setattr("icefloe.serve.data.coast", work)
    repo = memory_repository(np.zeros((4, 4)), (2, 2))
    with serving(repo) as client:
        with contextlib.suppress(httpx.ReadTimeout):
            httpx.get(f"{client.base_url}api/coast/main/a", timeout=0.2)
        assert begun.is_set()
        assert ended.wait(5)


class _Slow(PassingStorage):
    """A storage that is far away."""

    delay_s = 0.01

    def reading(self) -> None:
        time.sleep(self.delay_s)

    @property
    def answers_at_once(self) -> bool:
        return False


@pytest.mark.parametrize("url", ["/", "/ops", "/storage"])
def test_pages_do_not_wait_for_a_slow_bucket(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = in_memory_storage()
    Repository.create(storage)
    with serving(Repository.open(_Slow(storage))) as client:
        client.get(url)
        monkeypatch.setattr(_Slow, "delay_s", 1.0)
        taken = []
        for _ in range(20):
            start = time.monotonic()
            assert client.get(url).status_code == 200
            taken.append(time.monotonic() - start)

    assert max(taken) < 0.9  # one read would take longer


def test_new_commits_are_reported_to_open_pages() -> None:
    repo = memory_repository(np.zeros((4, 4)), (2, 2))
    first = repo.lookup_branch("main")
    with serving(repo) as client:
        before = client.get(f"/api/refs?branch=main&since={first}")
        repo.writable_session("main").commit("one", allow_empty=True)
        after = client.get(
            f"/api/refs?branch=main&since={first}", headers={"If-None-Match": before.headers["etag"]}
        )
        same = client.get(
            f"/api/refs?branch=main&since={first}", headers={"If-None-Match": after.headers["etag"]}
        )

    assert before.json()["new"] == 0
    assert after.json()["new"] == 1
    assert same.status_code == 304


def test_a_comparison_of_many_nodes_lists_the_first_ones() -> None:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    for number in range(501):
        session._workspace.set_metadata(f"/g{number:03d}", b'{"zarr_format":3,"node_type":"group"}')
    session.commit("many groups")

    with serving(repo) as client:
        html = client.get("/compare/main~1...main").text

    assert "501 nodes added" in html
    assert html.count("<tr>") == 501
    assert "more nodes" in html
