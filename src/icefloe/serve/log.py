"""The log of an array: the commits that changed it, with its shape, size and chunks after each commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from icefloe.comparison.versions import find_array_differences
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.serve.chunkmap import MAX_CHUNKS_COUNTED, count_references, reference_lengths
from icefloe.serve.compare import metadata_changes
from icefloe.serve.work import check_job
from icefloe.session import Session
from icefloe.snapshots import SnapshotInfo

COMMITS_PER_PAGE: Final = 50
"""The number of commits that a page examines. Each commit requires reading one snapshot."""


@dataclass(frozen=True, slots=True)
class ArrayChange:
    """An entry in an array's log: the changes that one commit made to the array."""

    id: str
    before_id: str
    """The id of the previous snapshot; empty for the oldest snapshot."""
    message: str
    written_at: str
    shape: str
    stored_bytes: int | None
    """The stored size of the array; None if it has too many chunks to sum up."""
    growth: int | None
    """How much the stored size has grown since the previous commit, in bytes."""
    changed: int = 0
    added: int = 0
    removed: int = 0
    """The number of removed chunks. `added` and `changed` also count chunks."""
    metadata: tuple[tuple[str, str, str], ...] = ()
    """The name, old value and new value of each changed metadata field."""
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class ArrayLog:
    """The log of an array: the commits that changed it, newest first."""

    changes: tuple[ArrayChange, ...]
    examined: int
    """The number of commits that were examined."""
    next_id: str
    """The id of the snapshot to continue from; empty at the end of the history."""


def read_log(history: Iterator[SnapshotInfo], path: str, open_session: Callable[[str], Session]) -> ArrayLog:
    """Read one page of an array's log: examine the first commits of a history, and keep those that changed
    the array.

    Parameters
    ----------
    history
        The snapshots, newest first.
    path
        The path of the array.
    open_session
        Opens a snapshot.

    Returns
    -------
    ArrayLog
        The changes, and the snapshot to continue from.
    """
    infos = list(islice(history, COMMITS_PER_PAGE + 1))
    shown = infos[:COMMITS_PER_PAGE]
    changes: list[ArrayChange] = []
    for info, before in zip(shown, [*infos[1:], None], strict=False):
        check_job()
        new = _find(open_session, info.id, path)
        if new is None:
            return ArrayLog(tuple(changes), len(shown), "")  # the array did not exist before
        change = _change(info, new, before, None if before is None else _find(open_session, before.id, path))
        if change is not None:
            changes.append(change)
    return ArrayLog(tuple(changes), len(shown), infos[-1].id if len(infos) > len(shown) else "")


_Found = tuple[Session, NodeSnapshot]


def _find(open_session: Callable[[str], Session], id: str, path: str) -> _Found | None:
    session = open_session(id)
    node = session._workspace.node(path)
    return None if node is None or not isinstance(node.node_data, ArrayNodeData) else (session, node)


def _change(
    info: SnapshotInfo, new: _Found, before: SnapshotInfo | None, old: _Found | None
) -> ArrayChange | None:
    """Compare an array with its previous version. Return None if nothing differs."""
    if old is not None and old[1] == new[1]:
        return None
    size = _sum_stored_bytes(new)
    shape = " × ".join(str(each.array_length) for each in new[1].node_data.shape) or "scalar"  # type: ignore[union-attr]
    about = (info.message.partition("\n")[0], info.written_at.strftime("%Y-%m-%d %H:%M"), shape, size)
    if old is None:
        return ArrayChange(info.id, "" if before is None else before.id, *about, size, is_new=True)
    chunks = find_array_differences(old[0]._workspace, new[0]._workspace, old[1], new[1])
    metadata = tuple(metadata_changes(old[1], new[1]))
    if not len(chunks) and not metadata:
        return None
    return ArrayChange(
        info.id,
        "" if before is None else before.id,
        *about,
        _compute_growth(size, _sum_stored_bytes(old)),
        len(chunks.changed),
        len(chunks.added),
        len(chunks.removed),
        metadata,
    )


def _sum_stored_bytes(found: _Found) -> int | None:
    session, node = found
    if count_references(session, node) > MAX_CHUNKS_COUNTED:
        return None
    return int(reference_lengths(session._workspace.refs(node)).sum())


def _compute_growth(size: int | None, before: int | None) -> int | None:
    return None if size is None or before is None else size - before
