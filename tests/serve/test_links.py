"""Links between pages: to other versions of the view, to the newest version, and away from errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import zarr
from zarr.core.sync import sync

from icefloe import Repository, local_filesystem_storage
from icefloe.cli.main import main
from tests.support.serve import memory_repository, page_text, serving

VIEW = "?i.dim_0=1&cell=1,0&range=0,5&chunk=0,0,0"
KEPT = "?i.dim_0=1&amp;cell=1%2C0&amp;range=0%2C5"


@pytest.fixture(scope="module")
def repo() -> Repository:
    repo = memory_repository(np.arange(8.0).reshape(2, 2, 2), (1, 2, 2))
    repo.create_tag("v1", repo.lookup_branch("main"))
    with repo.transaction("main", message="change") as store:
        zarr.open_array(store, path="a", mode="r+")[0] = -1
    return repo


@pytest.fixture(scope="module")
def client(repo: Repository) -> Iterator[httpx.Client]:
    with serving(repo) as found:
        yield found


def test_links_to_other_versions_keep_the_view(client: httpx.Client, repo: Repository) -> None:
    html = client.get(f"/array/main/a{VIEW}").text
    compared = client.get(f"/compare/main~1...main/a{VIEW}").text

    assert f'href="/array/{repo.lookup_tag("v1")}/a{KEPT}"' in html
    assert f'href="/array/tag%3Av1/a{KEPT}"' in html
    assert 'href="/compare/tag:v1...main/a?i.dim_0=1&amp;cell=1%2C0"'.replace(":", "%3A") in html
    assert f'href="/array/main/a{KEPT}"' in compared
    assert 'href="/compare/main...main~1/a?i.dim_0=1&amp;cell=1%2C0"' in compared
    assert 'href="/compare/main...main/a' not in html


def test_view_parameters_of_a_hostile_url_are_escaped(client: httpx.Client) -> None:
    html = client.get("/array/main/a", params={"i.x": '"><script>alert(1)</script>'}).text

    assert "<script>alert" not in html


def test_a_cell_outside_an_older_version_is_not_selected() -> None:
    repo = memory_repository(np.zeros((2, 2)), (2, 2))
    with repo.transaction("main", message="grow") as store:
        zarr.open_array(store, path="a", mode="r+").resize((4, 2))
    with serving(repo) as client:
        codes = [client.get(f"/array/{each}/a?cell=3,1").status_code for each in ("main", "main~1")]

    assert codes == [200, 200]


def test_page_of_an_older_version_links_to_its_contents_and_the_newest_version(
    client: httpx.Client, repo: Repository
) -> None:
    older = client.get(f"/array/{repo.lookup_tag('v1')}/a?i.dim_0=1").text
    newest = client.get(f"/array/{repo.lookup_branch('main')}/a").text

    assert f'<a href="/tree/{repo.lookup_tag("v1")}">Contents</a>' in older
    assert re.search(r'id="newest" [^>]*href="/array/main/a\?i.dim_0=1"', older)
    assert 'id="newest"' in client.get("/tree/tag:v1").text
    assert 'id="newest"' not in newest
    assert 'id="newest"' not in client.get("/array/main/a").text


def test_no_page_links_to_the_empty_initial_snapshot(client: httpx.Client, repo: Repository) -> None:
    first = list(repo.ancestry(branch="main"))[-1]
    html = client.get("/array/main/a").text

    assert first.message in page_text(html)
    assert f"/array/{first.id}/a" not in html


def test_error_pages_link_to_all_other_pages(client: httpx.Client) -> None:
    found = client.get("/array/main/nothing")

    assert found.status_code == 404
    for page in ("/", "/tree/main", "/storage", "/ledger", "/ops", "/health"):
        assert f'<a href="{page}">' in found.text


def test_counts_of_one_use_the_singular(client: httpx.Client) -> None:
    assert "1 chunk changed, 0 added" in page_text(client.get("/compare/main~1...main/a").text)
    assert "0 nodes added, 0 removed, 1 changed; 1 chunk changed" in page_text(
        client.get("/compare/main~1...main").text
    )


def test_ledgers_are_listed_separately_from_data(tmp_path: Path) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path)))
    with repo.transaction("main", message="a ledger") as store:
        for name in ("t", "_icefloe/ledger/x/source"):
            zarr.create_array(store, name=name, shape=(2,), dtype="i4")[...] = 1
    with serving(repo) as client:
        text = page_text(client.get("/storage").text)

    assert text.index("Native chunks are") < text.index(" /t ") < text.index("Ledgers of ingests (1 array)")
    assert text.index("Ledgers of ingests") < text.index("/_icefloe/ledger/x/source")


def test_the_health_page_lists_what_a_quick_check_omits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "repo")
    repo = Repository.create(local_filesystem_storage(place))
    with serving(repo, location=place) as client:
        assert main(["verify", place]) == 0
        quick = page_text(client.get("/health").text)
        assert main(["verify", place, "--level", "chunks"]) == 0
        full = page_text(client.get("/health").text)
    capsys.readouterr()

    assert "Only the metadata files were checked; no chunk was looked up or read." in quick
    assert f"icefloe verify {place} --level chunks" in quick
    assert "Only the metadata files" not in full


def test_the_sql_snippet_of_a_coordinate_names_it_once() -> None:
    repo = memory_repository(np.arange(4.0), (4,), dimension_names=["a"])
    with serving(repo) as client:
        html = client.get("/array/main/a").text

    assert "SELECT a FROM r.a" in html


def test_links_select_a_branch_that_has_the_name_of_a_tag() -> None:
    repo = memory_repository(np.zeros((2, 2)), (2, 2))
    for name in ("main", "x"):
        repo.create_tag(name, repo.lookup_branch("main"))
    for name in ("x", "tag:y", "a@b", "c...d", "e/f"):
        repo.create_branch(name, repo.lookup_branch("main"))
    with serving(repo) as client:
        seen: set[str] = set()
        for page in ("/", "/storage", "/tree/branch:main", "/array/branch:main/a", "/array/tag:x/a"):
            seen |= set(re.findall(r'href="(/[^"#]*)', client.get(page).text))
        broken = {url for url in seen if client.get(url.replace("&amp;", "&")).status_code != 200}

    assert len(seen) > 40
    assert broken == set()


def test_links_lead_only_to_versions_that_have_the_array() -> None:
    repo = memory_repository(np.ones(4), (2,))
    with repo.transaction("main", message="delete") as store:
        sync(store.delete_dir("a"))
    repo.create_branch("other", repo.lookup_branch("main"))
    with repo.transaction("other", message="b") as store:
        zarr.create_array(store, name="b", shape=(3,), dtype="f4")[...] = 5
    with serving(repo) as client:
        storage = client.get("/storage").text
        rail = client.get("/array/other/b").text.split('class="rail"')[1].split("</ol>")[0]
        missing = client.get("/array/main/b")

    assert "(deleted)" in storage
    assert re.findall(r'href="(/array/[^"]*)"', storage) == ["/array/branch%3Aother/b"]
    assert len(re.findall("<a ", rail)) == 1
    assert missing.status_code == 404
    assert 'href="/tree/main">To the contents of main' in missing.text
