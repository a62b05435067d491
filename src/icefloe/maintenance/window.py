"""Moving windows: drop the oldest labels along a dimension by moving references instead of data."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.dtype import parse_dtype

from icefloe._internal.amounts import counted, format_bytes
from icefloe._internal.paths import join
from icefloe._internal.report import Report
from icefloe.cf import parse_time_coding
from icefloe.core.chunk_grid import count_item_bytes
from icefloe.core.dimensions import SMALL_ARRAY_BYTES, find_axis, find_coordinate_group
from icefloe.core.refs.backoff import give_way
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError
from icefloe.format.snapshot import NodeSnapshot
from icefloe.session import Session

_TRIES: Final = 100
_LOG: Final = logging.getLogger(__name__)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class WindowReport(Report):
    """The result of trimming arrays to a moving window: the rows that were dropped."""

    snapshot_id: str | None
    """The id of the new snapshot; None if nothing was dropped."""
    dropped: dict[str, int] = field(default_factory=dict)
    """The number of rows that were dropped, by group."""
    kept: dict[str, int] = field(default_factory=dict)
    """The number of rows that remain, by group."""
    rewritten_bytes: int = 0
    """The decoded size of the arrays that were rewritten because their chunks do not start at the cut."""
    dry_run: bool = False
    """True if nothing was written."""


class Sessions(Protocol):
    """The part of the repository interface that a moving window needs: it opens a session for each
    attempt.
    """

    def writable_session(self, branch: str) -> Session:
        """Open a writable session at the tip of a branch for one attempt to drop old labels."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """The position at which one group is cut."""

    home: str
    arrays: tuple[str, ...]
    row: int
    length: int


def keep_window(
    repo: Sessions,
    branch: str,
    dim: str,
    keep: timedelta | float,
    exact: bool,
    message: str | None,
    metadata: dict[str, Any] | None,
    *,
    dry_run: bool,
) -> WindowReport:
    """Drop the oldest rows along a dimension in one commit; see `Repository.keep_window`."""
    if not (keep >= timedelta(0) if isinstance(keep, timedelta) else keep >= 0):
        raise _make_error(f"its length must not be negative, which would drop every label: {keep}")
    for attempt in range(_TRIES):
        began = time.monotonic()
        session = repo.writable_session(branch)
        cuts = [cut for cut in _find_cuts(session, dim, keep, exact=exact) if cut.row]
        rewritten = sum(
            _count_rewritten_bytes(session, path, dim, cut.row) for cut in cuts for path in cut.arrays
        )
        dropped = {cut.home: cut.row for cut in cuts}
        kept = {cut.home: cut.length - cut.row for cut in cuts}
        if dry_run or not cuts:
            return WindowReport(None, dropped, kept, rewritten, dry_run)
        if rewritten:
            _LOG.info("rewriting %s to cut at row %s", format_bytes(rewritten), max(cut.row for cut in cuts))
        for cut in cuts:
            for path in cut.arrays:
                _drop_rows(session, path, dim, cut.row)
        text = message or f"Drop the oldest {counted(sum(dropped.values()), 'row')} along {dim}"
        try:
            made = session.commit(text, metadata)
        except ConflictError:
            # Other writers may have appended in the meantime: also cut their rows.
            if attempt + 1 == _TRIES:
                raise
            give_way(attempt, time.monotonic() - began)
            continue
        return WindowReport(made, dropped, kept, rewritten)
    raise AssertionError("unreachable")


def _find_cuts(session: Session, dim: str, keep: timedelta | float, *, exact: bool) -> list[_Cut]:
    """Return where to cut each group that has a coordinate along the dimension."""
    workspace = session.workspace
    arrays: dict[str, list[NodeSnapshot]] = {}
    for path in workspace.paths():
        node = workspace.node(path)
        home = None if find_axis(node, dim) is None else find_coordinate_group(workspace.node, path, dim)
        if node is not None and home is not None:
            arrays.setdefault(home, []).append(node)
    if not arrays:
        raise _make_error(f"no group has a coordinate {dim}")
    found = []
    for home, nodes in sorted(arrays.items()):
        labels = _read_labels(session, join(home, dim), keep)
        for node in nodes:
            length = _document(node)["shape"][find_axis(node, dim) or 0]
            if length != len(labels):
                raise _make_error(
                    f"{node.path} has {length} rows along {dim}, but there are {len(labels)} labels"
                )
        distance = keep // _MICROSECOND if isinstance(keep, timedelta) else keep
        row = int(np.searchsorted(labels, labels[-1] - distance)) if len(labels) else 0
        cut = row if exact else _align(nodes, dim, row)
        found.append(_Cut(home, tuple(node.path for node in nodes), cut, len(labels)))
    return found


def _align(nodes: Sequence[NodeSnapshot], dim: str, row: int) -> int:
    """Return the last row, up to the given one, at which a chunk starts in every large array."""
    step = 1
    for node in nodes:
        if _count_decoded_bytes(node) < SMALL_ARRAY_BYTES:
            continue
        size = _get_chunk_size(node, dim)
        step = math.lcm(step, size)
        if row and not row // step:
            reason = f"no chunk of {node.path} starts before it"
            if size <= row:
                reason = f"until there, no row starts a chunk in both {node.path} and the other arrays"
            raise _make_error(
                f"the window begins at row {row} of {dim}, but {reason}: chunks of {node.path} have "
                f"{counted(size, 'row')}"
            )
    return row // step * step


def _read_labels(session: Session, path: str, keep: timedelta | float) -> NDArray[Any]:
    """Read the labels of a coordinate as times in microseconds or as numbers."""
    attributes = _document(session.workspace.array(path)).get("attributes") or {}
    values = np.asarray(zarr.open_array(session.store, path=path, mode="r")[...])
    coding = parse_time_coding(attributes.get("units"), attributes.get("calendar"))
    is_time = coding is not None or values.dtype.kind == "M"
    if is_time != isinstance(keep, timedelta):
        wanted = "a duration, because its labels are times" if is_time else "a number, like its labels"
        raise _make_error(f"the window of {path} must be {wanted}")
    if values.dtype.kind == "M":
        values = values.astype("datetime64[us]").astype(np.int64)
    elif coding is not None:
        values = coding.microseconds(values)
    if values.dtype.kind not in "iuf":
        raise _make_error(f"the labels of {path} are not times or numbers")
    if (values[1:] <= values[:-1]).any():
        raise _make_error(
            f"the labels of {path} are not strictly ascending, so the first labels are not the oldest"
        )
    return values


def _document(node: NodeSnapshot) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(node.user_data)
    return found


def _get_chunk_size(node: NodeSnapshot, dim: str) -> int:
    grid = _document(node)["chunk_grid"]
    if grid["name"] != "regular":
        raise _make_error(f"{node.path} has a {grid['name']} chunk grid, in which chunks cannot be moved")
    return int(grid["configuration"]["chunk_shape"][find_axis(node, dim) or 0])


def _count_decoded_bytes(node: NodeSnapshot) -> int:
    document = _document(node)
    dtype = parse_dtype(document["data_type"], zarr_format=3).to_native_dtype()
    return int(math.prod(document["shape"]) * count_item_bytes(dtype))


def _count_rewritten_bytes(session: Session, path: str, dim: str, row: int) -> int:
    """Return how many decoded bytes a cut rewrites in an array; 0 if its chunks can be moved."""
    node = session.workspace.array(path)
    if not row % _get_chunk_size(node, dim):
        return 0
    length = _document(node)["shape"][find_axis(node, dim) or 0]
    return int(_count_decoded_bytes(node) * (length - row) // max(length, 1))


def _drop_rows(session: Session, path: str, dim: str, row: int) -> None:
    """Drop the first rows of an array by moving its chunks, or by rewriting it if the cut is inside a
    chunk.
    """
    node = session.workspace.array(path)
    axis, size = find_axis(node, dim) or 0, _get_chunk_size(node, dim)
    array = zarr.open_array(session.store, path=path, mode="r+")
    shape = [*array.shape[:axis], array.shape[axis] - row, *array.shape[axis + 1 :]]
    if not row % size:
        session.shift_array(path, [-(row // size) if each == axis else 0 for each in range(len(shape))])
        array.resize(tuple(shape))
        return
    lead = (slice(None),) * axis
    # Copy blocks of whole chunks from the first to the last, so each is read before it is overwritten.
    for start in range(0, shape[axis], size):
        stop = min(start + size, shape[axis])
        array[(*lead, slice(start, stop))] = array[(*lead, slice(start + row, stop + row))]
    # A later append must not find old values in the unused part of the last chunk.
    end = min(-(-shape[axis] // size) * size, array.shape[axis])
    if end > shape[axis]:
        array[(*lead, slice(shape[axis], end))] = array.fill_value
    array.resize(tuple(shape))


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(f"cannot keep a window: {text}", kind=ErrorKind.INVALID_COMMIT_CONFIGURATION)
