"""Preload manifests that a session will need soon, in the background.

A program that opens a dataset reads its coordinate arrays. Their manifests are small, and preloading puts
them into the cache before they are needed. The configuration `manifest.preload` selects the manifests and
limits their number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from icefloe._internal.concurrency import get_pool
from icefloe._internal.ids import ManifestId, SnapshotId
from icefloe.config import ManifestPreloadCondition
from icefloe.core.assets import AssetStore
from icefloe.errors import IcechunkError
from icefloe.format.schema import ARRAY_NODE
from icefloe.format.snapshot import ArrayNodeData, ManifestFileInfo, NodeSnapshot, Snapshot, get_node_at

_THREADS: Final = 8

_logger = logging.getLogger(__name__)
_latest: WeakKeyDictionary[AssetStore, SnapshotId] = WeakKeyDictionary()


def preload(assets: AssetStore, snapshot: Snapshot, *, asked_for: bool) -> None:
    """Start preloading the manifests that the configuration selects. Never blocks and never fails.

    With local storage, manifests are preloaded only if the configuration requests it, because they can be
    read just as fast when they are needed.
    """
    if not asked_for and assets.storage.answers_at_once:
        return
    config = assets.config
    wanted = config.preload_max_total_refs and config.preload_max_arrays_to_scan
    if (
        not wanted
        or config.preload_if == ManifestPreloadCondition.false()
        or not len(snapshot.manifest_files)
    ):
        return
    if _latest.get(assets) == snapshot.id:
        return
    _latest[assets] = snapshot.id
    _run_in_background(partial(_start, assets, snapshot), snapshot.id)


def select_manifests(assets: AssetStore, snapshot: Snapshot) -> Iterator[ManifestFileInfo]:
    """Yield the manifests to preload, array by array and without duplicates, up to the maximum number of
    references.
    """
    config = assets.config
    seen: set[ManifestId] = set()
    left = config.preload_max_total_refs
    for node in _list_first_arrays(snapshot, config.preload_max_arrays_to_scan):
        if not isinstance(node.node_data, ArrayNodeData):
            continue
        for ref in node.node_data.manifests:
            info = None if ref.id in seen else snapshot.manifest_files.find(ref.id)
            if info is None or info.num_chunk_refs > left:
                continue
            if config.preload_if.matches(node.path, info.num_chunk_refs):
                seen.add(ref.id)
                left -= info.num_chunk_refs
                yield info


def _list_first_arrays(snapshot: Snapshot, count: int) -> Iterator[NodeSnapshot]:
    columns = snapshot.nodes.columns
    rows = np.flatnonzero(columns["node_data"].kinds == ARRAY_NODE)[:count]
    return (get_node_at(columns, int(row), f"snapshot {snapshot.id}") for row in rows)


def _start(assets: AssetStore, snapshot: Snapshot) -> None:
    for info in select_manifests(assets, snapshot):
        _run_in_background(partial(assets.manifest, info.id, info.size_bytes), info.id)


def _run_in_background(work: Callable[[], object], id: SnapshotId | ManifestId) -> None:
    try:
        get_pool("preload", _THREADS).submit(_log_failures, work, id)
    except RuntimeError:  # the interpreter is shutting down
        _logger.debug("stopped preloading %s: the interpreter is shutting down", id)


def _log_failures(work: Callable[[], object], id: SnapshotId | ManifestId) -> None:
    try:
        work()
    except IcechunkError as error:
        _logger.debug("preloading %s: %s", id, error)
