"""Convert ancestries to public values, one page at a time, from the columns of the repo info file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import chain, repeat
from typing import Any, Final, TypeVar

import numpy as np

from icefloe._internal.ids import SnapshotId, encode_column
from icefloe._internal.times import to_datetimes
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.encoding.flatbuffers.tables import get_values
from icefloe.format.files import REPO_PATH
from icefloe.format.metadata import read_metadata
from icefloe.format.repo_changes import get_snapshot_info
from icefloe.format.repo_info import SnapshotInfos
from icefloe.format.schema import SNAPSHOT_INFO
from icefloe.format.spec import V2
from icefloe.history.snapshots import to_public_snapshot
from icefloe.snapshots import SnapshotInfo

_FIRST_PAGE: Final = 50
PAGE: Final = 2000
_METADATA: Final = f"{REPO_PATH}: {SNAPSHOT_INFO.name}.metadata"

T = TypeVar("T")


def iterate_ancestry(refs: RefStore, tip: SnapshotId) -> Iterator[SnapshotInfo]:
    """Iterate over a snapshot and its ancestors as public values, newest first, one page at a time.

    The snapshot must have been looked up before, so that the repo info file is loaded.
    """
    if not isinstance(refs, RefStoreV2):
        return map(to_public_snapshot, refs.ancestry(tip))
    info = refs.seen()
    get_snapshot_info(info, tip)
    return chain.from_iterable(_ancestry_pages(info.snapshots, info.snapshots.ancestry(tip)))


def _ancestry_pages(infos: SnapshotInfos, rows: list[int]) -> Iterator[list[SnapshotInfo]]:
    size = _FIRST_PAGE
    start = 0
    while start < len(rows):
        yield _snapshots(infos, rows[start : start + size], rows[start + size : start + size + 1])
        start, size = start + size, PAGE


def _snapshots(infos: SnapshotInfos, rows: list[int], after: list[int]) -> list[SnapshotInfo]:
    """Convert consecutive snapshots. `after` is the row of the last snapshot's parent, if it has one."""
    columns = infos.columns
    line = np.array(rows + after, np.int64)
    which = line[: len(rows)]
    ids = encode_column(infos.ids[line])
    parents = [*ids[1:], *([] if after else [None])]
    times = to_datetimes(columns["flushed_at"][which])
    messages = columns["message"].take(which).texts(f"{REPO_PATH}: messages of snapshots")
    metadata: list[dict[str, Any]] = [{} for _ in rows]
    if "metadata" in columns.columns and (counts := columns["metadata"].lengths[which]).any():
        some = np.flatnonzero(counts)
        items = get_values(SNAPSHOT_INFO.fields["metadata"], columns["metadata"].take(which[some]), _METADATA)
        for at, each in zip(some.tolist(), items, strict=True):
            metadata[at] = dict(read_metadata(each, V2, f"{REPO_PATH}: snapshot {ids[at]}"))
    return build_all(SnapshotInfo, len(rows), ids, parents, times, messages, metadata)


def build_all(kind: type[T], count: int, *columns: Iterable[Any]) -> list[T]:
    """Build one public value per row of a page, which is much faster than calling constructors."""
    built = list(map(object.__new__, repeat(kind, count)))
    slots = vars(kind)
    for field, column in zip(fields(kind), columns, strict=True):  # type: ignore[arg-type]  # T is a dataclass
        deque(map(slots[field.name].__set__, built, column), maxlen=0)
    return built
