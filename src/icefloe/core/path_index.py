"""An index of all node paths in a base snapshot with uncommitted changes. Creating or deleting k nodes takes
O(k log n).

The sorted list of all paths is built only for listings. To determine if there are nodes below a path, the
index counts the base nodes between two positions, the deleted nodes, and the new nodes below the path.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence

from icefloe._internal.paths import ROOT, list_ancestors
from icefloe.core.changeset import ChangeSet


class PathIndex:
    """An index of all node paths. It is valid as long as nodes are created and deleted only through the
    index.

    Parameters
    ----------
    changes
        The uncommitted changes.
    base
        The sorted paths of the base snapshot. The list is not modified.
    """

    __slots__ = ("_added", "_base", "_changes", "_counts", "_hidden", "_moved", "_sorted")

    def __init__(self, changes: ChangeSet, base: list[str]) -> None:
        self._base = base
        self._sorted: list[str] | None = None
        vacated = set(changes.moved.values()) - set(changes.moved)
        hidden = (vacated | changes.deleted.keys()) - changes.created.keys()
        added = {*changes.created, *changes.moved}
        self._hidden = _count_below(self._in_base(hidden))
        self._added = _count_below(added - set(self._in_base(added)))
        self._note(changes)

    def _in_base(self, paths: Iterable[str]) -> list[str]:
        return [path for path in paths if _contains(self._base, path)]

    def _note(self, changes: ChangeSet) -> None:
        """Record the state of the changes for which the index is valid."""
        self._changes, self._moved = changes, changes.moved
        self._counts = (len(changes.created), len(changes.deleted), len(changes.moved))

    def fits(self, changes: ChangeSet) -> bool:
        """Return True if the index is valid: nothing was created, deleted or moved except through it."""
        counts = (len(changes.created), len(changes.deleted), len(changes.moved))
        return self._changes is changes and self._moved is changes.moved and self._counts == counts

    def has_below(self, path: str) -> bool:
        """Return True if there are nodes below a path."""
        if self._added.get(path):
            return True
        first, end = find_bounds(self._base, path)
        if path == ROOT:
            first += _contains(self._base, ROOT)
        return end - first > self._hidden.get(path, 0)

    def paths(self) -> Sequence[str]:
        """Return the sorted paths of all nodes."""
        if self._sorted is None:
            self._sorted = _list_paths(self._changes, self._base)
        return self._sorted

    def insert(self, path: str, changes: ChangeSet) -> None:
        """Add the path of a new node."""
        if _contains(self._base, path):  # the path was deleted before
            _add(self._hidden, path, -1)
        else:
            _add(self._added, path, 1)
        if self._sorted is not None:
            if self._sorted is self._base:
                self._sorted = list(self._base)
            insort(self._sorted, path)
        self._note(changes)

    def remove(self, path: str, gone: Iterable[str], changes: ChangeSet) -> None:
        """Remove the paths of a deleted node and of all nodes below it."""
        for each in gone:
            if _contains(self._base, each):
                _add(self._hidden, each, 1)
            else:
                _add(self._added, each, -1)
        if self._sorted is not None:
            paths = list(self._sorted) if self._sorted is self._base else self._sorted
            first, end = find_bounds(paths, path)
            del paths[first:end]
            if _contains(paths, path):
                del paths[bisect_left(paths, path)]
            self._sorted = paths
        self._note(changes)


def find_bounds(paths: Sequence[str], group: str) -> tuple[int, int]:
    """Return the range of paths below a group in a sorted list. For the root, the range includes the root
    itself.
    """
    if group == ROOT:
        return 0, len(paths)
    return bisect_left(paths, group + "/"), bisect_left(paths, group + "0")  # "0" is the character after "/"


def _list_paths(changes: ChangeSet, base: list[str]) -> list[str]:
    if changes.is_empty():
        return base
    vanished = set(changes.moved.values()) - set(changes.moved)
    hidden = vanished | changes.deleted.keys()
    kept = [path for path in base if path not in hidden] if hidden else base
    added = {*changes.created, *changes.moved}.difference(kept)
    return sorted([*kept, *added]) if added else kept


def _contains(paths: Sequence[str], path: str) -> bool:
    row = bisect_left(paths, path)
    return row < len(paths) and paths[row] == path


def _count_below(paths: Iterable[str]) -> defaultdict[str, int]:
    counts: defaultdict[str, int] = defaultdict(int)
    for path in paths:
        _add(counts, path, 1)
    return counts


def _add(counts: defaultdict[str, int], path: str, by: int) -> None:
    """Add to the node count of all groups above a path."""
    for above in list_ancestors(path):
        counts[above] += by
