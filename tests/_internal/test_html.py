"""HTML of values in notebooks and of report files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from icefloe._internal import html
from icefloe._internal.report import Report
from icefloe._internal.table import Table

HOSTILE = '<script>alert(1)</script>"\x1b[31m&'


@dataclass(frozen=True, slots=True)
class Example(Report):
    """A report with facts and a table."""

    dry_run: bool
    name: str
    rows: Table
    empty: tuple[str, ...] = ()


def test_hostile_text_is_escaped_everywhere() -> None:
    made = [
        html.render_card("icefloe", HOSTILE, HOSTILE),
        html.render_page(HOSTILE, ""),
        html.render_facts({HOSTILE: HOSTILE}),
        html.render_section(HOSTILE, 1, ""),
        html.render_table((HOSTILE,), [(HOSTILE,)]),
        html.render_cell([HOSTILE]),
        html.mark(True, HOSTILE),
    ]

    for each in made:
        assert "<script" not in each
        assert "\x1b" not in each


def test_secrets_in_urls_are_hidden() -> None:
    assert "hunter2" not in html.render_cell("s3://user:hunter2@host/?token=hunter2")


def test_page_allows_no_external_resources() -> None:
    page = html.render_page("title", html.render_card("icefloe", "title", ""))

    assert "default-src 'none'" in page
    for forbidden in ("http:", "https:", "<script", "<link", "<img", "url("):
        assert forbidden not in page


def test_table_shows_at_most_100_rows() -> None:
    shown = html.render_table(("n",), ((n,) for n in range(1000)), 1000)

    assert shown.count("<tr>") == 101
    assert "and 900 more" in shown


def test_numbers_are_aligned_to_the_right() -> None:
    shown = html.render_table(("count", "name"), [(1, "a"), (22, "b")])

    assert '<th class="ic-number">count</th><th>name</th>' in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (datetime(2024, 5, 1, 12, tzinfo=UTC), "2024-05-01 12:00:00+00:00"),
        ((), "-"),
        (list(range(25)), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19 and 5 more"),
    ],
)
def test_cell_formats_value(value: object, text: str) -> None:
    assert html.render_cell(value) == text


def test_empty_section_is_omitted() -> None:
    assert html.render_section("Files", 0, "content") == ""


def test_report_shows_facts_and_tables() -> None:
    report = Example(True, "one", Table({"column": ["first", "second"]}))

    shown = report._repr_html_()

    assert "<b>Example</b><span>dry run</span>" in shown
    assert "<th>name</th><td>one</td>" in shown
    assert "<summary>Rows<span>(2)</span></summary>" in shown
    assert "<td>second</td>" in shown
    assert "empty" not in shown
