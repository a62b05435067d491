"""Find the commit at which a condition on an array's values changed, by binary search."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe._internal.paths import ROOT, get_parent
from icefloe._internal.report import Report
from icefloe._internal.warnings import ignore_warnings
from icefloe.cf import get_fill_values
from icefloe.comparison.array_references import find_array
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.export.selection import find_positions
from icefloe.repository import Repository
from icefloe.snapshots import SnapshotInfo

__all__ = ["Bisection", "bisect"]

STATISTICS: Final[Mapping[str, Callable[[NDArray[np.float64]], float]]] = {
    "min": lambda values: float(np.nanmin(values)) if np.isfinite(values).any() else float("nan"),
    "max": lambda values: float(np.nanmax(values)) if np.isfinite(values).any() else float("nan"),
    "mean": lambda values: float(np.nanmean(values)) if np.isfinite(values).any() else float("nan"),
    "sum": lambda values: float(np.nansum(values)),
    "count": lambda values: float(np.count_nonzero(~np.isnan(values))),
    "missing": lambda values: float(np.count_nonzero(np.isnan(values))),
    "value": lambda values: float(values.ravel()[0]) if values.size == 1 else float("nan"),
}
"""The names that can be used in conditions, with the functions that compute them."""
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[float, float], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass(frozen=True, slots=True)
class Bisection(Report):
    """The result of a bisection: the commit at which a condition on the values of an array changed."""

    commit: SnapshotInfo
    """The first commit at which the condition differs from its earlier state."""
    before: str
    """The id of the snapshot before this commit."""
    holds: bool
    """True if the condition holds from this commit on."""
    statistics: Mapping[str, tuple[float | None, float | None]]
    """The values used in the condition, before and at the commit; None if the array did not exist."""
    versions_read: int
    """The number of versions that were read."""


def bisect(
    repo: Repository,
    path: str,
    when: str,
    *,
    at: Mapping[str, Any] | None = None,
    branch: str = "main",
    from_snapshot_id: str | None = None,
    to_snapshot_id: str | None = None,
) -> Bisection:
    """Bisect the history for the commit at which a condition on the values of an array changed.

    Only first parents are followed, and the history is searched by bisection, as `git bisect` does. If the
    condition changed more than once, one of these commits is found. The condition counts as false if the
    array or the labels do not exist.

    Parameters
    ----------
    repo
        The repository.
    path
        Path of the array.
    when
        A condition such as `max > 310`. It can use `min`, `max`, `mean`, `sum`, `count`, `missing` and, for a
        single cell, `value`, combined with `and`, `or` and `not`.
    at
        Labels by dimension that select part of the array: a single label, or a slice from the first label to
        the last. By default all values are used.
    branch
        The branch whose history is searched.
    from_snapshot_id
        The oldest version to search. By default the first of the history.
    to_snapshot_id
        The newest version to search. By default the tip of the branch.

    Returns
    -------
    Bisection
        The commit, and the values before and after it.

    Raises
    ------
    InvalidInputError
        If the condition cannot be parsed, or is the same at both ends of the history.

    Examples
    --------
    >>> import numpy as np, zarr, icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="data") as store:
    ...     _ = zarr.create_array(store, name="t2m", data=np.full(4, 280.0))
    >>> with repo.transaction("main", message="sensor fails") as store:
    ...     zarr.open_array(store, path="t2m")[2] = 999
    >>> icefloe.bisect(repo, "t2m", "max > 310").commit.message
    'sensor fails'
    """
    condition = parse_condition(when)
    newest = to_snapshot_id or repo.lookup_branch(branch)
    history = list(repo.ancestry(snapshot_id=newest))
    if from_snapshot_id is not None:
        ids = [each.id for each in history]
        if from_snapshot_id not in ids:
            raise _make_error(
                f"{from_snapshot_id} is not an ancestor of {newest}; choose a snapshot from its history"
            )
        history = history[: ids.index(from_snapshot_id) + 1]
    search = _Search(repo, path, condition, at or {})
    old, new = len(history) - 1, 0
    first, last = search.holds(history[old].id), search.holds(history[new].id)
    if first == last:
        start, end = history[old].id, history[new].id
        ends = f"both {start} and {end}" if first else f"neither {start} nor {end}"
        raise _make_error(f"`{when}` did not change: it holds at {ends}")
    while old - new > 1:
        middle = (old + new) // 2
        old, new = (middle, new) if search.holds(history[middle].id) == first else (old, middle)
    commit, before = history[new], history[old].id
    return Bisection(commit, before, last, search.compare(before, commit.id), len(search.known))


def parse_condition(text: str) -> ast.expr:
    """Parse the condition of a bisection. Raise InvalidInputError, naming the offending part, if it is not
    allowed.
    """
    try:
        found = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise _make_error(f"the condition {text!r} cannot be parsed; write it like 'max > 310'") from None
    _check(found, text)
    return found


def _check(node: ast.expr, text: str) -> None:
    match node:
        case ast.BoolOp(values=parts):
            for each in parts:
                _check(each, text)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _check(operand, text)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            for each in (left, right):
                _check_number(each, text)
        case _:
            raise _make_error(
                f"condition {text!r}: `{ast.unparse(node)}` is not a comparison such as 'max > 310'"
            )


def _check_number(node: ast.expr, text: str) -> None:
    match node:
        case ast.Name(id=name) if name in STATISTICS:
            return
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float()):
            return
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float())):
            return
    raise _make_error(
        f"condition {text!r}: `{ast.unparse(node)}` is not a number or one of {', '.join(STATISTICS)}"
    )


def _evaluate(node: ast.expr, numbers: Mapping[str, float]) -> Any:
    match node:
        case ast.BoolOp(op=op, values=parts):
            results = [bool(_evaluate(each, numbers)) for each in parts]
            return all(results) if isinstance(op, ast.And) else any(results)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, numbers)
        case ast.UnaryOp(op=op, operand=operand):
            number = _evaluate(operand, numbers)
            return -number if isinstance(op, ast.USub) else number
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _COMPARISONS[type(op)](_evaluate(left, numbers), _evaluate(right, numbers))
        case ast.Name(id=name):
            return numbers[name]
        case ast.Constant(value=value):
            return value
    raise AssertionError(ast.dump(node))  # _check rejects all other nodes


class _Search:
    """Evaluates the bisection condition in each version, and keeps the results."""

    def __init__(self, repo: Repository, path: str, condition: ast.expr, at: Mapping[str, Any]) -> None:
        self._repo, self._path, self._condition, self._at = repo, path, condition, at
        self._names = {each.id for each in ast.walk(condition) if isinstance(each, ast.Name)}
        self.known: dict[str, dict[str, float] | None] = {}

    def holds(self, snapshot_id: str) -> bool:
        """Return True if the condition holds in a version."""
        if snapshot_id not in self.known:
            self.known[snapshot_id] = self._read(snapshot_id)
        numbers = self.known[snapshot_id]
        return numbers is not None and bool(_evaluate(self._condition, numbers))

    def compare(self, before: str, after: str) -> dict[str, tuple[float | None, float | None]]:
        """Return the values used in the condition, in two versions."""
        old, new = self.known[before], self.known[after]
        return {
            name: (old[name] if old else None, new[name] if new else None) for name in sorted(self._names)
        }

    def _read(self, snapshot_id: str) -> dict[str, float] | None:
        session = self._repo.readonly_session(snapshot_id=snapshot_id)
        try:
            node = find_array(session._workspace, self._path)
            spans = find_positions(session, get_parent(node.path) or ROOT, self._at) if self._at else {}
        except (NodeNotFoundError, InvalidInputError):  # the array or the label does not exist yet
            return None
        dims = node.array.names
        for name in self._at:
            if name not in dims:
                there = ", ".join(str(each) for each in dims)
                raise _make_error(f"{node.path} has no dimension {name}; it has {there}")
        with ignore_warnings():
            array: Any = zarr.open_array(session.store, path=node.path, mode="r")
            key = tuple(slice(spans[d].start, spans[d].stop) if d in spans else slice(None) for d in dims)
            values = _decode(np.asarray(array[key]), dict(array.attrs), node.path)
        return {name: STATISTICS[name](values) for name in self._names}


def _decode(values: NDArray[Any], attributes: Mapping[str, Any], path: str) -> NDArray[np.float64]:
    """Unpack stored values, with NaN for missing ones."""
    if values.dtype.kind not in "biuf":
        raise _make_error(f"{path} has values of type {values.dtype}, but conditions require numbers")
    found = values.astype(np.float64)
    for missing in get_fill_values(attributes, values.dtype):
        found[values == missing] = np.nan
    scale, offset = (attributes.get(name) for name in ("scale_factor", "add_offset"))
    found = found * scale if isinstance(scale, int | float) else found
    return found + offset if isinstance(offset, int | float) else found


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_COMMIT_CONFIGURATION)
