"""Sessions: read-only views of one snapshot of a repository, or writable views with uncommitted changes."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icefloe._internal.concurrency import async_twin, run_in_thread
from icefloe._internal.executor import Executor, ThreadExecutor
from icefloe._internal.ids import SnapshotId
from icefloe._internal.paths import ROOT, validate
from icefloe._internal.telemetry import trace_calls
from icefloe.config import RepositoryConfig, display
from icefloe.config.display import Shown, Tree, qualify_name
from icefloe.core.assets import AssetStore
from icefloe.core.changeset import ChangeSet
from icefloe.core.commit.diff import diff_session
from icefloe.core.commit.flush import OWN_METADATA, flush, make_snapshot_info, reword
from icefloe.core.commit.gc_race import check_presence, rescue
from icefloe.core.commit.idempotency import CommitKey, add_key_for_attempt, has_key, keep_keys
from icefloe.core.commit.manifests import write_early
from icefloe.core.handle import Handle
from icefloe.core.materialize import Region, materialize
from icefloe.core.receipts import Receipt, identify_repository, merge_receipts
from icefloe.core.reference_columns import list_locations
from icefloe.core.refs.backoff import give_way
from icefloe.core.refs.base import CollectedError, RefStore, make_unsupported_error
from icefloe.core.refs.v2 import check_flag, check_writable
from icefloe.core.reindex import reindex, shift
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
from icefloe.format.metadata import normalize_metadata
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.snapshots import Diff
from icefloe.types import ChunkType, SessionMode

if TYPE_CHECKING:
    from icefloe.conflicts import ConflictSolver
    from icefloe.core.merge.group_commit import GroupCommits
    from icefloe.store import IcechunkStore

_MOVE_NODE = 3


class _KeyFoundError(Exception):
    """Raised when the snapshot that a commit would follow already contains the key of the commit."""


class Session(Shown):
    """A session: a view of one snapshot, including uncommitted changes.

    After a commit, the session is read-only and views the new snapshot. Create sessions with
    `Repository.readonly_session`, `Repository.writable_session` or `Repository.rearrange_session`.

    Parameters
    ----------
    mode
        The operations that the session allows.
    snapshot
        The base snapshot, or its id. An id is read on first use.
    branch
        The branch to commit to.
    refs
        The branches and tags of the repository.
    assets
        The snapshots, manifests and chunks of the repository.
    config
        The configuration of the repository.
    handle
        A picklable handle that opens the repository in another process.
    commit_metadata
        Metadata to add to every commit.
    since
        The position in the ops log before the first write.
    changes
        Uncommitted changes to start with.
    after_commit
        A function that collects statistics of changed arrays, given by their paths. It is called after
        commits that request statistics.
    """

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
        after_commit: Callable[[Session, Sequence[str]], None] | None = None,
    ) -> None:
        self._mode = mode
        self._branch = branch
        self._refs = refs
        self._assets = assets
        self._config = config
        self._handle = handle
        self._commit_metadata = dict(commit_metadata or {})
        self._workspace = Workspace(snapshot, assets, changes, read_only=self.read_only)
        self._executor = ThreadExecutor(assets.config.max_concurrent_requests)
        self._solver: ConflictSolver | None = None
        self._groups: GroupCommits | None = None
        """Commits of this process that are combined into one snapshot; None if commits are not grouped."""
        if since is None:
            since = 0 if mode is SessionMode.readonly else refs.now()
        self._collects_statistics = False
        self._after_commit = after_commit
        self._since = since
        """The position in the ops log before the first write of this session and of all forks merged into it.

        A garbage collection that ran later may have deleted chunks that they wrote.
        """

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise ValueError(
                "a writable session cannot be pickled, because its changes would exist twice. To read in "
                "another process, pickle a session of Repository.readonly_session; to write in several "
                "processes, pickle forks (Session.fork) and merge them, as icefloe.xarray.to_icechunk does"
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

    # Properties

    @property
    def read_only(self) -> bool:
        """True if the session is read-only."""
        return self._mode is SessionMode.readonly

    @property
    def mode(self) -> SessionMode:
        """The operations that the session allows."""
        return self._mode

    @property
    def snapshot_id(self) -> str:
        """The id of the snapshot that the session is based on."""
        return str(self._base_id)

    @property
    def branch(self) -> str | None:
        """The branch that the session commits to; None for a read-only session."""
        return self._branch

    @property
    def has_uncommitted_changes(self) -> bool:
        """True if the session has uncommitted changes."""
        return not self._workspace.changes.is_empty()

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the repository configuration. Use `Repository.reopen` to change it."""
        return copy.deepcopy(self._config)

    @property
    def store(self) -> IcechunkStore:
        """The Zarr store of this session."""
        from icefloe.store import IcechunkStore  # importing zarr takes longer than importing icefloe

        return IcechunkStore(self)

    @property
    def workspace(self) -> Workspace:
        """The session's workspace: the hierarchy that its store reads and writes."""
        return self._workspace

    @property
    def _base_id(self) -> SnapshotId:
        return self._workspace.base_id

    @property
    def executor(self) -> Executor:
        """The executor for concurrent requests."""
        return self._executor

    def tree(self) -> Tree:
        # docstring inherited
        rows = [("read_only", str(self.read_only)), ("snapshot_id", self.snapshot_id)]
        if not self.read_only:
            rows.append(("branch", str(self.branch)))
            rows.append(("has_uncommitted_changes", str(self.has_uncommitted_changes)))
        return Tree(qualify_name("session", type(self).__name__), tuple(rows))

    def _repr_html_(self) -> str:
        from icefloe._internal import html
        from icefloe.core.node_summary import render_nodes

        facts = {"mode": self.mode.name, "snapshot": self.snapshot_id, "branch": self.branch}
        try:
            parts = [render_nodes(self._workspace)]
            if self.has_uncommitted_changes:
                parts.append(html.render_section("Uncommitted changes", None, self.status()._html_sections()))
        except (IcechunkError, OSError) as error:  # a notebook always shows something
            parts = [html.render_facts({"not readable": error})]
        title = qualify_name("session", type(self).__name__)
        note = f"read_only: {self.read_only}"
        return html.render_card(display.PACKAGE, title, note, html.render_facts(facts), *parts)

    # Changes

    def status(self) -> Diff:
        """Return the session's uncommitted changes.

        Returns
        -------
        Diff
            The changed nodes and chunks.
        """
        return diff_session(self._workspace)

    def discard_changes(self) -> None:
        """Discard all uncommitted changes.

        Raises
        ------
        ReadOnlyError
            If the session is read-only.
        """
        self._require_writable()
        self._workspace.discard_changes()

    def move(self, from_path: str, to_path: str) -> None:
        """Move or rename a node, and all nodes below it. Only rearrange sessions can do this.

        Parameters
        ----------
        from_path
            The path of the node.
        to_path
            The new path. Its parent group must exist.

        Raises
        ------
        SessionStateError
            If the session is not a rearrange session, or the node cannot be moved there.
        NodeNotFoundError
            If there is no node at `from_path`.
        AlreadyExistsError
            If there is a node at `to_path`.
        """
        if not self._refs.spec.moves:
            raise make_unsupported_error("moving nodes", self._refs.spec)
        if self._mode is not SessionMode.rearrange:
            self._require_writable()
            raise SessionStateError(
                "only a rearrange session can move nodes; open one with Repository.rearrange_session",
                kind=ErrorKind.NON_REARRANGE_SESSION,
            )
        source, target = (validate(path.rstrip("/") or ROOT) for path in (from_path, to_path))
        self._workspace.move(source, target)

    move_async = async_twin(move)

    # Nodes and chunks

    def get_node_id(self, path: str) -> str:
        """Return the id of the node at a path.

        Parameters
        ----------
        path
            The path of the node.

        Returns
        -------
        str
            The id.

        Raises
        ------
        NodeNotFoundError
            If there is no such node.
        """
        node = self._workspace.node(validate(path))
        if node is None:
            raise NodeNotFoundError(f"node not found at `{path}`", kind=ErrorKind.NODE_NOT_FOUND)
        return str(node.id)

    get_node_id_async = async_twin(get_node_id)

    def chunk_type(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
        """Return the type of a chunk, which says where it is stored.

        Parameters
        ----------
        array_path
            The path of the array.
        chunk_coordinates
            The coordinates of the chunk in the chunk grid.

        Returns
        -------
        ChunkType
            The chunk type; `uninitialized` if the chunk was never written.
        """
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
        """Iterate over the coordinates of all existing chunks of an array, in order.

        Parameters
        ----------
        array_path
            The path of the array.
        batch_size
            The number of coordinates to convert to Python integers at a time.

        Yields
        ------
        tuple of int
            The coordinates of a chunk.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        node = self._workspace.array(validate(array_path))
        coords = await run_in_thread(lambda: self._workspace.chunk_coords(node))
        for start in range(0, len(coords), batch_size):
            for row in coords[start : start + batch_size].tolist():
                yield tuple(row)

    def all_virtual_chunk_locations(self) -> list[str]:
        """Return the URLs of all virtual chunks, ordered by array and chunk coordinates.

        Returns
        -------
        list of str
            One URL per chunk, so a file with several chunks occurs several times.
        """
        return list_locations(self._workspace, self._assets.virtual.containers)

    all_virtual_chunk_locations_async = async_twin(all_virtual_chunk_locations)

    def materialize(self, path: str, region: Region | None = None) -> int:
        """Copy virtual chunks of an array into the repository. A commit makes the new references permanent.

        Parameters
        ----------
        path
            The path of the array.
        region
            The elements whose chunks are copied: a slice or index per dimension, or a mapping from dimension
            names to slices or indices. By default, all chunks are copied.

        Returns
        -------
        int
            The number of chunks that were copied.

        Raises
        ------
        StorageError
            If a file is not the one that was recorded. In this case, no reference is changed.
        """
        self._require_edits()
        node = self._workspace.array(validate(path))
        return materialize(self._workspace, node, region, self._executor)

    materialize_async = async_twin(materialize)

    def shift_array(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Shift all chunks of an array by an offset, without copying data.

        Chunks that leave the grid are dropped. Positions that no chunk moved to read as the fill value.

        Parameters
        ----------
        array_path
            The path of the array.
        chunk_offset
            The number of chunks to shift by along each dimension. Positive offsets move chunks to higher
            indices.
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
        """Move chunks of an array to new coordinates, without copying data.

        Parameters
        ----------
        array_path
            The path of the array.
        forward
            A function that returns the new coordinates of a chunk, or None to leave it unchanged.
        backward
            A function that returns the previous coordinates of a chunk. With this function, existing chunks
            to which no chunk is moved read as the fill value. Without it, they keep their data.

        Raises
        ------
        InvalidInputError
            If new coordinates are outside the chunk grid. In this case, nothing is changed.
        """
        self._require_edits()
        node = self._workspace.array(validate(array_path))
        reindex(self._workspace, node, forward, backward)

    # Forks

    def fork(self) -> ForkSession:
        """Fork the session for another thread, process or machine. Use `merge` to merge it back.

        The fork contains the uncommitted changes of this session, which are first written as a snapshot that
        is not part of any history. It does not see later changes of this session.

        Returns
        -------
        ForkSession
            A session that can be pickled.

        Raises
        ------
        SessionStateError
            If the session is read-only.
        """
        if self.read_only:
            raise SessionStateError(
                "cannot fork a read-only session; to read in another process, pickle the session",
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
        """Merge the changes of forks of this session in the given order. Either all forks are merged or none.

        If two forks wrote the same chunk, the later fork wins. Merging a fork a second time changes nothing,
        unless the fork has changed in between.

        Parameters
        ----------
        *others
            The forks.

        Raises
        ------
        SessionStateError
            With the kind `merge-failed` if forks changed the same metadata in different ways, deleted a node
            that another fork changed, or created different nodes at the same path, or if a fork is based on a
            different snapshot.
        """
        self._merge_receipts(others)

    merge_async = async_twin(merge)

    def _merge_receipts(self, forks: Iterable[ForkSession | bytes]) -> None:
        """Merge forks, or receipts of forks as bytes; see `icefloe.distributed.receipt`."""
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
            # The chunks of forks may be older than this session. A garbage collection that ran in between
            # must not go unnoticed, so the earliest position counts.
            self._since = min([self._since, *(receipt.since for receipt in receipts)])
            merge_receipts(self._workspace, self._origin, receipts)

    def _check_mergeable(self, fork: object) -> None:
        if not isinstance(fork, Session):
            raise TypeError(f"merge expects forks (Session.fork), not '{type(fork).__name__}'")
        if fork.mode is SessionMode.rearrange:
            raise SessionStateError(
                "a rearrange session cannot be merged; commit it", kind=ErrorKind.REARRANGE_SESSION_ONLY
            )
        if fork.read_only:
            raise SessionStateError(
                "a read-only session cannot be merged; merge forks (Session.fork)",
                kind=ErrorKind.MERGE_NOT_ALLOWED,
            )

    @property
    def _origin(self) -> SnapshotId:
        """The committed snapshot that this session's changes are compared with."""
        return self._base_id

    def _receipt(self) -> Receipt:
        """Return the uncommitted changes, and the snapshot that they are based on."""
        place, copy = identify_repository(self._assets.storage)
        with self._workspace.exclusive():
            changes = self._workspace.changes.copy()
        return Receipt(self._origin, self._base_id, place, copy, self._since, changes)

    # Commits

    @trace_calls
    def commit(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
        collect_statistics: bool = False,
    ) -> str:
        """Commit the changes as a new snapshot on the branch.

        Parameters
        ----------
        message
            The commit message.
        metadata
            Metadata of the commit.
        rebase_with
            A solver for rebasing if the branch has moved; by default, the one set by `rebase_by_default`.
            Without a solver, the commit fails.
        rebase_tries
            The maximum number of rebases.
        allow_empty
            Commit even if there are no changes.
        collect_statistics
            If True, read the changed chunks after the commit and record their statistics.

        Returns
        -------
        str
            The id of the new snapshot.

        Raises
        ------
        ConflictError
            If the branch has moved.
        RebaseFailedError
            If the solver could not resolve a conflict.
        SessionStateError
            If there are no changes, or the session cannot commit.
        """
        with self._committing(self._require_branch):
            if not allow_empty and not self.has_uncommitted_changes:
                raise _no_changes()
            self._collects_statistics |= collect_statistics
            rebase_with = rebase_with or self._solver
            if self._groups is not None and self._mode is SessionMode.writable:
                return self._commit_in_group(self._groups, message, metadata, rebase_with)
            if rebase_with is None:
                return self._commit(message, metadata)
            return self._commit_rebasing(message, metadata, rebase_with, rebase_tries)

    commit_async = async_twin(commit)

    @trace_calls
    def commit_once(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        *,
        key: CommitKey,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
    ) -> str | None:
        """Commit the changes unless the branch already contains a commit with the same key.

        The key is stored in the snapshot. Each attempt to commit looks it up in the snapshot that the commit
        would follow, so two jobs with the same key produce only one commit, whatever the solver. Keys survive
        expiration, squashing, retention and overwriting all data. A reset forgets the keys of dropped
        commits, and a merge combines the keys of both sides.

        Parameters
        ----------
        message
            The commit message.
        metadata
            Metadata of the commit.
        key
            The application and version that identify this commit, and optionally a digest of the data.
        rebase_with
            A solver for rebasing if the branch has moved; by default, the one set by `rebase_by_default`.
            Without a solver, the commit fails.
        rebase_tries
            The maximum number of rebases.
        allow_empty
            Commit the key even if there are no other changes.

        Returns
        -------
        str or None
            The id of the new snapshot; None if the branch already contains the key, in which case the session
            keeps its changes.

        Raises
        ------
        ConflictError
            If the branch has moved.
        RebaseFailedError
            If the solver could not resolve a conflict.
        """
        with self._committing(self._require_branch):
            if not allow_empty and not self.has_uncommitted_changes:
                raise _no_changes()
            rebase_with = rebase_with or self._solver
            try:
                if self._groups is not None and self._mode is SessionMode.writable:
                    return self._commit_in_group(self._groups, message, metadata, rebase_with, key)
                if rebase_with is None:
                    return self._commit(message, metadata, key=key)
                return self._commit_rebasing(message, metadata, rebase_with, rebase_tries, key)
            except ConflictError:
                # Exactly once: the conflicting commit may come from another attempt of the same job.
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
            if attempts:  # no backoff after the first attempt, because the branch had already moved before it
                give_way(attempts, time.monotonic() - began)
            self.rebase(rebase_with)
        return self._commit(message, metadata, max(rebase_tries, 0), key)

    @contextmanager
    def _committing(self, require: Callable[[], object]) -> Iterator[None]:
        """Block changes and commits by other threads, if `require` allows the operation."""
        require()  # fail early, before waiting for another thread
        with self._workspace.committing():
            require()  # again, because another thread may have committed in the meantime
            yield

    def _commit(
        self,
        message: str,
        metadata: Mapping[str, Any] | None,
        rebase_attempts: int | None = None,
        key: CommitKey | None = None,
    ) -> str:
        branch, base = self._require_branch(), self._workspace.base
        self._refs.check_tip(branch, base.id)  # before writing files that would become garbage
        if key is not None and has_key(base, key):
            raise _KeyFoundError
        with nullcontext() if key is None else add_key_for_attempt(self._workspace, key):
            return self._publish(
                lambda: self._flush(
                    message,
                    metadata,
                    base.id,
                    rebase_attempts=rebase_attempts,
                    meanwhile=self._refs.back_up_early,
                ),
                lambda made: self._refs.advance(
                    branch, base.id, make_snapshot_info(made, base.id), self._since
                ),
            )

    def _commit_in_group(
        self,
        groups: GroupCommits,
        message: str,
        metadata: Mapping[str, Any] | None,
        solver: ConflictSolver | None,
        key: CommitKey | None = None,
    ) -> str:
        """Commit together with other sessions of this process."""
        from icefloe.core.merge.group_commit import GroupCommitRequest

        branch, base = self._require_branch(), self._workspace.base
        private = Workspace(base, self._assets, self._workspace.changes.copy())
        properties = self._properties(message, metadata)
        request = GroupCommitRequest(private, message, properties, key, solver, self._since)

        def land(combined: Workspace, text: str, record: Mapping[str, Any], since: int) -> Snapshot:
            session = Session.__new__(Session)  # a session of the same repository with all changes
            its = {"_workspace": combined, "_since": since, "_commit_metadata": {}}
            session.__dict__.update(self.__dict__, **its, _collects_statistics=False)
            session._commit(text, record)
            return session._workspace.base

        made = groups.commit(branch, request, self._refs, self._executor, land)
        if made is None:
            raise _KeyFoundError
        return self._finish_commit(made)

    def rebase_by_default(self, solver: ConflictSolver | None) -> None:
        """Set the solver for commits that do not specify one.

        Parameters
        ----------
        solver
            The solver. With None, commits fail if the branch has moved.
        """
        self._solver = solver

    @trace_calls
    def rebase(self, solver: ConflictSolver) -> None:
        """Move the session to the tip of its branch, applying its changes on top of commits made in the
        meantime.

        Parameters
        ----------
        solver
            The solver that decides which side wins in a conflict.

        Raises
        ------
        RebaseFailedError
            If the solver could not resolve a conflict with a commit. The session then keeps all its changes,
            and is based on the commit before the conflicting one.
        """
        from icefloe.core.merge.rebase import (
            check_solver,
            rebase,
        )  # imported on demand: readers do not need it

        with self._committing(self._require_branch):
            check_solver(solver)
            rebase(self._workspace, self._refs, self._require_branch(), solver, self._executor)

    rebase_async = async_twin(rebase)

    @trace_calls
    def amend(
        self, message: str, *, metadata: dict[str, Any] | None = None, allow_empty: bool = False
    ) -> str:
        """Replace the tip of the branch with a snapshot that also contains this session's changes.

        Parameters
        ----------
        message
            The commit message.
        metadata
            Metadata of the commit.
        allow_empty
            Amend even if there are no changes.

        Returns
        -------
        str
            The id of the new snapshot.

        Raises
        ------
        ConflictError
            If the branch has moved.
        SessionStateError
            If there are no changes, or the tip is the first snapshot.
        FormatError
            If the repository has format version 1.
        """
        if not self._refs.spec.refs_in_repo_info:
            raise make_unsupported_error("amend", self._refs.spec)
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
        # Without changes, the log, which may be long, is copied without reading it.
        rearranges = self._mode is SessionMode.rearrange
        unread = (
            self._assets.read_sealed_log(base.id)
            if not rearranges and not self.has_uncommitted_changes
            else None
        )
        earlier = self._assets.transaction_log(base.id) if unread is None else None
        if not rearranges and (unread.has_moves if unread is not None else earlier and earlier.moved_nodes):
            raise SessionStateError(
                "a commit that moved nodes can only be amended in a rearrange session",
                kind=ErrorKind.REARRANGE_SESSION_ONLY,
            )
        from icefloe.core.merge.branches import with_merges_of  # imported on demand: readers do not need it

        parent, logs = tip.parent_id, tip.pruned_ancestor_tx_logs
        properties = with_merges_of(tip, normalize_metadata(metadata or {}))

        def write() -> Snapshot:
            if unread is None:
                return self._flush(message, properties, parent, earlier)
            own = self._properties(message, properties)
            return reword(self._assets, base, message, own, parent, unread)

        def move(made: Snapshot) -> None:
            info = replace(make_snapshot_info(made, parent), pruned_ancestor_tx_logs=logs)
            self._refs.amend(branch, base.id, info, self._since)

        return self._publish(write, move)

    @trace_calls
    def flush(self, message: str, *, metadata: dict[str, Any] | None = None) -> str:
        """Write the changes as a snapshot without a branch.

        Parameters
        ----------
        message
            The message of the snapshot.
        metadata
            Metadata of the snapshot.

        Returns
        -------
        str
            The id of the new snapshot.

        Raises
        ------
        ReadOnlyError
            If the session or the repository is read-only.
        """
        with self._committing(self._require_flushable):
            self._check_repository_writable()
            base = self._workspace.base
            return self._publish(
                lambda: self._flush(message, metadata, base.id),
                lambda made: self._refs.detach(make_snapshot_info(made, base.id), self._since),
            )

    flush_async = async_twin(flush)

    def _flush(
        self,
        message: str,
        metadata: Mapping[str, Any] | None,
        parent_id: SnapshotId,
        earlier: TransactionLog | None = None,
        rebase_attempts: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Snapshot:
        properties = self._properties(message, metadata)
        if rebase_attempts is not None:
            known = properties.get(OWN_METADATA)
            known = known if isinstance(known, dict) else {}
            properties[OWN_METADATA] = {**known, "rebase_attempts": rebase_attempts}
        if self._mode is SessionMode.rearrange:
            check_flag(self._refs.feature_flags(), _MOVE_NODE)
        keep_keys(self._workspace)
        made = flush(self._workspace, message, properties, self._executor, parent_id, earlier, meanwhile)
        return made.snapshot

    def _properties(self, message: str, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        _check_message(message)
        return {**self._commit_metadata, **normalize_metadata(metadata or {})}

    def _publish(self, write: Callable[[], Snapshot], move: Callable[[Snapshot], None]) -> str:
        """Write a snapshot and move the ref. If a garbage collection ran in the meantime, copy the chunks and
        try again.

        The order of the two steps matters: a collection records itself before it deletes anything, and the
        update of the ref fails if a collection was recorded after this session started. So either the
        collection sees the new ref, or this session sees the collection.
        """
        while True:
            snapshot = write()
            if not self._refs.spec.refs_in_repo_info:
                # Collections of other programs leave no trace in version 1. This check cannot close the race,
                # because a collection may start right afterwards, but it finds chunks that are already gone.
                check_presence(self._workspace, self._executor)
            try:
                move(snapshot)
            except CollectedError:
                since = self._refs.now()
                rescue(self._workspace, self._executor)
                # Only after the rescue: if it failed, the next commit must notice the collection again.
                self._since = since
                continue
            return self._finish_commit(snapshot)

    def _finish_commit(self, snapshot: Snapshot) -> str:
        """Turn the session into a read-only view of the new snapshot."""
        changes = self._workspace.changes
        changed = {*changes.created, *changes.updated, *(delta.path for delta in changes.chunks.values())}
        self._workspace.close()
        self._mode = SessionMode.readonly
        self._branch = None
        self._workspace = Workspace(snapshot, self._assets, read_only=True)
        if self._collects_statistics and self._after_commit is not None:
            self._after_commit(self, sorted(changed))
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
                "a rearrange session can only move nodes; open a session with Repository.writable_session",
                kind=ErrorKind.REARRANGE_SESSION_ONLY,
            )

    def _require_branch(self) -> str:
        if self.read_only or self._branch is None:
            raise SessionStateError(
                "only a writable session on a branch can commit; open one with Repository.writable_session",
                kind=ErrorKind.COMMIT_NOT_ALLOWED,
            )
        return self._branch


class ForkSession(Session):
    """A fork of a session for one of several writers, which is pickled, written to, sent back and merged.

    A fork cannot commit. In another process, it opens its storage on the first read or write.

    Parameters
    ----------
    origin
        The snapshot that the forked session is based on.
    **session
        The arguments of `Session`.
    """

    def __init__(self, *, origin: SnapshotId, **session: Any) -> None:
        super().__init__(**session)
        self._forked_from = origin

    def _receipt(self) -> Receipt:
        """Return the changes, after making them durable, because another process will commit them."""
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
        """Write the references that were set in an array to manifests now, before the commit.

        The receipt of the fork then contains the ids and extents of manifests instead of references. A commit
        uses a manifest unchanged if nothing else was changed in its part of the chunk grid, which is split as
        configured.

        Parameters
        ----------
        path
            The path of the array.
        window
            A window of the chunk grid, as ranges of chunks per dimension. References outside the window are
            dropped.

        Returns
        -------
        int
            The number of manifests.
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
            f"the message {message!r} contains lone surrogates, which cannot be encoded as UTF-8",
            kind=ErrorKind.BAD_METADATA,
        ) from None


def _no_changes() -> SessionStateError:
    return SessionStateError(
        "cannot commit, no changes made to the session; pass allow_empty=True to commit anyway",
        kind=ErrorKind.NO_CHANGES_TO_COMMIT,
    )
