"""Hooks of MkDocs: add the generated pages, and report public names without documentation."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs._site.api_reference import undocumented_names, unplaced_names
from docs._site.pages import generated_pages

_DRAWING = re.compile(r"^!\[([^\]]*)\]\((?:\.\./)*images/([\w-]+)\.svg\)$", re.MULTILINE)
_log = logging.getLogger("mkdocs.icefloe")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages. Warnings fail the build, which is strict."""
    for name in unplaced_names():
        _log.warning("%s belongs to no topic of docs/_site/api_reference.py", name)
    for name in undocumented_names():
        _log.warning("%s has no docstring", name)
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Inline drawings, so that they follow the colours of the theme; rank guides above reference in searches."""
    if page.file.src_uri.startswith("how-to/"):
        page.meta.setdefault("search", {"boost": 3})
    images = Path(config.docs_dir) / "images"

    def inline(match: re.Match[str]) -> str:
        svg = (images / f"{match[2]}.svg").read_text(encoding="utf-8")
        return f'<figure class="drawing">\n{svg}<figcaption>{match[1]}</figcaption>\n</figure>'

    return _DRAWING.sub(inline, markdown)
