"""Pages of the site that have no file below `docs/`."""

from __future__ import annotations

import re
from pathlib import Path

from docs._site import api_reference, cli_reference, error_reference

ROOT = Path(__file__).resolve().parents[2]
PROJECT_PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "RELEASING.md": "project/releasing.md",
    "SECURITY.md": "project/security.md",
}
"""Files of the repository that are pages of the site, too."""

_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#]+)")


def generated_pages() -> dict[str, str]:
    """Return path -> Markdown of every generated page."""
    pages = {target: _project_page(source) for source, target in PROJECT_PAGES.items()}
    pages[cli_reference.PATH] = cli_reference.cli_page()
    pages[error_reference.PATH] = error_reference.errors_page()
    return {**pages, **dict(api_reference.api_pages())}


def generated_paths() -> set[str]:
    """Return the paths of generated pages below `docs/`, without generating them."""
    topics = {topic.path for topic in api_reference.TOPICS}
    return {*PROJECT_PAGES.values(), cli_reference.PATH, error_reference.PATH, api_reference.INDEX, *topics}


def _project_page(source: str) -> str:
    """Return a file of the repository with links that work on the site."""
    text = (ROOT / source).read_text(encoding="utf-8")
    return _LINK.sub(lambda match: f"]({_site_link(match[1])}", text)


def _site_link(target: str) -> str:
    if target in PROJECT_PAGES:
        return Path(PROJECT_PAGES[target]).name
    return f"../{target.removeprefix('docs/')}" if target.startswith("docs/") else target
