"""Hooks of MkDocs: add the generated pages, and report public names without documentation."""

from __future__ import annotations

import logging

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs._site.api_reference import undocumented_names, unplaced_names
from docs._site.pages import generated_pages

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
