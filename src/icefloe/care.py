"""The methods of a repository for its long life that the official one has not: copies and more."""

from __future__ import annotations

from collections.abc import Iterable

from icefloe.concurrency import FanOut, async_twin
from icefloe.core.opening import Opened
from icefloe.maintenance.clone import Choice, CloneReport, clone_parts
from icefloe.maintenance.copies import Limits, Progress
from icefloe.storage.base import Storage


class Care:
    """What `Repository` has for its long life."""

    _opened: Opened
    _fan_out: FanOut | None

    def clone_to(
        self,
        target: Storage,
        *,
        branches: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        depth: int | None = None,
        read_back: bool = False,
        overwrite: bool = False,
        dry_run: bool = False,
        max_concurrent_requests: int = 64,
        max_memory_bytes: int = 512 << 20,
        progress: Progress | None = None,
    ) -> CloneReport:
        """Copy this repository to another place, where it has the same ids, branches, tags and history.

        Some `branches` and `tags` can be chosen; main always comes along. With a `depth` only so many of the
        newest snapshots of each are copied, and the first one of all, like after an expiration.

        Where the target is such a copy already, what is new is added to it; branches that have commits of
        their own there are refused with ConflictError, or with `overwrite` follow the source. A call that was
        broken off goes on when it is made again. Refs move after all objects were found at the target in
        their full size; `read_back` reads every copy again and compares its bytes.

        Virtual chunks stay where they are. The ops log of the source is not copied.
        """
        chosen = Choice(
            None if branches is None else frozenset(branches),
            None if tags is None else frozenset(tags),
            depth,
        )
        return clone_parts(
            self._opened,
            target,
            chosen,
            Limits(max_concurrent_requests, max_memory_bytes),
            read_back=read_back,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
            fan_out=self._fan_out,
        )

    clone_to_async = async_twin(clone_to)
