"""The tests that docs/reference/spec-conformance.md names as proof exist."""

from __future__ import annotations

import ast
import re

from tests.support.source_tree import ROOT

PAGE = ROOT / "docs" / "reference" / "spec-conformance.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions_of(path: str) -> set[str]:
    """Return the names of all functions of a module."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_test_named_as_proof_exists() -> None:
    named = set(NAMED.findall(PAGE.read_text(encoding="utf-8")))

    missing = {f"{path}::{name}" for path, name in named if name not in functions_of(path)}

    assert len(named) > 50
    assert missing == set()


def test_every_row_of_a_table_names_its_proof() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    entries = [row for row in rows if "| proof |" not in row]

    assert [row for row in entries if not NAMED.search(row) and "the same two" not in row] == []
    assert len(entries) > 50
