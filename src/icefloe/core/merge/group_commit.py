"""Group commit combines concurrent commits of one process to the same branch into a single snapshot.

The first commit to arrive is the leader. It waits a moment, takes all waiting commits, and combines them into
one set of changes. Each commit is checked for conflicts with the previous ones by the rules of a rebase. A
commit that conflicts fails with its own error and does not affect other commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from icefloe._internal.executor import Executor
from icefloe._internal.ids import SnapshotId
from icefloe.branch_checks import CheckFailedError
from icefloe.conflicts import ConflictDetector, ConflictSolver
from icefloe.core.changeset import ChangeSet
from icefloe.core.commit.flush import build_nodes, make_log
from icefloe.core.commit.idempotency import CommitKey, add_key, has_key
from icefloe.core.merge.append_inputs import get_append_rules
from icefloe.core.merge.concurrent_appends import plan_appends
from icefloe.core.merge.conflicts import TheirChanges
from icefloe.core.merge.rebase import rebase, replay, transfer_changes
from icefloe.core.refs.backoff import give_way
from icefloe.core.refs.base import RefStore, check_base
from icefloe.core.workspace import Workspace
from icefloe.errors import ConflictError, ErrorKind, IcechunkError
from icefloe.format.snapshot import Snapshot
from icefloe.snapshots import FOLDED

_TRIES: Final = 1000


@dataclass(slots=True)
class GroupCommitRequest:
    """The request of one thread that waits for a group commit."""

    workspace: Workspace
    """A private copy of the session's changes."""
    message: str
    metadata: Mapping[str, Any]
    key: CommitKey | None
    solver: ConflictSolver | None
    since: int
    """The mark of `RefStore.now`, taken before the first write of the session."""
    made: Snapshot | None = None
    """The snapshot that contains the changes; None if the branch already contained the commit key."""
    error: BaseException | None = None
    leads: bool = False
    woken: threading.Event = field(default_factory=threading.Event)

    def describe(self) -> dict[str, Any]:
        """Return the entry that describes this commit in the metadata of the group commit."""
        key = None if self.key is None else {"app": self.key.app, "version": self.key.version}
        return {"message": self.message, "metadata": dict(self.metadata), "key": key}


Land = Callable[[Workspace, str, Mapping[str, Any], int], Snapshot]
"""A function that commits a workspace: it writes a snapshot with a message and metadata, and moves the
branch.
"""


class GroupCommits:
    """Combines waiting commits of this process to the same branch into group commits."""

    def __init__(self, max_delay_ms: float) -> None:
        self._delay_s = max_delay_ms / 1000
        self._lock = threading.Lock()
        self._waiting: dict[str, list[GroupCommitRequest]] = {}
        """For each branch with a leader, the requests that the leader has not taken yet."""

    def commit(
        self, branch: str, request: GroupCommitRequest, refs: RefStore, executor: Executor, land: Land
    ) -> Snapshot | None:
        """Commit a request together with concurrent requests, and return the snapshot; None if its commit key
        already exists.
        """
        with self._lock:
            # The first thread becomes the leader. It waits for others, and commits for all of them while they
            # sleep. Later threads wait for the next round, whose leader is the first of them.
            leads = branch not in self._waiting
            self._waiting.setdefault(branch, []).append(request)
        if leads:
            time.sleep(self._delay_s)
        else:
            request.woken.wait()
            leads = request.leads
        if leads:
            self._commit_as_leader(branch, refs, executor, land)
        if request.error is not None:
            raise request.error
        return request.made

    def _commit_as_leader(self, branch: str, refs: RefStore, executor: Executor, land: Land) -> None:
        with self._lock:
            batch, self._waiting[branch] = self._waiting[branch], []
        try:
            _commit_batch(branch, batch, refs, executor, land)
        except BaseException as error:
            # A follower cannot know why its leader failed, so it gets the same error. Without a result, it
            # would wait forever.
            for each in batch:
                each.error = each.error or error
            raise
        finally:
            with self._lock:
                if rest := self._waiting[branch]:
                    rest[0].leads = True
                    rest[0].woken.set()
                else:
                    del self._waiting[branch]
            for each in batch:
                each.woken.set()


