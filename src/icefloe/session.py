"""Sessions: one view of a repository, read-only or with changes to be committed."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icefloe._internal.concurrency import async_twin, in_thread
from icefloe._internal.executor import Executor, ThreadExecutor
from icefloe._internal.ids import SnapshotId
from icefloe._internal.paths import ROOT, validate
from icefloe._internal.telemetry import traced
from icefloe.config import RepositoryConfig, display
from icefloe.config.display import Shown, Tree, qualified
from icefloe.core.assets import AssetStore
from icefloe.core.changeset import ChangeSet
from icefloe.core.commit.diff import session_diff
from icefloe.core.commit.flush import OWN_METADATA, flush, restate, snapshot_info
from icefloe.core.commit.gc_race import check_presence, rescue
from icefloe.core.commit.idempotency import CommitKey, has_key, key_added
from icefloe.core.commit.manifests import write_early
from icefloe.core.handle import Handle
from icefloe.core.receipts import Receipt, merge_receipts, place_of
from icefloe.core.refs.backoff import give_way
from icefloe.core.refs.base import CollectedError, RefStore, unsupported
from icefloe.core.refs.v2 import check_flag, check_writable
from icefloe.core.reindex import reindex, shift
from icefloe.core.virtual_chunks.materialize import Region, materialize
from icefloe.core.virtual_chunks.references import all_locations
from icefloe.core.workspace import Workspace
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    IcechunkError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format.manifest import InlineRef, NativeRef
from icefloe.format.metadata import plain_metadata
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.snapshots import Diff
from icefloe.types import ChunkType, SessionMode

if TYPE_CHECKING:
    from icefloe.conflicts import ConflictSolver
    from icefloe.store import IcechunkStore

_MOVE_NODE = 3


class _KeyFoundError(Exception):
    """The snapshot that a commit would follow has its key."""


class Session(Shown):
    """A view of one snapshot and the changes made in it. A commit makes it read-only, at the new snapshot."""

    def __init__(
        self,
        *,
        mode: SessionMode,
        snapshot: Snapshot | SnapshotId,
        branch: str | None,
        refs: RefStore,
        assets: AssetStore,
        config: RepositoryConfig,
        handle: Handle,
        commit_metadata: Mapping[str, Any] | None = None,
        since: int | None = None,
        changes: ChangeSet | None = None,
    ) -> None:
        """Not for users: see `Repository.readonly_session` and its like.

        A snapshot given by its id is read when it is first needed.
        """
        self._mode = mode
        self._branch = branch
        self._refs = refs
        self._assets = assets
        self._config = config
        self._handle = handle
        self._commit_metadata = dict(commit_metadata or {})
        self._workspace = Workspace(snapshot, assets, changes, read_only=self.read_only)
        self._executor = ThreadExecutor(assets.config.max_concurrent_requests)
        if since is None:
            since = 0 if mode is SessionMode.readonly else refs.now()
        self._since = since
        """The mark before the first write of this session, and of the forks that were merged into it.

        A garbage collection after it may have deleted chunks that they wrote.
        """

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise ValueError(
                "a writable session cannot be pickled: its changes would go two ways. For reading elsewhere "
                "pickle a session of Repository.readonly_session; for writing in several processes pickle "
                "what Session.fork gives and merge it back, as icefloe.xarray.to_icechunk does"
            )
        return {"handle": self._handle, "config": self._config, "snapshot_id": self.snapshot_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        handle: Handle = state["handle"]
        opened = handle.open()
        Session.__init__(
            self,
            mode=SessionMode.readonly,
            snapshot=SnapshotId.parse(state["snapshot_id"]),
            branch=None,
            refs=opened.refs,
            assets=opened.assets,
            config=state["config"],
            handle=handle,
        )

    # What it is

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written."""
        return self._mode is SessionMode.readonly

    @property
    def mode(self) -> SessionMode:
        """What the session may do."""
        return self._mode

    @property
    def snapshot_id(self) -> str:
        """The snapshot the session is based on."""
        return str(self._base_id)

    @property
    def branch(self) -> str | None:
        """The branch it commits to; None for a read-only session."""
        return self._branch

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether anything was changed and not committed."""
        return not self._workspace.changes.is_empty()

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the configuration of the repository; change it with `Repository.reopen`."""
        return copy.deepcopy(self._config)

    @property
    def store(self) -> IcechunkStore:
        """A Zarr store over this session."""
        from icefloe.store import IcechunkStore  # zarr takes longer to load than all of ours

        return IcechunkStore(self)

    @property
    def workspace(self) -> Workspace:
        """The hierarchy that the store reads and writes."""
        return self._workspace

    @property
    def _base_id(self) -> SnapshotId:
        return self._workspace.base_id

    @property
    def executor(self) -> Executor:
        """How requests of this session run side by side."""
        return self._executor

    def tree(self) -> Tree:
        # docstring inherited
        rows = [("read_only", str(self.read_only)), ("snapshot_id", self.snapshot_id)]
        if not self.read_only:
            rows.append(("branch", str(self.branch)))
            rows.append(("has_uncommitted_changes", str(self.has_uncommitted_changes)))
        return Tree(qualified("session", type(self).__name__), tuple(rows))

    def _repr_html_(self) -> str:
        from icefloe._internal import html
        from icefloe.core.node_summary import nodes_html

        facts: dict[str, Any] = {"snapshot": self.snapshot_id, "branch": self.branch}
        try:
            parts = [nodes_html(self._workspace)]
            if self.has_uncommitted_changes:
                parts.append(html.section("Uncommitted changes", None, self.status()._html_sections()))
        except (IcechunkError, OSError) as error:  # a notebook shows the object anyway
            parts = [html.facts({"not readable": error})]
        title = qualified("session", type(self).__name__)
        return html.card(display.PACKAGE, title, self.mode.name, html.facts(facts), *parts)

    # Changes

    def status(self) -> Diff:
        """What was changed and not committed."""
        return session_diff(self._workspace)

    def discard_changes(self) -> None:
        """Forget all uncommitted changes."""
        self._require_writable()
        self._workspace.discard_changes()

    def move(self, from_path: str, to_path: str) -> None:
        """Move or rename a node with all below it. For rearrange sessions alone."""
        if not self._refs.spec.moves:
            raise unsupported("moving nodes", self._refs.spec)
        if self._mode is not SessionMode.rearrange:
            self._require_writable()
            raise SessionStateError(
                "nodes are moved in a session made by rearrange_session",
                kind=ErrorKind.NON_REARRANGE_SESSION,
            )
        source, target = (validate(path.rstrip("/") or ROOT) for path in (from_path, to_path))
        self._workspace.move(source, target)

    move_async = async_twin(move)

    # Nodes and chunks

    def get_node_id(self, path: str) -> str:
        """The id of the node at a path."""
        node = self._workspace.node(validate(path))
        if node is None:
            raise NodeNotFoundError(f"node not found at `{path}`", kind=ErrorKind.NODE_NOT_FOUND)
        return str(node.id)

    get_node_id_async = async_twin(get_node_id)

    def chunk_type(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
        """Where a chunk is kept."""
        node = self._workspace.array(validate(array_path))
        ref = self._workspace.ref(node, tuple(chunk_coordinates))
        match ref:
            case None:
                return ChunkType.uninitialized
            case InlineRef():
                return ChunkType.inline
            case NativeRef():
                return ChunkType.native
        return ChunkType.virtual

    chunk_type_async = async_twin(chunk_type)

    async def chunk_coordinates(
        self, array_path: str, batch_size: int = 1000
    ) -> AsyncIterator[tuple[int, ...]]:
        """The coordinates of all chunks of an array that exist, in order.

        So many are made Python numbers at a time, in a thread of our own.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        node = self._workspace.array(validate(array_path))
        coords = await in_thread(lambda: self._workspace.chunk_coords(node))
        for start in range(0, len(coords), batch_size):
            for row in coords[start : start + batch_size].tolist():
                yield tuple(row)

    def all_virtual_chunk_locations(self) -> list[str]:
        """The URL of every virtual chunk, by array and coordinates; that of a file once per chunk in it."""
        return all_locations(self._workspace, self._assets.virtual.containers)

    all_virtual_chunk_locations_async = async_twin(all_virtual_chunk_locations)

    def materialize(self, path: str, region: Region | None = None) -> int:
        """Copy virtual chunks of an array into the repository, byte for byte; the number of chunks copied.

        Nothing is decoded. With a region, in elements, those chunks that it touches: slices or numbers per
        dimension, or a mapping of dimension names to them. The references change with the next commit. Raises
        StorageError where a file is not what was recorded; then no reference has changed.
        """
        self._require_edits()
        node = self._workspace.array(validate(path))
        return materialize(self._workspace, node, region, self._executor)

    materialize_async = async_twin(materialize)

    def shift_array(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Move all chunks of an array by an offset per dimension, in chunks; nothing is copied.

        Positive offsets lead to higher indices. Chunks that leave the grid are dropped, and those they leave
        behind read as the fill value.
        """
        self._require_edits()
        node = self._workspace.array(validate(array_path))
        shift(self._workspace, node, tuple(chunk_offset))

    def reindex_array(
        self,
        array_path: str,
        forward: Callable[[Iterable[int]], Iterable[int] | None],
        backward: Callable[[Iterable[int]], Iterable[int] | None] | None = None,
    ) -> None:
        """Give each chunk of an array the coordinates that `forward` makes of its own; nothing is copied.

        None leaves a chunk where it is. `backward` says where the chunk at some coordinates comes from: given
        it, cells whose chunk went away, or that none came to, read as the fill value afterwards; without it
        they keep what they had. Coordinates outside the grid are an InvalidInputError; nothing changes then.
        """
        self._require_edits()
        node = self._workspace.array(validate(array_path))
        reindex(self._workspace, node, forward, backward)

    # Forks

    def fork(self) -> ForkSession:
        """A session like this one for another thread, process or machine, to be merged back with `merge`.

        It sees what is not committed yet; for that, a snapshot is written that is part of no history. What is
        changed here later the fork does not see.
        """
        if self.read_only:
            raise SessionStateError(
                "cannot fork a read-only session; for reading elsewhere pickle the session itself",
                kind=ErrorKind.CANNOT_FORK_READ_ONLY_SESSION,
            )
        base = self._workspace.unread_base
        if self.has_uncommitted_changes:
            with self._workspace.committing():
                base = flush(self._workspace, "fork", {}, self._executor, self._base_id).snapshot
        return ForkSession(
            origin=self._origin,
            mode=SessionMode.writable,
            snapshot=base,
            branch=None,
            refs=self._refs,
            assets=self._assets,
            config=self._config,
            handle=self._handle,
            since=self._since,
        )

    def merge(self, *others: ForkSession) -> None:
        """Take over what forks of this session changed, in the order given: all of it or nothing.

        Where two forks wrote the same chunk the later one wins. Whatever else both sides changed in different
        ways (metadata, a node deleted here and changed there, two nodes at one path) is a SessionStateError
        of kind `merge-failed`, and so is a fork that is not based on the snapshot this session is based on.
        Merging a fork again changes nothing, unless it, or what it wrote, changed in between.
        """
        self._merge_receipts(others)

    merge_async = async_twin(merge)

    def _merge_receipts(self, forks: Iterable[ForkSession | bytes]) -> None:
        """What `merge` does, for forks that came home as bytes too: see `icefloe.distributed.receipt`."""
        self._require_edits()
        others = {id(fork): fork for fork in forks if fork is not self}
        receipts = []
        for fork in others.values():
            if isinstance(fork, bytes):
                receipts.append(Receipt.from_bytes(fork, self._assets.manifest))
                continue
            self._check_mergeable(fork)
            receipts.append(fork._receipt())
        with self._workspace.editing():
            # Their chunks may be older than this session, and garbage was perhaps collected in between.
            self._since = min([self._since, *(receipt.since for receipt in receipts)])
            merge_receipts(self._workspace, self._origin, receipts)

    def _check_mergeable(self, fork: object) -> None:
        if not isinstance(fork, Session):
            raise TypeError(f"merge takes what Session.fork gives, not '{type(fork).__name__}'")
        if fork.mode is SessionMode.rearrange:
            raise SessionStateError(
                "a rearrange session is merged nowhere; commit it", kind=ErrorKind.REARRANGE_SESSION_ONLY
            )
        if fork.read_only:
            raise SessionStateError(
                "a read-only session has nothing to merge; merge what Session.fork gives",
                kind=ErrorKind.MERGE_NOT_ALLOWED,
            )

    @property
    def _origin(self) -> SnapshotId:
        """The committed snapshot that changes made here are to be compared with."""
        return self._base_id

    def _receipt(self) -> Receipt:
        """What was changed here and not committed, and upon what."""
        place, copy = place_of(self._assets.storage)
        with self._workspace.exclusive():
            changes = self._workspace.changes.copy()
        return Receipt(self._origin, self._base_id, place, copy, self._since, changes)

    # Commits

    @traced
    def commit(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
    ) -> str:
        """Write the changes as a new snapshot on the branch; its id. ConflictError if the branch moved.

        With a solver the session is then rebased and tries again, `rebase_tries` times at most;
        RebaseFailedError where a conflict remains.
        """
        with self._committing(self._require_branch):
            if not allow_empty and not self.has_uncommitted_changes:
                raise _no_changes()
            if rebase_with is None:
                return self._commit(message, metadata)
            return self._commit_rebasing(message, metadata, rebase_with, rebase_tries)

    commit_async = async_twin(commit)

    @traced
    def commit_once(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        *,
        key: CommitKey,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
    ) -> str | None:
        """Commit the changes unless the branch contains a commit with the same key.

        The key becomes part of the snapshot. It is looked for in the snapshot that the commit follows, so two
        jobs with one key make one commit, whatever the solver does. Expiration, squashing and retention keep
        keys, a reset forgets those of the commits that it drops, and a merge unites them.

        Parameters
        ----------
        message
            The message of the commit.
        metadata
            The metadata of the commit.
        key
            The application and the version that name this commit, and a digest of the data if there is one.
        rebase_with
            A solver to rebase with when the branch has moved. Without one, ConflictError is raised.
        rebase_tries
            How many times to rebase at most.

        Returns
        -------
        str or None
            The id of the new snapshot; None if the branch has the key already. The session keeps its changes
            then.
        """
        with self._committing(self._require_branch):
            if not self.has_uncommitted_changes:
                raise _no_changes()
            try:
                if rebase_with is None:
                    return self._commit(message, metadata, key=key)
                return self._commit_rebasing(message, metadata, rebase_with, rebase_tries, key)
            except ConflictError:
                # The commit in the way may be that of a twin.
                if not has_key(self._assets.snapshot(self._refs.branch(self._require_branch())), key):
                    raise
                return None
            except _KeyFoundError:
                return None

    commit_once_async = async_twin(commit_once)

    def _commit_rebasing(
        self,
        message: str,
        metadata: Mapping[str, Any] | None,
        rebase_with: ConflictSolver,
        rebase_tries: int,
        key: CommitKey | None = None,
    ) -> str:
        from icefloe.core.merge.rebase import check_solver

        check_solver(rebase_with)
        for attempts in range(rebase_tries):
            began = time.monotonic()
            try:
                return self._commit(message, metadata, attempts, key)
            except ConflictError as error:
                if error.kind != ErrorKind.COMMIT_CONFLICT:
                    raise
            if attempts:  # the first time it was merely late
                give_way(attempts, time.monotonic() - began)
            self.rebase(rebase_with)
        return self._commit(message, metadata, max(rebase_tries, 0), key)

    @contextmanager
    def _committing(self, require: Callable[[], object]) -> Iterator[None]:
        """Hold back changes and commits by other threads, if the session may do what `require` checks."""
        require()  # an error needs no snapshot
        with self._workspace.committing():
            require()  # another thread may have committed
            yield

    def _commit(
        self,
        message: str,
        metadata: Mapping[str, Any] | None,
        rebase_attempts: int | None = None,
        key: CommitKey | None = None,
    ) -> str:
        branch, base = self._require_branch(), self._workspace.base
        self._refs.check_tip(branch, base.id)  # before anything is written that nobody would need
        if key is not None and has_key(base, key):
            raise _KeyFoundError
        with nullcontext() if key is None else key_added(self._workspace, key):
            return self._land(
                lambda: self._flush(message, metadata, base.id, rebase_attempts=rebase_attempts),
                lambda made: self._refs.advance(branch, base.id, snapshot_info(made, base.id), self._since),
            )

    @traced
    def rebase(self, solver: ConflictSolver) -> None:
        """Base the session on the tip of its branch, with its changes over what was committed meanwhile.

        A conflict that the solver cannot solve is a RebaseFailedError. It names the commit; the session is
        then based on the one before, and its changes are still there.
        """
        from icefloe.core.merge.rebase import check_solver, rebase  # reading needs none of it

        with self._committing(self._require_branch):
            check_solver(solver)
            rebase(self._workspace, self._refs, self._require_branch(), solver, self._executor)

    rebase_async = async_twin(rebase)

    @traced
    def amend(
        self, message: str, *, metadata: dict[str, Any] | None = None, allow_empty: bool = False
    ) -> str:
        """Replace the branch's tip by a snapshot that has these changes too; its id."""
        if not self._refs.spec.refs_in_repo_info:
            raise unsupported("amend", self._refs.spec)
        with self._committing(self._require_branch):
            if not allow_empty and not self.has_uncommitted_changes:
                raise _no_changes()
            return self._amend(message, metadata)

    amend_async = async_twin(amend)

    def _amend(self, message: str, metadata: Mapping[str, Any] | None) -> str:
        branch = self._require_branch()
        self._check_repository_writable()
        base = self._workspace.base
        tip = self._refs.snapshot(base.id)
        if tip.parent_id is None:
            raise SessionStateError(
                "the first snapshot of a repository cannot be amended",
                kind=ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
            )
        # What changes nothing needs to know nothing of the log, which may be long.
        rearranges = self._mode is SessionMode.rearrange
        unread = (
            self._assets.sealed_log(base.id) if not rearranges and not self.has_uncommitted_changes else None
        )
        earlier = self._assets.transaction_log(base.id) if unread is None else None
        if not rearranges and (unread.has_moves if unread is not None else earlier and earlier.moved_nodes):
            raise SessionStateError(
                "a commit that moved nodes is amended in a rearrange session",
                kind=ErrorKind.REARRANGE_SESSION_ONLY,
            )
        from icefloe.core.merge.branches import with_merges_of  # reading needs none of it

        parent, logs = tip.parent_id, tip.pruned_ancestor_tx_logs
        properties = with_merges_of(tip, plain_metadata(metadata or {}))

        def write() -> Snapshot:
            if unread is None:
                return self._flush(message, properties, parent, earlier)
            return restate(self._assets, base, message, self._properties(message, properties), parent, unread)

        return self._land(
            write,
            lambda made: self._refs.amend(
                branch,
                base.id,
                replace(snapshot_info(made, parent), pruned_ancestor_tx_logs=logs),
                self._since,
            ),
        )

    @traced
    def flush(self, message: str, *, metadata: dict[str, Any] | None = None) -> str:
        """Write the changes as a snapshot that no branch points to; its id."""
        with self._committing(self._require_flushable):
            self._check_repository_writable()
            base = self._workspace.base
            return self._land(
                lambda: self._flush(message, metadata, base.id),
                lambda made: self._refs.detach(snapshot_info(made, base.id), self._since),
            )

    flush_async = async_twin(flush)

    def _flush(
        self,
        message: str,
        metadata: Mapping[str, Any] | None,
        parent_id: SnapshotId,
        earlier: TransactionLog | None = None,
        rebase_attempts: int | None = None,
    ) -> Snapshot:
        properties = self._properties(message, metadata)
        if rebase_attempts is not None:
            known = properties.get(OWN_METADATA)
            known = known if isinstance(known, dict) else {}
            properties[OWN_METADATA] = {**known, "rebase_attempts": rebase_attempts}
        if self._mode is SessionMode.rearrange:
            check_flag(self._refs.feature_flags(), _MOVE_NODE)
        return flush(self._workspace, message, properties, self._executor, parent_id, earlier).snapshot

    def _properties(self, message: str, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        _check_message(message)
        return {**self._commit_metadata, **plain_metadata(metadata or {})}

    def _land(self, write: Callable[[], Snapshot], move: Callable[[Snapshot], None]) -> str:
        """Write a snapshot and make it known; with copies of its chunks where garbage was collected."""
        while True:
            snapshot = write()
            if not self._refs.spec.refs_in_repo_info:
                check_presence(self._workspace, self._executor)
            try:
                move(snapshot)
            except CollectedError:
                since = self._refs.now()
                rescue(self._workspace, self._executor)
                self._since = since  # not where chunks are gone: the next commit must not find all well
                continue
            return self._settle(snapshot)

    def _settle(self, snapshot: Snapshot) -> str:
        """Become a read-only view of what was committed."""
        self._workspace.close()
        self._mode = SessionMode.readonly
        self._branch = None
        self._workspace = Workspace(snapshot, self._assets, read_only=True)
        return str(snapshot.id)

    def _check_repository_writable(self) -> None:
        check_writable(self._refs.status())

    def _require_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError("the session is read-only", kind=ErrorKind.READ_ONLY_SESSION)

    def _require_flushable(self) -> None:
        self._require_writable()

    def _require_edits(self) -> None:
        self._require_writable()
        if self._mode is SessionMode.rearrange:
            raise SessionStateError(
                "a rearrange session moves nodes and does nothing else; use writable_session",
                kind=ErrorKind.REARRANGE_SESSION_ONLY,
            )

    def _require_branch(self) -> str:
        if self.read_only or self._branch is None:
            raise SessionStateError(
                "only a writable session on a branch can commit; open one with writable_session",
                kind=ErrorKind.COMMIT_NOT_ALLOWED,
            )
        return self._branch


class ForkSession(Session):
    """A session for one of several writers: it is pickled, sent, written to, pickled back and merged.

    It commits nothing itself. In the process where it is unpickled it opens its storage by itself, when it is
    first read from or written to.
    """

    def __init__(self, *, origin: SnapshotId, **session: Any) -> None:
        """Not for users: see `Session.fork`."""
        super().__init__(**session)
        self._forked_from = origin

    def _receipt(self) -> Receipt:
        """What was changed here, upon what, once it is safe: another process will commit it."""
        self._assets.storage.sync()
        return super()._receipt()

    def __getstate__(self) -> dict[str, Any]:
        receipt = self._receipt().to_bytes()
        return {"handle": self._handle, "config": self._config, "receipt": receipt}

    def __setstate__(self, state: dict[str, Any]) -> None:
        handle: Handle = state["handle"]
        opened = handle.open()
        receipt = Receipt.from_bytes(state["receipt"], opened.assets.manifest)
        ForkSession.__init__(
            self,
            origin=receipt.origin,
            mode=SessionMode.writable,
            snapshot=receipt.base,
            branch=None,
            refs=opened.refs,
            assets=opened.assets,
            config=state["config"],
            handle=handle,
            since=receipt.since,
            changes=receipt.changes,
        )

    def write_manifests(self, path: str, window: Sequence[range] | None = None) -> int:
        """Write what was set in an array into manifests here and now; the number of manifests.

        The receipt then has their ids and extents rather than the references, and the commit takes them as
        they are where nothing else was changed in their part of the chunk grid, as the configuration splits
        it. With a `window` of the chunk grid, in chunks per dimension, what was set outside of it is
        forgotten.
        """
        return write_early(self._workspace, validate(path), window)

    @property
    def _origin(self) -> SnapshotId:
        return self._forked_from

    def _require_flushable(self) -> None:
        raise IcechunkError(
            "cannot flush a forked session; merge it into the session it came from and flush that",
            kind=ErrorKind.UNKNOWN,
        )

    def _require_branch(self) -> str:
        raise SessionStateError(
            "commits are not allowed on a fork; merge it into the session it came from and commit that",
            kind=ErrorKind.COMMIT_NOT_ALLOWED,
        )

    def _check_mergeable(self, fork: object) -> None:
        if isinstance(fork, Session) and not isinstance(fork, ForkSession):
            raise SessionStateError(
                "a session on a branch cannot be merged into a fork; merge the fork into the session",
                kind=ErrorKind.MERGE_NOT_ALLOWED,
            )
        super()._check_mergeable(fork)


def _check_message(message: str) -> None:
    try:
        message.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"the message {message!r} has lone surrogates, which have no UTF-8 form",
            kind=ErrorKind.BAD_METADATA,
        ) from None


def _no_changes() -> SessionStateError:
    return SessionStateError(
        "cannot commit, no changes made to the session; allow_empty=True commits all the same",
        kind=ErrorKind.NO_CHANGES_TO_COMMIT,
    )
