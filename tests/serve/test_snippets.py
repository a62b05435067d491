"""Snippets on pages run and reproduce the view."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import xarray
import zarr

from icefloe import Repository
from icefloe.cli.main import main
from tests.support.serve import memory_repository, serving
from tests.support.serve_climate import climate_repository, europe

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("snippets") / "repo"


@pytest.fixture(scope="module")
def repo(folder: Path) -> Repository:
    return climate_repository(folder)


@pytest.fixture(scope="module")
def client(repo: Repository, folder: Path) -> Iterator[httpx.Client]:
    with serving(repo, location=str(folder)) as found:
        yield found


@pytest.mark.parametrize("url", ["/array/main/tas?i.time=120", "/array/main/profile", "/array/main/labels"])
def test_snippets_run_and_reproduce_the_view(
    client: httpx.Client, repo: Repository, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    snippets = _snippets(client.get(url).text)
    path = url.split("?")[0].rsplit("/", 1)[1]
    array = zarr.open_array(repo.readonly_session("main").store, path=path, mode="r")
    expected = np.asarray(array[120] if array.ndim == 3 else array[...])

    for name in ("Python", "Zarr over HTTP"):
        names: dict[str, Any] = {}
        exec(snippets[name], names)
        values = names["values"]
        values = values.values if isinstance(values, xarray.DataArray) else values
        np.testing.assert_array_equal(values, expected)
    for line in snippets["Command line"].splitlines():
        assert main(shlex.split(line)[1:]) == 0
    assert repo.lookup_branch("main") in snippets["Command line"]
    capsys.readouterr()


def _snippets(html: str) -> dict[str, str]:
    import html as entities

    found = re.findall(r"<h3>([^<]+)</h3><button.*?<code>(.*?)</code>", html, re.DOTALL)
    return {name: entities.unescape(text) for name, text in found}


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("url", ["/array/main/tas?i.time=120&y=lat&x=time", "/array/main/profile"])
def test_the_sql_snippet_selects_the_cells_of_the_view(
    client: httpx.Client, repo: Repository, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = shlex.split(_snippets(client.get(url).text)["SQL"])[1:]
    name = url.split("?")[0].rsplit("/", 1)[1]
    array = zarr.open_array(repo.readonly_session("main").store, path=name, mode="r")
    expected = np.asarray(array[:, :, 0] if array.ndim == 3 else array[...])

    assert main([*command, "--limit", "100000", "--json", "--executor", "spark:local[1]"]) == 0

    rows = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(np.sort([row[name] for row in rows]), np.sort(expected.ravel()), rtol=1e-6)


def test_sql_snippets_of_many_rows_name_the_limit(client: httpx.Client) -> None:
    note = "Selects 16,200 rows and prints the first 1,000; --limit 16200 prints all."

    assert note in client.get("/array/main/tas").text
    assert "Selects" not in client.get("/array/main/profile").text


def test_sql_snippets_quote_labels() -> None:
    repo = memory_repository(np.arange(8.0).reshape(2, 2, 2), (2, 2, 2), dimension_names=["who", "y", "x"])
    with repo.transaction("main", message="labels") as store:
        names = zarr.create_array(store, name="who", shape=(2,), dtype=str, dimension_names=["who"])
        names[...] = np.array(["O'Brien", "Ann"])
    with serving(repo) as client:
        command = _snippets(client.get("/array/main/a?i.who=0").text)["SQL"]

    assert shlex.split(command)[-1].endswith("WHERE who = 'O''Brien'")


def test_arrays_with_odd_names_have_snippets_that_run() -> None:
    repo = memory_repository(np.arange(4.0), (2,), dimension_names=["a b"])
    with repo.transaction("main", message="odd") as store:
        zarr.create_array(store, name="50% of ü", shape=(2,), dtype="i4")[...] = [3, 4]
    with serving(repo) as client:
        named = _snippets(client.get("/array/main/a").text)
        odd = _snippets(client.get("/array/main/50%25%20of%20%C3%BC").text)["Zarr over HTTP"]
        names: dict[str, Any] = {}
        exec(odd, names)
        values = names["values"].tolist()

    assert "SQL" not in named
    assert values == [3, 4]


def test_the_snippets_of_a_comparison_and_of_a_cell_run(
    client: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    import html as entities

    snippets = _snippets(client.get("/compare/main~1...main/tas").text)
    page = client.get("/array/main/tas?i.time=120&cell=70,96").text
    bisect = entities.unescape(re.search(r"<code>(icefloe bisect .*?)</code>", page)[1])  # type: ignore[index]
    names: dict[str, Any] = {}

    exec(snippets["Python"], names)
    assert main(shlex.split(snippets["Command line"])[1:]) == 0
    assert main(shlex.split(bisect)[1:]) == 0

    printed = capsys.readouterr().out
    assert names["values"][120, 70, 96] == pytest.approx(europe()[70, 96], abs=1e-4)
    assert printed.count("34320 of 5913000 cells differ") == 2
    assert "Correct the bias over Europe" in printed
