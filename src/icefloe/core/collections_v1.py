"""What is told of garbage collections in V1 repositories, whose format has no log of them.

It stands in one small file among the backups, where no reader and no collection looks: the time of the last
collection by icefloe, and those that are under way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from icefloe.core.assets import AssetStore
from icefloe.core.retries import attempts
from icefloe.format.files import OVERWRITTEN
from icefloe.storage.base import ABSENT, ConditionNotMetError, ObjectNotFoundError, PutCondition, Unchanged

COLLECTED: Final = f"{OVERWRITTEN}/collected.icefloe"
_LONGEST_US: Final = 24 * 3600 * 10**6
"""A collection that began longer ago was broken off."""


@dataclass(frozen=True, slots=True)
class Collections:
    """What is known of collections, in microseconds since 1970-01-01 UTC."""

    last_us: int = 0
    """When the last one began to delete, or is about to."""
    under_way_us: tuple[int, ...] = ()
    """When those began that have not ended."""


class CollectionsFile:
    """The file in which that is told."""

    def __init__(self, assets: AssetStore) -> None:
        self._storage, self._config = assets.storage, assets.config

    def read(self) -> Collections:
        """What is told now. A file that cannot be read tells nothing."""
        return self._read()[0]

    def begin(self) -> int:
        """Tell that what was found unneeded is about to be deleted; the time under which it is told."""

        def begun(known: Collections) -> Collections:
            # Later than all before, whatever the clocks say: sessions compare marks.
            now_us = max(time.time_ns() // 1000, known.last_us + 1)
            young = [each for each in known.under_way_us if now_us - each < _LONGEST_US]
            return Collections(now_us, (*young, now_us))

        return self._change(begun).last_us

    def end(self, begun_us: int) -> None:
        """Tell that nothing more is deleted."""

        def ended(known: Collections) -> Collections:
            return replace(known, under_way_us=tuple(at for at in known.under_way_us if at != begun_us))

        self._change(ended)

    def _read(self) -> tuple[Collections, PutCondition]:
        try:
            data, version = self._storage.get(COLLECTED)
        except ObjectNotFoundError:
            return Collections(), ABSENT
        try:
            told = json.loads(data)
            last, under_way = int(told["last"]), tuple(map(int, told["under_way"]))
        except (ValueError, TypeError, KeyError):
            return Collections(), Unchanged(version)
        now_us = time.time_ns() // 1000
        return Collections(last, tuple(at for at in under_way if now_us - at < _LONGEST_US)), Unchanged(
            version
        )

    def _change(self, change: Callable[[Collections], Collections]) -> Collections:
        for _ in attempts(self._config):
            known, condition = self._read()
            told = change(known)
            data = json.dumps({"last": told.last_us, "under_way": told.under_way_us}).encode()
            try:
                self._storage.put(COLLECTED, data, condition)
            except ConditionNotMetError:
                continue
            return told
        raise AssertionError("attempts end with an error")
