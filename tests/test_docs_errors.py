"""The reference of error kinds is complete, and its examples raise what they claim."""

from __future__ import annotations

import pytest

from docs._site.error_reference import entries, errors_page, provoke
from icefloe import ErrorKind

EXAMPLES = {kind: entry.code for kind, entry in entries().items() if entry.code}


def test_every_kind_has_an_entry() -> None:
    assert entries().keys() == {kind.value for kind in ErrorKind}


def test_entries_are_complete_or_reserved() -> None:
    described = [entry for entry in entries().values() if entry.cause]

    assert len(described) > 70
    assert [entry.kind for entry in described if not (entry.remedy and (entry.code or entry.example))] == []


@pytest.mark.docs
@pytest.mark.parametrize("kind", EXAMPLES)
def test_example_raises_its_kind(kind: str) -> None:
    assert provoke(EXAMPLES[kind]).kind == kind


@pytest.mark.docs
def test_page_has_a_section_or_a_mention_of_every_kind() -> None:
    page = errors_page()

    mentions = {kind.value: (f"## {kind.value}\n", f"`{kind.value}`") for kind in ErrorKind}

    assert [kind for kind, texts in mentions.items() if not any(text in page for text in texts)] == []
