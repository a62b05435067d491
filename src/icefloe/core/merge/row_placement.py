"""Compute the final positions of rows that two sides appended along the same dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

AppendOrder: TypeAlias = Literal["commit", "sorted", "strict"]
"""How appended rows are ordered: by commit, by label, or by label with an error unless new labels follow the
last one.
"""

Rows: TypeAlias = NDArray[np.int64]


class PlacementError(ValueError):
    """Error raised when the appended rows of two sides cannot be placed in the requested order."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The final positions of the rows that both sides of a concurrent append contribute."""

    length: int
    theirs: Rows
    """The final position of each row that they appended."""
    ours: Rows
    """The final position of each row that we appended."""
    num_collapsed: int
    """The number of our rows whose label the other side also appended."""
    is_ascending: bool
    """True if our new labels follow the last label of the other side in ascending order."""

    def sources(self) -> tuple[Rows, Rows]:
        """Return, for each final row, the row of either side that is placed there; -1 if there is none."""
        found = []
        for places in (self.theirs, self.ours):
            rows = np.full(self.length, -1, np.int64)
            rows[places] = np.arange(len(places))
            found.append(rows)
        return found[0], found[1]


def place_by_position(num_theirs: int, num_ours: int) -> Placement:
    """Place our appended rows after theirs, for dimensions without labels."""
    ours = np.arange(num_theirs, num_theirs + num_ours)
    return Placement(num_theirs + num_ours, np.arange(num_theirs), ours, 0, True)


def place_by_label(theirs: NDArray[Any], ours: NDArray[Any], first_new: int, order: AppendOrder) -> Placement:
    """Place our appended rows among theirs, by label.

    If they also appended a label, at row `first_new` or later, our row with that label takes the position of
    theirs.
    """
    if len(set(ours.tolist())) < len(ours):
        raise PlacementError("a label occurs twice among them")
    # A label of ours that the other side appended as well gets its row. All others are new rows.
    known = {label: row for row, label in enumerate(theirs[first_new:].tolist(), first_new)}
    shared = np.array([known.get(label, -1) for label in ours.tolist()], np.int64)
    is_new = shared < 0
    new, count = ours[is_new], int(np.count_nonzero(is_new))
    places = shared.copy()
    places[is_new] = np.arange(len(theirs), len(theirs) + count)
    follows = _is_ascending(np.concatenate([theirs[-1:], new]))
    kept = np.arange(len(theirs))
    if order == "strict" and not follows:
        raise PlacementError("they are not after the last label")
    if order == "sorted" and not follows:
        if not _is_ascending(theirs):
            raise PlacementError("the existing labels are not ascending")
        # Merge the labels of both sides. The inverse of the sort order is the final position of each row.
        sequence = np.argsort(np.concatenate([theirs, new]), kind="stable")
        final = np.empty_like(sequence)
        final[sequence] = np.arange(len(sequence))
        kept = final[: len(theirs)]
        places = np.where(is_new, 0, kept[np.maximum(shared, 0)] if len(kept) else 0)
        places[is_new] = final[len(theirs) :]
        follows = True
    return Placement(len(theirs) + count, kept, places, len(ours) - count, follows)


def _is_ascending(labels: NDArray[Any] | Sequence[Any]) -> bool:
    values = np.asarray(labels)
    return bool((values[1:] > values[:-1]).all())
