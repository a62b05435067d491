"""The Python examples in README.md and docs/ run, and their links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs._site.pages import generated_paths
from tests.support.source_tree import ROOT

# A block is left out when the line above its fence is an HTML comment: <!-- not run: the reason -->
# Each such block is listed here as (file, reason), so that leaving one out shows in a diff of this test.
NOT_RUN: list[tuple[str, str]] = [
    ("docs/how-to/query.md", "needs Spark, see tests/spark"),
    ("docs/how-to/storage.md", "needs accounts in clouds"),
]

FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*(\w*)")
MARKER = re.compile(r"^\s*<!-- not run: (.+?) -->\s*$")
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of Python and the line it starts on."""

    line: int
    code: str
    not_run: str | None
    """The reason given for leaving it out."""


def documents() -> list[Path]:
    """Every Markdown file whose examples are run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def python_blocks(text: str) -> Iterator[Block]:
    """The blocks fenced as `python`, dedented by their fence."""
    lines = text.splitlines()
    start = 0
    while start < len(lines):
        opening = FENCE.match(lines[start])
        if opening is None:
            start += 1
            continue
        indent, fence, language = opening.groups()
        end = start + 1
        while end < len(lines) and not lines[end].strip().startswith(fence):
            end += 1
        if language == "python":
            code = "\n".join(line.removeprefix(indent) for line in lines[start + 1 : end])
            marker = MARKER.match(lines[start - 1]) if start else None
            yield Block(start + 2, code, marker[1] if marker else None)
        start = end + 1


def run_blocks(document: Path) -> int:
    """Run a document's blocks one after another in one namespace; returns how many ran."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = [block for block in python_blocks(document.read_text(encoding="utf-8")) if block.not_run is None]
    for block in blocks:
        # Blank lines in front, so that a traceback names the line of the document.
        exec(compile("\n" * (block.line - 1) + block.code, str(document), "exec"), namespace)
    return len(blocks)


def dead_links(document: Path) -> list[str]:
    """Return relative links that lead to no file and to no generated page."""
    links = LINK.findall(document.read_text(encoding="utf-8"))
    local = [link.partition("#")[0] for link in links if "://" not in link and not link.startswith("mailto:")]
    generated = {(ROOT / "docs" / path).resolve() for path in generated_paths()}
    targets = {link: (document.parent / link).resolve() for link in local if link}
    return [link for link, path in targets.items() if not path.exists() and path not in generated]


@pytest.mark.docs
@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    run_blocks(document)


def test_examples_left_out_are_listed() -> None:
    found = [
        (str(document.relative_to(ROOT)), block.not_run)
        for document in documents()
        for block in python_blocks(document.read_text(encoding="utf-8"))
        if block.not_run is not None
    ]

    assert found == NOT_RUN


def test_readme_has_an_example_that_runs() -> None:
    blocks = python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))

    assert any(block.not_run is None for block in blocks)


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*documents(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

    assert {page.name: dead for page in pages if (dead := dead_links(page))} == {}


def test_a_failing_example_is_found_and_names_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")

    with pytest.raises(AssertionError) as caught:
        run_blocks(page)

    assert caught.traceback[-1].lineno == 7  # counted from zero


def test_only_marked_blocks_are_left_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nexit 1\n```\n\n<!-- not run: needs a cluster -->\n```python\nraise SystemExit\n```\n\n"
        "- item\n\n  ```python\n  done = True\n  ```\n"
    )

    assert [block.not_run for block in python_blocks(page.read_text())] == ["needs a cluster", None]
    assert run_blocks(page) == 1


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[here](page.md#title) [gone](nowhere.md) [far](https://example.org/x)")

    assert dead_links(page) == ["nowhere.md"]


def test_paths_in_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    paths = {
        path
        for path in re.findall(r"`([\w./-]+)`", text)
        if path.endswith((".py", ".md", ".toml", ".txt", "/"))
    }
    on_disk = {"chunks/", "refs/"}  # parts of a repository

    missing = {
        path
        for path in paths - on_disk
        if not (ROOT / path).exists() and not (ROOT / "src" / "icefloe" / path).exists()
    }

    assert len(paths) > 50
    assert missing == set()
