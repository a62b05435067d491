"""The methods of a repository for its long life that the official one has not: retention, tables, copies."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np

from icefloe.concurrency import async_twin
from icefloe.core.opening import Opened
from icefloe.core.refs_v2 import check_writable
from icefloe.ids import SnapshotId
from icefloe.maintenance.clone import Choice, CloneReport, clone_parts
from icefloe.maintenance.copies import Limits, Progress
from icefloe.maintenance.expire import kept_by_time
from icefloe.maintenance.garbage import garbage_table
from icefloe.maintenance.gc import find_garbage
from icefloe.maintenance.histories import History, history_of
from icefloe.maintenance.retention import Kept, RetentionPolicy, apply_policy, retain, retention_table
from icefloe.maintenance.statistics import Freed, by_array, by_snapshot, what_if
from icefloe.storage.base import Storage
from icefloe.tables import Table
from icefloe.times import to_microseconds
from icefloe.upkeep import Upkeep

_THREADS = 64


class Care(Upkeep):
    """What `Repository` has for its long life."""

    _opened: Opened

    # Keeping it small

    def garbage(self, delete_object_older_than: datetime) -> Table:
        """What `garbage_collect` would delete, one row per object.

        Columns: object, kind, bytes, written_at, age_s, reason. Nothing is changed.
        """
        self._require_present_format("looking for garbage")
        cutoff = to_microseconds(delete_object_older_than)
        return garbage_table(find_garbage(self._refs, self._assets, cutoff, self._spread(_THREADS)))

    garbage_async = async_twin(garbage)

    def preview_expiration(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
    ) -> Table:
        """What `expire_snapshots` would do, one row per snapshot on a branch or tag, newest first.

        Columns: snapshot, written_at, message, kept, reason. Nothing is changed.
        """
        history = self._history("looking at an expiration")
        return retention_table(
            history,
            kept_by_time(
                history,
                to_microseconds(older_than),
                delete_branches=delete_expired_branches,
                delete_tags=delete_expired_tags,
            ),
        )

    preview_expiration_async = async_twin(preview_expiration)

    def apply_retention(self, policy: RetentionPolicy, *, dry_run: bool = False) -> Table:
        """Take snapshots that a policy does not keep out of the history; the data goes with the next `gc`.

        Gives one row per snapshot on a branch or tag, newest first: snapshot, written_at, message, kept and
        reason. Each snapshot that stays is tied to its nearest ancestor that does, and inherits the
        transaction logs of those between. With `dry_run` nothing is changed.
        """
        if not dry_run:
            check_writable(self._refs.status())
        self._require_present_format("retention")
        return retain(self._refs, self._assets, policy, dry_run=dry_run)

    apply_retention_async = async_twin(apply_retention)

    # Who holds the bytes

    def storage_by_snapshot(self) -> Table:
        """The bytes of chunks that each snapshot on a branch or tag refers to, newest first.

        Columns: snapshot, written_at, message, native_bytes, virtual_bytes, inlined_bytes, unique_bytes,
        which no other snapshot refers to, and shared_bytes. Both leave virtual chunks out.
        """
        history = self._history("counting chunks")
        return by_snapshot(self._assets, history, self._spread(_THREADS))

    storage_by_snapshot_async = async_twin(storage_by_snapshot)

    def storage_by_array(self, *, snapshot_id: str | None = None) -> Table:
        """The bytes of chunks of each array, in one snapshot or in all on branches and tags, largest first.

        Columns: array, chunks, native_bytes, virtual_bytes, inlined_bytes, unique_bytes, which no other
        array refers to, and shared_bytes. Both leave virtual chunks out. An array that no tip has any more
        is named by the id of its node.
        """
        history = self._history("counting chunks")
        ids = history.snapshots.ids
        if snapshot_id is not None:
            one = self._refs.snapshot(SnapshotId.parse(snapshot_id)).id
            ids = np.frombuffer(one, np.uint8).reshape(1, -1)
        return by_array(self._assets, history, ids, self._spread(_THREADS))

    storage_by_array_async = async_twin(storage_by_array)

    def what_if(
        self,
        *,
        older_than: datetime | None = None,
        policy: RetentionPolicy | None = None,
        kept: Iterable[str] | None = None,
    ) -> Freed:
        """What a collection could delete after an expiration, a policy, or if some snapshots alone were kept.

        One of the three is given.
        """
        if sum(each is not None for each in (older_than, policy, kept)) != 1:
            raise ValueError("give one of older_than, policy and kept")
        history = self._history("counting chunks")
        if kept is not None:
            stay = set(kept)
            names = [str(history.snapshots.id_at(row)) for row in range(len(history.snapshots))]
            keep = np.array([name in stay for name in names], np.bool_)
        else:
            keep = self._kept(history, older_than, policy).keep
        return what_if(self._assets, history, keep, self._spread(_THREADS))

    what_if_async = async_twin(what_if)

    def _kept(self, history: History, older_than: datetime | None, policy: RetentionPolicy | None) -> Kept:
        if policy is not None:
            return apply_policy(policy, history, datetime.now(UTC))
        cutoff = to_microseconds(older_than) if older_than is not None else 0
        return kept_by_time(history, cutoff, delete_branches=False, delete_tags=False)

    def _history(self, what: str) -> History:
        self._require_present_format(what)
        return history_of(self._refs)

    # Copies

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
