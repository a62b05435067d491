"""Facts about derived arrays for the array page: lineage, dependent arrays, and the pyramid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import yaml

from icefloe._internal.redaction import redact
from icefloe.derive.lineage import find_attributes, find_lineage, list_derived
from icefloe.derive.pyramid import PyramidLevel
from icefloe.repository import Repository
from icefloe.serve.array_plot import MAX_CELLS, PlotLayout, PlotSource, thin_cells
from icefloe.serve.windows import ArrayView
from icefloe.session import Session

_MAX_LEVEL_CELLS: Final = 6 * MAX_CELLS
"""The maximum number of cells of a pyramid level to send to a high-resolution screen: 4 MB."""


def lineage_facts(repo: Repository, session: Session, path: str) -> dict[str, Any] | None:
    """Describe the lineage of a derived array. Return None if the array was not derived."""
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
    """List the arrays that are derived from an array."""
    return [
        each
        for each in list_derived(session)
        if any(
            given["array"] == path and given["repository"] is None
            for given in (find_attributes(session, each) or {}).get("inputs", [])
        )
    ]


def draw_levels(
    levels: Sequence[PyramidLevel], view: ArrayView, layout: PlotLayout, open_view: Callable[[str], ArrayView]
) -> list[PlotSource]:
    """Return the pyramid levels that can be drawn for an array, from coarse to fine.

    A high-resolution screen needs a finer level than a small window. The coarsest level is always included,
    and finer levels if their plots are small enough to be sent.
    """
    if layout.y is None or layout.x is None or layout.every == (1, 1):
        return []
    drawn, found = (layout.y, layout.x), []
    for number, level in enumerate(levels):
        factor = math.ceil(view.shape[layout.y] / max(level.shape[layout.y], 1))
        coarse = tuple(-(-size // factor) if axis in drawn else size for axis, size in enumerate(view.shape))
        if level.shape != coarse:  # the pyramid does not coarsen the drawn dimensions
            break
        rows, columns = (level.shape[axis] for axis in drawn)
        is_last = number == len(levels) - 1
        every = thin_cells(rows, columns) if is_last else (1, 1)
        if is_last or rows * columns <= _MAX_LEVEL_CELLS:
            own = view if not number else open_view(level.path)
            found.append(PlotSource(own, replace(layout, every=every), number, factor))
    return found[::-1] if len(found) > 1 or (found and found[0].level) else []
