"""Derived arrays on the page of an array: its lineage, the arrays derived from it, and its pyramid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import yaml

from icefloe._internal.redaction import redact
from icefloe.derive.lineage import find_attributes, find_lineage, list_derived
from icefloe.derive.pyramid import Level
from icefloe.repository import Repository
from icefloe.serve.picture import MOST_CELLS, Layout, Source, thin_cells
from icefloe.serve.windows import ArrayView
from icefloe.session import Session

_MOST_LEVEL_CELLS: Final = 6 * MOST_CELLS
"""Cells of a level that are sent to a screen with many pixels: 4 MB."""


def lineage_facts(repo: Repository, session: Session, path: str) -> dict[str, Any] | None:
    """Describe where a derived array comes from; None if it was not derived."""
    found = find_lineage(repo, session, path)
    if found is None:
        return None
    return {
        "function": found.function,
        "inputs": [{**each, "repository": redact(str(each["repository"] or ""))} for each in found.inputs],
        "recipe": redact(yaml.safe_dump(dict(found.recipe), sort_keys=False, allow_unicode=True).strip()),
        "commit": found.commit,
        "versions": ", ".join(f"{name} {version}" for name, version in found.versions.items()),
        "is_current": found.is_current,
    }


def list_dependents(session: Session, path: str) -> list[str]:
    """Return the paths of the arrays that are derived from an array."""
    return [
        each
        for each in list_derived(session)
        if any(
            given["array"] == path and given["repository"] is None
            for given in (find_attributes(session, each) or {}).get("inputs", [])
        )
    ]


def draw_levels(
    levels: Sequence[Level], view: ArrayView, layout: Layout, open_view: Callable[[str], ArrayView]
) -> list[Source]:
    """Return the sources that a picture can be drawn from, from coarse to fine; none without a pyramid.

    A screen of many pixels needs a finer one than a small window. The coarsest is followed by finer ones as
    long as a picture of them is not too large to be sent.
    """
    if layout.y is None or layout.x is None or layout.every == (1, 1):
        return []
    drawn, found = (layout.y, layout.x), []
    for number, level in enumerate(levels):
        factor = math.ceil(view.shape[layout.y] / max(level.shape[layout.y], 1))
        coarse = tuple(-(-size // factor) if axis in drawn else size for axis, size in enumerate(view.shape))
        if level.shape != coarse:  # the picture draws other dimensions than those that get coarser
            break
        rows, columns = (level.shape[axis] for axis in drawn)
        is_last = number == len(levels) - 1
        every = thin_cells(rows, columns) if is_last else (1, 1)
        if is_last or rows * columns <= _MOST_LEVEL_CELLS:
            own = view if not number else open_view(level.path)
            found.append(Source(own, replace(layout, every=every), number, factor))
    return found[::-1] if len(found) > 1 or (found and found[0].level) else []
