"""The built site works without a network. `make docs` builds it and runs this test."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs._site.api_reference import TOPICS, names_of, undocumented_names, unplaced_names
from docs._site.benchmarks import expected
from docs._site.diagrams import DIAGRAMS, FOLDER
from docs._site.notebooks import notebooks
from tests.support.browser import Browser, open_browser
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.docs

SITE = ROOT / "build" / "site"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def search(browser: Browser, text: str) -> list[str]:
    """Type into the search box, and return the URLs of the results."""
    box = "document.querySelector('.md-search__input')"
    results = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    browser.evaluate(f"{box}.focus()")
    browser.wait_for("/Type to start/.test(document.querySelector('.md-search-result__meta').innerText)")
    browser.call("Input.insertText", text=text)
    browser.evaluate(f"{box}.dispatchEvent(new KeyboardEvent('keyup'))")
    browser.wait_for(f"{results}.length")
    found: list[str] = browser.evaluate(results)
    return found


def html_pages() -> list[Path]:
    """Return the pages, without the one that web servers show for wrong addresses."""
    return [page for page in SITE.rglob("*.html") if page.name != "404.html"]


def missing_resources(page: Path) -> list[str]:
    """Return scripts, styles, images and frames of a page that are remote or have no file."""
    text = page.read_text(encoding="utf-8")
    tags = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)\"", text)
    tags += re.findall(r"<link\b(?![^>]*rel=\"(?:canonical|next|prev)\")[^>]*\bhref=\"([^\"]+)\"", text)
    local = [tag for tag in tags if not tag.startswith("data:")]
    return [tag for tag in local if "://" in tag or not (page.parent / tag.partition("?")[0]).is_file()]


def test_every_page_loads_only_files_of_the_site() -> None:
    missing = {str(page.relative_to(SITE)): missing_resources(page) for page in html_pages()}

    assert len(missing) > 30
    assert {page: names for page, names in missing.items() if names} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index.html", "how-to/ingest.html", "reference/cli.html"])
def test_browser_without_network_reports_no_failed_request(browser: Browser, name: str, scheme: str) -> None:
    browser.open(SITE / name, scheme=scheme)

    requests = browser.requests()

    assert len(requests) > 3
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert {url: error for url, error in requests.items() if error} == {}
    assert browser.messages() == []


def test_search_finds_a_page_without_network(browser: Browser) -> None:
    browser.open(SITE / "index.html")

    found = search(browser, "garbage collection")

    assert any("maintenance" in url for url in found)
    assert {url: error for url, error in browser.requests().items() if error} == {}


def test_remote_request_of_a_page_is_detected(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<script src="https://cdn.example/x.js"></script>')

    browser.open(page)

    assert missing_resources(page) == ["https://cdn.example/x.js"]
    assert browser.requests()["https://cdn.example/x.js"] == "net::ERR_NAME_NOT_RESOLVED"


def test_every_public_name_is_in_the_search_index() -> None:
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[2].rpartition(".")[2] for entry in index["docs"]}

    names = {name for topic in TOPICS for name in names_of(topic)}

    assert len(names) > 150
    assert names - found == set()


def test_every_public_name_is_documented() -> None:
    assert unplaced_names() == []
    assert undocumented_names() == []


def test_diagrams_match_their_source() -> None:
    stale = [
        name
        for name, draw in DIAGRAMS.items()
        if (FOLDER / f"{name}.svg").read_text(encoding="utf-8") != draw().svg()
    ]

    assert stale == [], "run python -m docs._site.diagrams"


def test_notebooks_match_their_pages() -> None:
    found = {path: path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.ipynb")}

    assert found == notebooks(), "run python -m docs._site.notebooks"


def test_benchmark_figures_match_the_recorded_history() -> None:
    stale = [path.name for path, text in expected().items() if path.read_text(encoding="utf-8") != text]

    assert stale == [], "run python -m docs._site.benchmarks"
