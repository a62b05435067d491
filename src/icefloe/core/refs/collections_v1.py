"""Record garbage collections of V1 repositories, whose format has no operations log.

A small file in the backup folder, which readers and collections ignore, contains the time of icefloe's last
collection and the start times of running collections.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from icefloe.core.assets import AssetStore
from icefloe.core.refs.backoff import retry_conflicts
from icefloe.format.files import OVERWRITTEN
from icefloe.storage.base import ABSENT, ConditionNotMetError, ObjectNotFoundError, PutCondition, Unchanged

COLLECTED: Final = f"{OVERWRITTEN}/collected.icefloe"
_LONGEST_US: Final = 24 * 3600 * 10**6
"""A running collection that is older than this is assumed to have been killed."""


@dataclass(frozen=True, slots=True)
class Collections:
    """The recorded garbage collections of a V1 repository. Times are in microseconds since 1970-01-01 UTC."""

    last_us: int = 0
    """The time at which the last collection started to delete objects, or is about to."""
    under_way_us: tuple[int, ...] = ()
    """The start times of collections that have not finished."""


class CollectionsFile:
    """The file that records garbage collections of a V1 repository."""

    def __init__(self, assets: AssetStore) -> None:
        self._storage, self._config = assets.storage, assets.config

    def read(self) -> Collections:
        """Read the record of garbage collections of a V1 repository. A damaged file counts as empty."""
        return self._read()[0]

    def begin(self) -> int:
        """Record that a garbage collection is about to delete objects. Return its start time, which also
        serves as its id.
        """

        def add_collection(known: Collections) -> Collections:
            # Sessions compare these times, so the times must increase even if clocks differ.
            now_us = max(time.time_ns() // 1000, known.last_us + 1)
            young = [each for each in known.under_way_us if now_us - each < _LONGEST_US]
            return Collections(now_us, (*young, now_us))

        return self._change(add_collection).last_us

    def end(self, begun_us: int) -> None:
        """Record that a garbage collection has finished."""

        def remove_collection(known: Collections) -> Collections:
            return replace(known, under_way_us=tuple(at for at in known.under_way_us if at != begun_us))

        self._change(remove_collection)

    def _read(self) -> tuple[Collections, PutCondition]:
        try:
            data, version = self._storage.get(COLLECTED)
        except ObjectNotFoundError:
            return Collections(), ABSENT
        try:
            record = json.loads(data)
            last, under_way = int(record["last"]), tuple(map(int, record["under_way"]))
        except (ValueError, TypeError, KeyError):
            return Collections(), Unchanged(version)
        now_us = time.time_ns() // 1000
        return Collections(last, tuple(at for at in under_way if now_us - at < _LONGEST_US)), Unchanged(
            version
        )

    def _change(self, change: Callable[[Collections], Collections]) -> Collections:
        for _ in retry_conflicts(self._config):
            known, condition = self._read()
            changed = change(known)
            data = json.dumps({"last": changed.last_us, "under_way": changed.under_way_us}).encode()
            try:
                self._storage.put(COLLECTED, data, condition)
            except ConditionNotMetError:
                continue
            return changed
        raise AssertionError("unreachable: the last attempt returns or raises")
