"""Notebooks of the tutorials, without output. `python -m docs._site.notebooks` writes them to examples/; a test compares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"

_FENCED = re.compile(r"^```(python|console|output)\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)]+)\)")


def notebooks() -> dict[Path, str]:
    """Return path -> JSON of the notebook of each tutorial."""
    pages = sorted(page for page in TUTORIALS.glob("*.md") if page.name != "index.md")
    return {
        ROOT / "examples" / f"{page.stem}.ipynb": notebook(page.read_text(encoding="utf-8")) for page in pages
    }


def notebook(text: str) -> str:
    """Return the notebook of a page: prose and code become cells, output is left out."""
    cells = [_cell(number, kind, source) for number, (kind, source) in enumerate(_parts(text))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _parts(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    for match in _FENCED.finditer(text):
        yield from _prose(text[position : match.start()])
        if match[1] == "python":
            yield "code", match[2].rstrip()
        elif match[1] == "console":
            commands = [line.removeprefix("$ ") for line in match[2].splitlines() if line.startswith("$ ")]
            yield "code", "\n".join(f"!{command}" for command in commands if command != "echo $?")
        position = match.end()
    yield from _prose(text[position:])


def _prose(text: str) -> Iterator[tuple[str, str]]:
    if text.strip():
        yield "markdown", _LINK.sub(lambda match: f"](../docs/tutorials/{match[1]})", text).strip()


def _cell(number: int, kind: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell | {"source": source.splitlines(keepends=True)}


def main() -> None:
    """Write all notebooks."""
    for path, text in notebooks().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
