"""Read the values of one cell as a series along a dimension or over the commits of a history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from icefloe.errors import IcechunkError
from icefloe.serve.asgi import RequestError
from icefloe.serve.settings import RequestLimits
from icefloe.serve.windows import ArrayView, Index
from icefloe.serve.work import check_job
from icefloe.snapshots import SnapshotInfo

_MAX_POINTS: Final = 20_000
MAX_COMMITS: Final = 50
"""The number of commits in which a cell's value is looked up."""


def read_series(view: ArrayView, at: Index, axis: int, limits: RequestLimits) -> dict[str, Any]:
    """Read the values along a dimension around a position, within the limits.

    Parameters
    ----------
    view
        The array.
    at
        The position of the cell.
    axis
        The dimension to follow.
    limits
        The resources that may be used.
    """
    span = _choose_affordable_range(view, at, axis, limits)
    index = tuple(slice(span.start, span.stop, 1) if each == axis else part for each, part in enumerate(at))
    values = view.read(index).reshape(-1)
    numbers = view.numbers(values)
    return {
        "first": span.start,
        "size": view.shape[axis],
        "values": [
            None if each != each else each
            for each in np.where(np.isfinite(numbers), numbers, np.nan).tolist()
        ],
        "texts": view.texts(values).tolist(),
        "labels": view.coordinate(axis).labels(span),
        "units": view.units,
    }


def _choose_affordable_range(view: ArrayView, at: Index, axis: int, limits: RequestLimits) -> range:
    """Choose the longest range of whole chunks around a position that may be decoded within the limits."""
    edges = view.grid.edges[axis]
    size = view.shape[axis]
    chunk = int(np.searchsorted(edges, at[axis].start, "right")) - 1
    one = tuple(
        slice(int(edges[chunk]), int(edges[chunk + 1]), 1) if n == axis else part for n, part in enumerate(at)
    )
    each = max(view.touched_bytes(one), 1)
    chunks = max(1, min(limits.decoded_bytes // each, _MAX_POINTS // max(int(edges[1] - edges[0]), 1) + 1))
    first = max(0, chunk - (chunks - 1) // 2)
    last = min(len(edges) - 1, first + chunks)
    first = max(0, last - chunks)
    return range(int(edges[first]), min(int(edges[last]), size))


@dataclass(frozen=True, slots=True)
class CellVersion:
    """The value of a cell in one commit."""

    id: str
    message: str
    written_at: str
    value: str
    """The exact value as text; empty if the value is missing."""
    number: float | None
    changed: bool
    """True if the value differs from that in the previous commit."""


def cell_history(
    path: str, at: Index, history: Iterator[SnapshotInfo], open_view: Callable[[str, str], ArrayView]
) -> list[CellVersion]:
    """Read the value of one cell in each commit of a history, newest first.

    Only changed chunks are decoded.
    """
    found: list[CellVersion] = []
    known: tuple[Any, str, float | None] | None = None
    for info, _ in zip(history, range(MAX_COMMITS), strict=False):
        check_job()
        known = _read_cell(path, at, info.id, open_view, known)
        if known is None:
            break
        title = info.message.partition("\n")[0]
        written = info.written_at.strftime("%Y-%m-%d %H:%M")
        found.append(CellVersion(info.id, title, written, known[1], known[2], changed=False))
    for newer, older in enumerate(range(1, len(found))):
        if found[newer].value != found[older].value:
            one = found[newer]
            found[newer] = CellVersion(
                one.id, one.message, one.written_at, one.value, one.number, changed=True
            )
    return found


def _read_cell(
    path: str,
    at: Index,
    id: str,
    open_view: Callable[[str, str], ArrayView],
    known: tuple[Any, str, float | None] | None,
) -> tuple[Any, str, float | None] | None:
    """Return the identity of a chunk and the value of a cell in it, or None if the cell does not exist."""
    try:
        view = open_view(id, path)
        if len(view.shape) != len(at) or any(p.start >= size for p, size in zip(at, view.shape, strict=True)):
            return None
        coords = tuple(each.start for each in view.grid.find_touched(at))
        identity = view.identity_of(coords), view.node.user_data
        if known is not None and known[0] == identity:
            return known
        value = view.read(at)
        number = float(view.numbers(value).reshape(-1)[0]) if view.is_numeric else float("nan")
        return identity, view.texts(value).reshape(-1)[0], None if number != number else number
    except (IcechunkError, RequestError):  # the older snapshot has expired, or does not contain this array
        return None
