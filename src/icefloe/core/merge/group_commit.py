"""Group commit: concurrent commits of one process to one branch become one snapshot.

The first commit to arrive leads: it waits a moment, takes all commits that are waiting, and folds them into
one set of changes, each judged by the rules of a rebase over those before it. A commit that conflicts gets
its own error and does not affect the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from icefloe._internal.executor import Executor
from icefloe._internal.ids import SnapshotId
from icefloe.conflicts import ConflictDetector, ConflictSolver
from icefloe.core.changeset import ChangeSet
from icefloe.core.commit.flush import build_nodes, make_log
from icefloe.core.commit.idempotency import CommitKey, add_key, has_key
from icefloe.core.merge.appends import get_append_rules, plan_appends
from icefloe.core.merge.conflicts import Theirs
from icefloe.core.merge.rebase import rebase, replay, transfer_changes
from icefloe.core.refs.backoff import give_way
from icefloe.core.refs.base import RefStore, check_base
from icefloe.core.workspace import Workspace
from icefloe.errors import ConflictError, ErrorKind, IcechunkError
from icefloe.format.snapshot import Snapshot
from icefloe.snapshots import FOLDED

_TRIES: Final = 1000


@dataclass(slots=True)
class CommitRequest:
    """A commit that waits for others."""

    workspace: Workspace
    """A private copy of the changes of a session."""
    message: str
    metadata: Mapping[str, Any]
    key: CommitKey | None
    solver: ConflictSolver | None
    since: int
    """The mark before the first write of the session."""
    made: Snapshot | None = None
    """The snapshot that contains the changes; None if the branch already had the key."""
    error: BaseException | None = None
    leads: bool = False
    woken: threading.Event = field(default_factory=threading.Event)

    def describe(self) -> dict[str, Any]:
        """Return the entry of this commit in the metadata of a snapshot."""
        key = None if self.key is None else {"app": self.key.app, "version": self.key.version}
        return {"message": self.message, "metadata": dict(self.metadata), "key": key}


Land = Callable[[Workspace, str, Mapping[str, Any], int], Snapshot]
"""Writes a snapshot of a workspace with a message and metadata, and moves the branch."""


class GroupCommits:
    """The waiting commits of a process, by branch."""

    def __init__(self, max_delay_ms: float) -> None:
        self._delay_s = max_delay_ms / 1000
        self._lock = threading.Lock()
        self._waiting: dict[str, list[CommitRequest]] = {}
        """Branches with a leader, and the requests that the leader has not taken yet."""

    def commit(
        self, branch: str, request: CommitRequest, refs: RefStore, executor: Executor, land: Land
    ) -> Snapshot | None:
        """Commit a request together with others, and return the snapshot; None if its key was committed."""
        with self._lock:
            leads = branch not in self._waiting
            self._waiting.setdefault(branch, []).append(request)
        if leads:
            time.sleep(self._delay_s)
        else:
            request.woken.wait()
            leads = request.leads
        if leads:
            self._lead(branch, refs, executor, land)
        if request.error is not None:
            raise request.error
        return request.made

    def _lead(self, branch: str, refs: RefStore, executor: Executor, land: Land) -> None:
        with self._lock:
            batch, self._waiting[branch] = self._waiting[branch], []
        try:
            _commit_batch(branch, batch, refs, executor, land)
        except BaseException as error:
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
    branch: str, batch: Sequence[CommitRequest], refs: RefStore, executor: Executor, land: Land
) -> None:
    """Fold and commit requests, and again if another process came first."""
    left = list(batch)
    for attempt in range(_TRIES):
        began = time.monotonic()
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
        except ConflictError as error:
            if error.kind != ErrorKind.COMMIT_CONFLICT or attempt + 1 == _TRIES:
                raise
            give_way(attempt, time.monotonic() - began)
            continue
        for each in left:
            each.made = made
        return


def _try_to_fold(
    combined: Workspace, request: CommitRequest, branch: str, refs: RefStore, executor: Executor
) -> bool:
    """Add the changes of a request; return False if it has its result: an error, or its key was found."""
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


def _fold(combined: Workspace, request: CommitRequest) -> None:
    mine = request.workspace
    rules = get_append_rules(request.solver)
    plan = None if rules is None else plan_appends(mine, combined, rules)
    rest = mine.changes.copy() if plan is None else plan.rest
    if not combined.changes.is_empty():
        id = SnapshotId.random()
        after = replace(combined.base, nodes=build_nodes(combined, ()))
        theirs = Theirs(make_log(combined, id), lambda: after)
        replay(combined.base.nodes, rest, theirs, request.solver or ConflictDetector(), id)
        rest = transfer_changes(after.nodes, rest)
    _add(combined, rest)
    if plan is not None and rules is not None:
        plan.apply(combined)
        rules.note(plan.done)
    if request.key is not None:
        add_key(combined, request.key)


def _add(combined: Workspace, rest: ChangeSet) -> None:
    """Add changes that do not conflict with those of a workspace."""
    changes = combined.changes.copy()
    for path, node in rest.deleted.items():
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