def _commit_batch(
    branch: str, batch: Sequence[GroupCommitRequest], refs: RefStore, executor: Executor, land: Land
) -> None:
    """Combine requests into one commit, and retry if another process commits first."""
    left = list(batch)
    for attempt in range(_TRIES):
        began = time.monotonic()
        # Start from the tip in each attempt, because a commit of another process invalidates the combined
        # changes. The changes of the requests remain valid and are rebased one by one.
        tip = batch[0].workspace.assets.snapshot(refs.tip_to_write(branch))
        combined = Workspace(tip, batch[0].workspace.assets)
        left = [each for each in left if _try_to_fold(combined, each, branch, refs, executor)]
        if not left:
            return
        message, metadata = left[0].message, dict(left[0].metadata)
        if len(left) > 1:
            message = "\n".join(each.message for each in left)
            metadata = {FOLDED: [each.describe() for each in left]}
        try:
            made = land(combined, message, metadata, min(each.since for each in left))
        except CheckFailedError:
            if len(left) == 1:
                raise
            for each in left:  # find out which request does not pass the checks of the branch
                each.solver = (
                    each.solver or ConflictDetector()
                )  # all other requests are committed first, and do not conflict
                try:
                    _commit_batch(branch, [each], refs, executor, land)
                except IcechunkError as error:
                    each.error = error
            return
        except ConflictError as error:
            if error.kind != ErrorKind.COMMIT_CONFLICT or attempt + 1 == _TRIES:
                raise
            give_way(attempt, time.monotonic() - began)
            continue
        for each in left:
            each.made = made
        return


def _try_to_fold(
    combined: Workspace, request: GroupCommitRequest, branch: str, refs: RefStore, executor: Executor
) -> bool:
    """Add the changes of a request to the batch. Return False if the request already has a result: an error,
    or an existing commit key.
    """
    try:
        if request.key is not None and has_key(combined, request.key):
            return False
        if request.solver is None:
            check_base(request.workspace.base_id, combined.base_id)
        else:
            rebase(request.workspace, refs, branch, request.solver, executor)
        _fold(combined, request)
    except IcechunkError as error:
        request.error = error
        return False
    return True


def _fold(combined: Workspace, request: GroupCommitRequest) -> None:
    mine = request.workspace
    rules = get_append_rules(request.solver)
    plan = None if rules is None else plan_appends(mine, combined, rules)
    rest = mine.changes.copy() if plan is None else plan.rest
    if not combined.changes.is_empty():
        # Treat the previously combined requests as a commit. The rules of a rebase then find conflicts
        # between threads exactly as they would between processes.
        id = SnapshotId.random()
        after = replace(combined.base, nodes=build_nodes(combined, ()))
        theirs = TheirChanges(make_log(combined, id), lambda: after)
        replay(combined.base.nodes, rest, theirs, request.solver or ConflictDetector(), id)
        rest = transfer_changes(after.nodes, rest)
    _add(combined, rest)
    if plan is not None and rules is not None:
        plan.apply(combined)
        rules.note(plan.done)
    if request.key is not None:
        add_key(combined, request.key)


def _add(combined: Workspace, rest: ChangeSet) -> None:
    """Add changes to a workspace. They must not conflict with its existing changes."""
    changes = combined.changes.copy()
    for path, node in rest.deleted.items():
        # A node created by an earlier request of this batch was never committed. Its deletion leaves no
        # trace, because a log must not list the deletion of an unknown node.
        if changes.created.pop(path, None) is None:
            changes.deleted[path] = node
        changes.updated.pop(path, None)
        changes.chunks.pop(node.id, None)
    changes.created |= rest.created
    for path, node in rest.updated.items():
        (changes.created if path in changes.created else changes.updated)[path] = node
    for id, delta in rest.chunks.items():
        known = changes.chunks.get(id)
        if known is None:
            changes.chunks[id] = delta.copy()
        else:
            known.extend(delta.copy())
    combined.rebase(combined.base, changes)
