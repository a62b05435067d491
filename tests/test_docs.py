"""The examples in README.md and docs/ run, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs._site.examples import CommandFailedError, blocks, run_commands, run_page
from docs._site.pages import generated_paths
from tests.support.source_tree import ROOT

# A block is left out when the line above its fence is an HTML comment: <!-- not run: the reason -->
# Each such block is listed here as (file, reason), so that leaving one out shows in a diff of this test.
NOT_RUN: list[tuple[str, str]] = [
    ("docs/how-to/cluster.md", "needs a cluster"),
    ("docs/how-to/extract.md", "needs Spark, see tests/spark"),
    ("docs/how-to/maintenance.md", "needs Spark, see tests/spark"),
    ("docs/how-to/pipelines.md", "needs spark-pipelines, see tests/test_docs_pipelines.py"),
    *[("docs/how-to/procedures.md", "needs Spark, see tests/spark")] * 2,
    ("docs/how-to/query.md", "needs Spark, see tests/spark"),
    ("docs/how-to/query.md", "needs Spark, see tests/spark"),
    ("docs/how-to/query.md", "needs Spark, see tests/spark"),
    ("docs/how-to/query.md", "needs Spark, see tests/spark"),
    ("docs/how-to/query.md", "needs Spark, see tests/spark"),
    ("docs/how-to/query.md", "needs Spark, see tests/spark"),
    ("docs/how-to/query.md", "needs Spark, see tests/spark"),
    ("docs/how-to/schedule.md", "needs Airflow"),
    ("docs/how-to/schedule.md", "needs a bucket"),
    *[("docs/how-to/statements.md", "needs Spark, see tests/spark")] * 4,
    ("docs/how-to/storage.md", "needs accounts in clouds"),
    ("docs/how-to/streaming.md", "needs Spark, see tests/spark"),
    ("docs/how-to/streaming.md", "needs Spark, see tests/spark"),
]

LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def documents() -> list[Path]:
    """Return every Markdown file whose examples are run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def dead_links(document: Path) -> list[str]:
    """Return relative links that lead to no file and to no generated page."""
    links = LINK.findall(document.read_text(encoding="utf-8"))
    local = [link.partition("#")[0] for link in links if "://" not in link and not link.startswith("mailto:")]
    generated = {(ROOT / "docs" / path).resolve() for path in generated_paths()}
    targets = {link: (document.parent / link).resolve() for link in local if link}
    return [link for link, path in targets.items() if not path.exists() and path not in generated]


def test_skipped_examples_are_listed() -> None:
    found = [
        (str(document.relative_to(ROOT)), block.not_run)
        for document in documents()
        for block in blocks(document.read_text(encoding="utf-8"))
        if block.not_run is not None
    ]

    assert found == NOT_RUN


def test_readme_has_an_example_that_runs() -> None:
    found = blocks((ROOT / "README.md").read_text(encoding="utf-8"))

    assert any(block.not_run is None for block in found)


def test_links_between_documents_have_valid_targets() -> None:
    pages = [*documents(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

    assert {page.name: dead for page in pages if (dead := dead_links(page))} == {}


def test_failing_example_in_a_page_is_reported_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")

    with pytest.raises(AssertionError) as caught:
        run_page(page)

    assert caught.traceback[-1].lineno == 7  # counted from zero


def test_only_examples_marked_as_not_run_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nexit 1\n```\n\n<!-- not run: needs a cluster -->\n```python\nraise SystemExit\n```\n\n"
        "- item\n\n  ```python\n  open('done', 'w').close()\n  ```\n"
    )

    run_page(page)

    assert [block.not_run for block in blocks(page.read_text())] == ["needs a cluster", None]
    assert (tmp_path / "done").exists()


def test_commands_run_in_the_folder_of_the_python_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nopen('x', 'w').close()\n```\n\n```console\n$ ls x\nold\n$ false\n$ echo $?\n```\n"
    )

    assert run_page(page) == {6: "$ ls x\nx\n$ false\n$ echo $?\n1"}


def test_failing_command_in_a_page_is_reported() -> None:
    with pytest.raises(CommandFailedError, match="exit code 1 of: false"):
        run_commands("$ false\n$ true")


def test_dead_link_in_a_page_is_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[here](page.md#title) [gone](nowhere.md) [far](https://example.org/x)")

    assert dead_links(page) == ["nowhere.md"]


def test_paths_in_the_architecture_page_exist() -> None:
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
