"""Repositories: open or create one, look through its history, move its branches and tags, start sessions."""

from __future__ import annotations

import copy
import logging
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from icefloe._internal.concurrency import (
    AsyncCloseableIterator,
    async_class_twin,
    async_static_twin,
    async_twin,
)
from icefloe._internal.executor import Executor, ThreadExecutor
from icefloe._internal.ids import ManifestId, SnapshotId, encode_column
from icefloe._internal.redaction import redact
from icefloe._internal.telemetry import traced
from icefloe._internal.times import to_microseconds
from icefloe.config import Attribution, RepositoryConfig, StorageSettings
from icefloe.config.display import Shown, Tree, qualified
from icefloe.core.handle import Handle
from icefloe.core.open import (
    LAYOUT_V1,
    LAYOUT_V2,
    Layout,
    Opened,
    containers_of,
    find_layout,
    open_parts,
    parts,
)
from icefloe.core.refs.base import read_only_format, unsupported
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.core.refs.v2 import FLAG_NAMES, check_flag, check_writable
from icefloe.core.virtual_chunks.range_reads import ReadLimits
from icefloe.core.virtual_chunks.read import Authorized
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    Hint,
    InvalidInputError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.metadata import plain_metadata
from icefloe.format.spec import V1, Spec
from icefloe.history import pages as history_pages
from icefloe.history import snapshots as history
from icefloe.history.snapshots import any_ref, public_snapshot, public_status, stored_status
from icefloe.legacy.layout import ALL_LAYOUTS
from icefloe.snapshots import Diff, ManifestFileInfo, SnapshotInfo
from icefloe.storage.base import Storage
from icefloe.types import FeatureFlag, RepoStatus, SessionMode, SpecVersion

if TYPE_CHECKING:
    from icefloe._internal.executor import Progress
    from icefloe._internal.table import Table
    from icefloe.ancestry_graph import AncestryGraph
    from icefloe.conflicts import ConflictSolver, MergeResult, MergeStrategy
    from icefloe.core.merge.branches import Branching
    from icefloe.credentials import AnyCredential
    from icefloe.maintenance.clone import CloneReport
    from icefloe.maintenance.history import History
    from icefloe.maintenance.integrity.findings import VerifyLevel, VerifyReport
    from icefloe.maintenance.integrity.repair import ReadChunk, RepairReport
    from icefloe.maintenance.retention import RetentionPolicy, RetentionReport
    from icefloe.maintenance.storage_stats import ReclaimableStorage
    from icefloe.ops import ChunkStorageStats, GCSummary, Update
    from icefloe.session import Session
    from icefloe.store import IcechunkStore

__all__ = ["Repository", "upgrade_icechunk_repository"]

_logger = logging.getLogger(__name__)
_MOVE_NODE = 3
_MIB = 1 << 20
_THREADS = 64


class Repository(Shown):
    """A versioned hierarchy of Zarr groups and arrays.

    Made by `create`, `open` and `open_or_create`. Pickles, with the credentials of its storage in the pickle.
    """

    def __init__(
        self,
        opened: Opened,
        handle: Handle,
        attribution: Attribution | None = None,
    ) -> None:
        """Not for users: see `create`, `open` and `open_or_create`."""
        self._handle = handle
        self._attribution = attribution or Attribution()
        self._commit_metadata: dict[str, Any] = {}
        self._executor: Executor | None = None
        self._opened = opened
        self._refs = opened.refs
        self._assets = opened.assets

    @classmethod
    def _of(
        cls,
        opened: Opened,
        storage: Storage,
        authorized: Authorized,
        attribution: Attribution | None,
        trusted: frozenset[str],
    ) -> Repository:
        handle = Handle(storage, opened.layout, opened.config, authorized, trusted)
        return cls(opened, handle, attribution)

    def __getstate__(self) -> dict[str, Any]:
        derived = {"_opened", "_refs", "_assets", "_config_in_effect", "_executor"}
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._executor = None
        self._opened = self._handle.open()
        self._refs = self._opened.refs
        self._assets = self._opened.assets

    # Opening and creating

    @classmethod
    @traced
    def create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        spec_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
    ) -> Repository:
        """Start a repository in an empty place.

        A configuration other than the default is stored in it. `check_clean_root=False` lets other objects be
        there. Raises InvalidInputError where it is not empty, ConflictError where there is a repository.
        """
        from icefloe.core.create import create_parts

        layout = _layout(spec_version)
        _logger.debug("Creating Repository at %s", storage.describe())
        place = storage if attribution is None else storage.with_attribution(attribution)
        authorized = _checked_authorization(authorize_virtual_chunk_access)
        opened = create_parts(
            place,
            layout,
            copy.deepcopy(config),
            authorized,
            check_clean_root=check_clean_root,
            layouts=ALL_LAYOUTS,
        )
        return cls._of(opened, place, authorized, attribution, containers_of(config))

    create_async = async_class_twin(create)

    @classmethod
    @traced
    def open(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        attribution: Attribution | None = None,
    ) -> Repository:
        """The repository at a place, with `config` over the configuration stored in it.

        Raises RepositoryNotFoundError where there is none.
        """
        _logger.debug("Opening Repository at %s", storage.describe())
        place = storage if attribution is None else storage.with_attribution(attribution)
        authorized = _checked_authorization(authorize_virtual_chunk_access)
        opened = open_parts(place, ALL_LAYOUTS, config, authorized)
        return cls._of(opened, place, authorized, attribution, containers_of(config))

    open_async = async_class_twin(open)

    @classmethod
    def open_or_create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        create_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
    ) -> Repository:
        """The repository at a place, started if there is none."""
        _layout(create_version)
        if find_layout(storage, ALL_LAYOUTS) is None:
            try:
                return cls.create(
                    storage,
                    config,
                    authorize_virtual_chunk_access,
                    create_version,
                    check_clean_root,
                    attribution,
                )
            except (ConflictError, InvalidInputError):
                if find_layout(storage, ALL_LAYOUTS) is None:  # no other writer was faster
                    raise
        return cls.open(storage, config, authorize_virtual_chunk_access, attribution)

    open_or_create_async = async_class_twin(open_or_create)

    @staticmethod
    def exists(storage: Storage, storage_settings: StorageSettings | None = None) -> bool:
        """Whether there is a repository at a place."""
        return find_layout(_with(storage, storage_settings), ALL_LAYOUTS) is not None

    exists_async = async_static_twin(exists)

    @staticmethod
    def fetch_spec_version(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> SpecVersion | None:
        """The version of the format that a repository has; None where there is none.

        Formats before version 1 count as version 1: there is no other word for them in `SpecVersion`.
        """
        layout = find_layout(_with(storage, storage_settings), ALL_LAYOUTS)
        return None if layout is None else _public_version(layout.spec)

    fetch_spec_version_async = async_static_twin(fetch_spec_version)

    @staticmethod
    def fetch_config(storage: Storage) -> RepositoryConfig | None:
        """The configuration stored in a repository; None where it has none."""
        opened = open_parts(storage, ALL_LAYOUTS, None)
        return None if opened.refs.config() is None else opened.config

    fetch_config_async = async_static_twin(fetch_config)

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
    ) -> Repository:
        """The same repository under a changed configuration, or with other permissions; this one stays."""
        replaced = config is not None and config.virtual_chunk_containers is not None
        trusted = containers_of(config) if replaced else self._handle.trusted
        return self._reopen(config, authorize_virtual_chunk_access, trusted)

    def _reopen(
        self,
        config: RepositoryConfig | None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None,
        trusted: frozenset[str],
    ) -> Repository:
        """Reopen, and send credentials to the endpoints of the containers with `trusted` url prefixes."""
        merged = copy.deepcopy(self._opened.config)
        if config is not None:
            merged = merged.merge(config)
        authorized = self._handle.authorized
        if authorize_virtual_chunk_access is not None:
            authorized = _checked_authorization(authorize_virtual_chunk_access)
        opened = parts(self._handle.storage, self._handle.layout, merged, authorized, trusted)
        return type(self)._of(opened, self._handle.storage, authorized, self._attribution, trusted)

    reopen_async = async_twin(reopen)

    # What it is

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the configuration in effect; change it with `reopen`."""
        return copy.deepcopy(self._config_in_effect)

    @cached_property
    def _config_in_effect(self) -> RepositoryConfig:
        config = copy.deepcopy(self._opened.config)
        config.storage = self._handle.storage.default_settings().merge(config.storage or StorageSettings())
        return config

    @property
    def storage(self) -> Storage:
        """Where the repository is kept."""
        return self._handle.storage

    @property
    def attribution(self) -> Attribution:
        """What requests say of their sender."""
        return self._attribution

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """The url prefixes below which virtual chunks may be read."""
        return set(self._handle.authorized)

    @property
    def virtual_read_limits(self) -> ReadLimits:
        """How far reads of neighbouring virtual chunks of one file are joined; may be set.

        Kept in this object, its sessions and their pickles, not in the repository.
        """
        return self._handle.read_limits

    @virtual_read_limits.setter
    def virtual_read_limits(self, limits: ReadLimits) -> None:
        self._handle = replace(self._handle, read_limits=limits, token=uuid.uuid4().hex)
        self._assets.virtual.limits = limits

    @property
    def spec_version(self) -> SpecVersion:
        """The version of the format; those before version 1, which are only read, count as version 1."""
        return _public_version(self._refs.spec)

    def tree(self) -> Tree:
        # docstring inherited
        title = f"{qualified('', 'Repository')} ({self.spec_version.name})"
        return Tree(title, (("storage", self._handle.storage.tree()), ("config", "<RepositoryConfig ...>")))

    def _repr_html_(self) -> str:
        from icefloe.history.overview import overview_html

        return overview_html(self._refs, self.storage)

    def save_config(self) -> None:
        """Store the configuration in effect in the repository."""
        self._refs.save_config(self._opened.config.to_plain())

    save_config_async = async_twin(save_config)

    def set_default_commit_metadata(self, metadata: dict[str, Any]) -> None:
        """Metadata for the commits of all sessions to come; kept in this object alone."""
        self._commit_metadata = plain_metadata(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """What `set_default_commit_metadata` was given."""
        return copy.deepcopy(self._commit_metadata)

    def get_metadata(self) -> dict[str, Any]:
        """The repository's own metadata."""
        return dict(self._refs.metadata())

    get_metadata_async = async_twin(get_metadata)

    @property
    def metadata(self) -> dict[str, Any]:
        """The repository's own metadata."""
        return self.get_metadata()

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the repository's metadata."""
        self._refs.set_metadata(plain_metadata(metadata))

    set_metadata_async = async_twin(set_metadata)

    def update_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Merge into the repository's metadata, name by name; the result."""
        return dict(self._refs.update_metadata(plain_metadata(metadata)))

    update_metadata_async = async_twin(update_metadata)

    def get_status(self) -> RepoStatus:
        """Whether the repository may be written."""
        self._require_repo_info("a status of the repository")
        return public_status(self._refs.status())

    get_status_async = async_twin(get_status)

    @property
    def status(self) -> RepoStatus:
        """Whether the repository may be written."""
        return self.get_status()

    def set_status(self, status: RepoStatus) -> None:
        """Put the repository online, or make it read-only for everybody."""
        self._refs.set_status(stored_status(status))

    set_status_async = async_twin(set_status)

    def feature_flags(self) -> list[FeatureFlag]:
        """All feature flags, by number."""
        self._require_repo_info("a feature flag")
        settings = self._refs.feature_flags()
        return [FeatureFlag(id, name, True, settings.get(id)) for id, name in sorted(FLAG_NAMES.items())]

    feature_flags_async = async_twin(feature_flags)

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        """The feature flags that are on."""
        return [flag for flag in self.feature_flags() if flag.enabled]

    enabled_feature_flags_async = async_twin(enabled_feature_flags)

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        """The feature flags that are off."""
        return [flag for flag in self.feature_flags() if not flag.enabled]

    disabled_feature_flags_async = async_twin(disabled_feature_flags)

    def set_feature_flag(self, name: str, setting: bool | None) -> None:
        """Switch a feature flag, or put it back to its default."""
        self._require_repo_info("a feature flag")
        numbers = {known: id for id, known in FLAG_NAMES.items()}
        if name not in numbers:
            known = ", ".join(sorted(numbers))
            raise InvalidInputError(
                f"there is no feature flag {name!r}; there are {known}", kind=ErrorKind.INVALID_FEATURE_FLAG
            )
        self._refs.set_feature_flag(numbers[name], setting)

    set_feature_flag_async = async_twin(set_feature_flag)

    def _require_repo_info(self, what: str) -> None:
        if not self._refs.spec.refs_in_repo_info:
            raise unsupported(what, self._refs.spec)

    # Branches and tags

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Start a branch at a snapshot."""
        self._refs.create_branch(branch, SnapshotId.parse(snapshot_id))

    create_branch_async = async_twin(create_branch)

    def list_branches(self) -> set[str]:
        """The names of all branches."""
        return set(self._refs.branches())

    list_branches_async = async_twin(list_branches)

    def lookup_branch(self, branch: str) -> str:
        """The snapshot at the tip of a branch."""
        return str(self._refs.branch(branch))

    lookup_branch_async = async_twin(lookup_branch)

    def reset_branch(self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None) -> None:
        """Point a branch at another snapshot; given where it should be now, only from there."""
        expected = None if from_snapshot_id is None else SnapshotId.parse(from_snapshot_id)
        self._refs.reset_branch(branch, SnapshotId.parse(snapshot_id), expected)

    reset_branch_async = async_twin(reset_branch)

    def delete_branch(self, branch: str) -> None:
        """Remove a branch. Its snapshots stay until they are collected."""
        self._refs.delete_branch(branch)

    delete_branch_async = async_twin(delete_branch)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Name a snapshot for good. A tag never moves."""
        self._refs.create_tag(tag, SnapshotId.parse(snapshot_id))

    create_tag_async = async_twin(create_tag)

    def list_tags(self) -> set[str]:
        """The names of all tags."""
        return set(self._refs.tags())

    list_tags_async = async_twin(list_tags)

    def lookup_tag(self, tag: str) -> str:
        """The snapshot that a tag names."""
        return str(self._refs.tag(tag))

    lookup_tag_async = async_twin(lookup_tag)

    def delete_tag(self, tag: str) -> None:
        """Remove a tag. Its name can never be used again."""
        self._refs.delete_tag(tag)

    delete_tag_async = async_twin(delete_tag)

    # Merging

    def merge(
        self,
        source: str,
        into: str,
        *,
        message: str,
        metadata: dict[str, Any] | None = None,
        strategy: MergeStrategy = "fail",
        dry_run: bool = False,
    ) -> MergeResult:
        """Merge a branch, tag or snapshot into a branch.

        If only the source has new commits, the branch moves to it. Otherwise both are compared, chunk by
        chunk, with the snapshot where they parted, and the changes of the source become one commit.

        Parameters
        ----------
        source
            The branch, tag or snapshot id to merge.
        into
            The branch to merge into.
        message, metadata
            The message and metadata of the commit, if one is made.
        strategy
            Decides where both sides changed the same thing in different ways: "ours" keeps the version of the
            branch, "theirs" takes that of the source, "fail" raises MergeConflictError.
        dry_run
            Write nothing and raise nothing for conflicts: only report what would happen.

        Returns
        -------
        MergeResult

        Raises
        ------
        MergeConflictError
            If there are conflicts and the strategy is "fail". Contains a table of the conflicts.
        """
        plain = plain_metadata(metadata or {})
        return self._branching().merge(
            any_ref(self._refs, source), into, message, strategy, dry_run=dry_run, metadata=plain
        )

    merge_async = async_twin(merge)

    def cherry_pick(
        self,
        snapshot_id: str,
        *,
        branch: str,
        message: str | None = None,
        strategy: MergeStrategy = "fail",
        dry_run: bool = False,
    ) -> MergeResult:
        """Apply the changes of one snapshot to a branch, as a new commit.

        Parameters
        ----------
        snapshot_id
            The snapshot whose changes are applied; a branch or tag stands for its snapshot.
        branch
            The branch to commit to.
        message
            The message of the commit; that of the snapshot by default.
        strategy, dry_run
            As in `merge`.

        Returns
        -------
        MergeResult

        Raises
        ------
        MergeConflictError
            If there are conflicts and the strategy is "fail".
        """
        return self._branching().cherry_pick(
            any_ref(self._refs, snapshot_id), branch, message, strategy, dry_run=dry_run
        )

    cherry_pick_async = async_twin(cherry_pick)

    def revert(
        self,
        snapshot_id: str,
        *,
        branch: str,
        message: str | None = None,
        strategy: MergeStrategy = "fail",
        dry_run: bool = False,
    ) -> MergeResult:
        """Undo the changes of one snapshot in the history of a branch, as a new commit.

        Parameters
        ----------
        snapshot_id
            The snapshot whose changes are undone; a branch or tag stands for its snapshot.
        branch
            The branch to commit to.
        message
            The message of the commit.
        strategy
            As in `merge`. A change that was changed again since is a conflict: "ours" leaves it as it is,
            "theirs" undoes it too.
        dry_run
            As in `merge`.

        Returns
        -------
        MergeResult

        Raises
        ------
        MergeConflictError
            If there are conflicts and the strategy is "fail".
        """
        undone = any_ref(self._refs, snapshot_id)
        return self._branching().revert(undone, branch, message, strategy, dry_run=dry_run)

    revert_async = async_twin(revert)

    def squash(self, snapshot_id: str, *, branch: str, message: str | None = None) -> str:
        """Replace all snapshots of a branch after a given one by a single snapshot.

        The replaced snapshots stay until garbage collection, and tags and other branches keep them. Sessions
        that started from one of them cannot be rebased any more.

        Parameters
        ----------
        snapshot_id
            The last snapshot that stays as it is; a branch or tag stands for its snapshot.
        branch
            The branch to squash.
        message
            The message of the new snapshot; all replaced messages by default.

        Returns
        -------
        str
            The id of the new snapshot.
        """
        return str(self._branching().squash(branch, any_ref(self._refs, snapshot_id), message))

    squash_async = async_twin(squash)

    def _branching(self) -> Branching:
        from icefloe.core.merge.branches import Branching  # most who open a repository do without

        executor = ThreadExecutor(self._assets.config.max_concurrent_requests)
        return Branching(self._refs, self._assets, executor, self._commit_metadata)

    # History

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """What is known of a snapshot."""
        return public_snapshot(self._refs.snapshot(self._snapshot_id(snapshot_id)))

    lookup_snapshot_async = async_twin(lookup_snapshot)

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifests of a snapshot."""
        snapshot = self._assets.snapshot(self._snapshot_id(snapshot_id))
        return [ManifestFileInfo(str(i.id), i.size_bytes, i.num_chunk_refs) for i in snapshot.manifest_files]

    list_manifest_files_async = async_twin(list_manifest_files)

    def ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> AsyncCloseableIterator[SnapshotInfo]:
        """A snapshot and its ancestors, newest first."""
        tip = self._resolve(branch, tag, snapshot_id)
        return AsyncCloseableIterator(history_pages.ancestry(self._refs, tip))

    def async_ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> AsyncCloseableIterator[SnapshotInfo]:
        """The same for `async for`."""
        return self.ancestry(branch=branch, tag=tag, snapshot_id=snapshot_id)

    def ancestry_graph(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
    ) -> AncestryGraph:
        """The drawn history of a snapshot, or of all branches; `plain` without colours."""
        given = (branch, tag, snapshot_id)
        tip = None if given == (None, None, None) else self._resolve(*given)
        return history.draw(self._refs, tip, plain=plain)

    ancestry_graph_async = async_twin(ancestry_graph)

    def ops_log(self) -> AsyncCloseableIterator[Update]:
        """What was done to the repository, newest first."""
        self._require_repo_info("the ops log")
        from icefloe.history.ops import ops_log

        return AsyncCloseableIterator(ops_log(self._refs))

    def ops_log_async(self) -> AsyncCloseableIterator[Update]:
        """The same for `async for`."""
        return self.ops_log()

    def diff(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """What changed from one snapshot to a later one of the same history."""
        start = self._resolve(from_branch, from_tag, from_snapshot_id)
        end = self._resolve(to_branch, to_tag, to_snapshot_id)
        return history.diff_between(self._refs, self._assets, start, end)

    diff_async = async_twin(diff)

    # Looking inside

    def inspect_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """What the file of a snapshot holds."""
        from icefloe.history.inspect import inspect_snapshot

        return inspect_snapshot(self._assets, SnapshotId.parse(snapshot_id))

    inspect_snapshot_async = async_twin(inspect_snapshot)

    def inspect_repo_info(self) -> dict[str, Any]:
        """What the repo info file holds."""
        from icefloe.history.inspect import inspect_repo_info

        self._require_repo_info("the repo info file")
        return inspect_repo_info(self._assets)

    inspect_repo_info_async = async_twin(inspect_repo_info)

    def inspect_manifest(self, manifest_id: str) -> dict[str, Any]:
        """What the file of a manifest holds."""
        from icefloe.history.inspect import inspect_manifest

        return inspect_manifest(self._assets, ManifestId.parse(manifest_id))

    inspect_manifest_async = async_twin(inspect_manifest)

    def inspect_transaction_log(self, snapshot_id: str) -> dict[str, Any]:
        """What a snapshot changed, as its transaction log tells."""
        from icefloe.history.inspect import inspect_transaction_log

        id = SnapshotId.parse(snapshot_id)
        return inspect_transaction_log(self._assets, id, history.pruned_logs(self._refs, id))

    inspect_transaction_log_async = async_twin(inspect_transaction_log)

    # Sessions

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """A view of one snapshot: a branch's tip, or what that was at a time, a tag's, or any by its id."""
        if as_of is None:
            return self._session(SessionMode.readonly, self._resolve(branch, tag, snapshot_id), None)
        if branch is None:
            raise ValueError("as_of needs the name of a branch beside it")
        _check_one_ref(branch, tag, snapshot_id)
        id = history.at_time(self._refs, branch, to_microseconds(as_of))
        return self._session(SessionMode.readonly, id, None)

    readonly_session_async = async_twin(readonly_session)

    def writable_session(self, branch: str) -> Session:
        """A session whose changes can be committed to a branch."""
        return self._session(SessionMode.writable, self._refs.tip_to_write(branch), branch)

    writable_session_async = async_twin(writable_session)

    def writable_session_at(self, branch: str, snapshot_id: str) -> Session:
        """A session on what a branch was: a commit is compared with all that was committed since."""
        self._refs.tip_to_write(branch)
        return self._session(SessionMode.writable, self._snapshot_id(snapshot_id), branch)

    def rearrange_session(self, branch: str) -> Session:
        """A session that moves and renames nodes, and does nothing else."""
        if not self._refs.spec.moves:
            raise unsupported("moving nodes", self._refs.spec)
        tip = self._refs.tip_to_write(branch)
        check_flag(self._refs.feature_flags(), _MOVE_NODE)
        return self._session(SessionMode.rearrange, tip, branch)

    rearrange_session_async = async_twin(rearrange_session)

    @contextmanager
    def transaction(
        self,
        branch: str,
        *,
        message: str,
        metadata: dict[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
    ) -> Iterator[IcechunkStore]:
        """A store whose changes are committed at the end of the block, if it did not raise."""
        session = self.writable_session(branch)
        yield session.store
        session.commit(message, metadata, rebase_with=rebase_with, rebase_tries=rebase_tries)

    def _session(self, mode: SessionMode, id: SnapshotId, branch: str | None) -> Session:
        from icefloe.core.preload import preload
        from icefloe.session import Session

        snapshot = self._assets.snapshot(id)
        manifest = self._opened.config.manifest
        preload(self._assets, snapshot, asked_for=manifest is not None and manifest.preload is not None)
        return Session(
            mode=mode,
            snapshot=snapshot,
            branch=branch,
            refs=self._refs,
            assets=self._assets,
            config=self._config_in_effect,
            handle=self._handle,
            commit_metadata=self._commit_metadata,
        )

    # Maintenance. The modules that do it are loaded on demand: opening a repository must be quick.

    def with_executor(self, executor: Executor) -> Repository:
        """Return the same repository with another executor for its maintenance.

        Objects are read, copied and decoded on the executor, which may be Spark. Refs are moved and objects
        deleted from this process.

        Parameters
        ----------
        executor
            The executor to use instead of threads.

        Returns
        -------
        Repository
        """
        other = copy.copy(self)
        other._executor = executor
        return other

    @property
    def executor(self) -> Executor | None:
        """The executor that maintenance uses instead of threads, if one was given."""
        return self._executor

    def _threads(self, max_concurrent_requests: int = _THREADS) -> Executor:
        """Return the executor of this repository, or one with this many threads."""
        return self._executor or ThreadExecutor(max_concurrent_requests)

    def _readers(self, max_concurrent_requests: int = _THREADS) -> Executor:
        """Return the executor for small files: without threads if the storage answers at once."""
        return self._threads(1 if self._assets.storage.answers_at_once else max_concurrent_requests)

    def _require_present_format(self, what: str, *, writable: bool = False) -> None:
        """Refuse an operation on files of formats before version 1, or on a read-only repository."""
        if not self._refs.spec.writable:
            raise read_only_format(what)
        if writable:
            check_writable(self._refs.status())

    def _history(self, what: str) -> History:
        from icefloe.maintenance.history import load_history

        self._require_present_format(what)
        return load_history(self._refs)

    def expire_snapshots(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
    ) -> set[str]:
        """Remove the snapshots from the history that were written before a time.

        The tip of main stays, and so do the tips of branches and tags unless these may be deleted. The data
        stays until the next garbage collection.

        Parameters
        ----------
        older_than
            Remove snapshots that were written before this time.
        delete_expired_branches, delete_expired_tags
            Delete branches and tags whose snapshot is that old; never main.

        Returns
        -------
        set of str
            The ids of the removed snapshots.
        """
        from icefloe.maintenance.expire import Expiration, expire

        self._require_present_format("expiring snapshots", writable=True)
        rules = Expiration(to_microseconds(older_than), delete_expired_branches, delete_expired_tags)
        return set(encode_column(expire(self._refs, self._assets, rules)))

    expire_snapshots_async = async_twin(expire_snapshots)

    def retain(
        self,
        policy: RetentionPolicy | datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        dry_run: bool = False,
    ) -> RetentionReport:
        """Remove the snapshots from the history that a policy does not keep.

        The data stays until the next garbage collection. Each snapshot that stays gets its nearest ancestor
        that stays as its parent, and inherits the transaction logs of those in between. A time instead of a
        policy does what `expire_snapshots` does.

        Parameters
        ----------
        policy
            The rules for snapshots to keep, or a time: snapshots that were written before it are removed.
        delete_expired_branches, delete_expired_tags
            With a time: delete branches and tags whose snapshot is that old; never main.
        dry_run
            Only report what would be removed.

        Returns
        -------
        RetentionReport
        """
        from icefloe.maintenance.expire import Expiration
        from icefloe.maintenance.retention import retain

        self._require_present_format("retention", writable=not dry_run)
        if isinstance(policy, datetime):
            rules = Expiration(to_microseconds(policy), delete_expired_branches, delete_expired_tags)
            return retain(self._refs, self._assets, rules, dry_run=dry_run)
        if delete_expired_branches or delete_expired_tags:
            raise ValueError(
                "delete_expired_branches and delete_expired_tags need a time instead of a policy"
            )
        return retain(self._refs, self._assets, policy, dry_run=dry_run)

    retain_async = async_twin(retain)

    def estimate_expiration(
        self,
        *,
        older_than: datetime | None = None,
        policy: RetentionPolicy | None = None,
        kept: Iterable[str] | None = None,
    ) -> ReclaimableStorage:
        """Count the objects that a garbage collection could delete after an expiration.

        Parameters
        ----------
        older_than
            After `expire_snapshots` with this time.
        policy
            After `retain` with this policy.
        kept
            If only the snapshots with these ids stayed. Pass one of the three arguments.

        Returns
        -------
        ReclaimableStorage
        """
        from icefloe.maintenance.expire import Expiration
        from icefloe.maintenance.retention import kept_snapshots
        from icefloe.maintenance.storage_stats import reclaimable_storage

        if sum(each is not None for each in (older_than, policy, kept)) != 1:
            raise ValueError("give one of older_than, policy and kept")
        history = self._history("counting chunks")
        rules = policy if older_than is None else Expiration(to_microseconds(older_than))
        keep = kept_snapshots(history, rules or set(kept or ()))
        return reclaimable_storage(self._assets, history, keep, self._threads())

    estimate_expiration_async = async_twin(estimate_expiration)

    def garbage_collect(
        self,
        delete_object_older_than: datetime,
        *,
        dry_run: bool = False,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * _MIB,
        max_decoded_manifest_mem_bytes: int = 4096 * _MIB,
        max_concurrent_manifest_fetches: int = 500,
        max_concurrent_deletes: int = 10,
        max_consecutive_delete_failures: int = 50,
        max_concurrent_listings: int | None = None,
    ) -> GCSummary:
        """Delete objects that no snapshot needs and that were written before a time.

        Parameters
        ----------
        delete_object_older_than
            Choose a time before the oldest open session started: no snapshot needs its chunks yet.
        dry_run
            Only count what would be deleted.
        max_snapshots_in_memory, max_compressed_manifest_mem_bytes, max_decoded_manifest_mem_bytes
            Bounds for the files that are read at the same time.
        max_concurrent_manifest_fetches, max_concurrent_deletes, max_concurrent_listings
            Bounds for requests at the same time.
        max_consecutive_delete_failures
            Stop after this many failed deletions in a row.

        Returns
        -------
        GCSummary
        """
        from icefloe.maintenance.gc import Limits, collect
        from icefloe.maintenance.limits import check_positive, concurrent_reads

        threads = concurrent_reads(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        limits = {
            "max_concurrent_deletes": max_concurrent_deletes,
            "max_consecutive_delete_failures": max_consecutive_delete_failures,
        }
        check_positive(**limits, max_concurrent_listings=max_concurrent_listings)
        self._require_present_format("garbage collection", writable=True)
        cutoff, readers = to_microseconds(delete_object_older_than), self._readers(threads)
        return collect(self._refs, self._assets, cutoff, readers, dry_run=dry_run, limits=Limits(**limits))

    garbage_collect_async = async_twin(garbage_collect)

    def find_garbage(self, older_than: datetime) -> Table:
        """List the objects that `garbage_collect` would delete.

        Parameters
        ----------
        older_than
            List objects that were written before this time.

        Returns
        -------
        Table
            One row per object: object, kind, bytes, written_at, age_s, reason.
        """
        from icefloe.maintenance.gc import list_garbage

        self._require_present_format("looking for garbage")
        return list_garbage(self._refs, self._assets, to_microseconds(older_than), self._readers())

    find_garbage_async = async_twin(find_garbage)

    def chunk_storage_stats(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * _MIB,
        max_decoded_manifest_mem_bytes: int = 4096 * _MIB,
        max_concurrent_manifest_fetches: int = 500,
    ) -> ChunkStorageStats:
        """Sum the bytes of all chunks that branches and tags lead to, each chunk counted once.

        Parameters
        ----------
        max_snapshots_in_memory, max_compressed_manifest_mem_bytes, max_decoded_manifest_mem_bytes
            Bounds for the files that are read at the same time.
        max_concurrent_manifest_fetches
            Bound for requests at the same time.

        Returns
        -------
        ChunkStorageStats
        """
        from icefloe.maintenance.limits import concurrent_reads
        from icefloe.maintenance.storage_stats import chunk_storage

        threads = concurrent_reads(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        self._require_present_format("counting chunks")
        return chunk_storage(self._refs, self._assets, self._readers(threads))

    chunk_storage_stats_async = async_twin(chunk_storage_stats)

    def total_chunks_storage(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * _MIB,
        max_decoded_manifest_mem_bytes: int = 4096 * _MIB,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Sum the bytes of native chunks. Deprecated: use `chunk_storage_stats`, which has the parameters.

        Parameters
        ----------
        max_snapshots_in_memory, max_compressed_manifest_mem_bytes, max_decoded_manifest_mem_bytes
            As in `chunk_storage_stats`.
        max_concurrent_manifest_fetches
            As in `chunk_storage_stats`.

        Returns
        -------
        int
        """
        options = {name: value for name, value in locals().items() if name != "self"}
        warnings.warn(
            "total_chunks_storage is deprecated; chunk_storage_stats tells more",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.chunk_storage_stats(**options).native_bytes

    async def total_chunks_storage_async(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * _MIB,
        max_decoded_manifest_mem_bytes: int = 4096 * _MIB,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Sum the bytes of native chunks. Deprecated: use `chunk_storage_stats_async`.

        Parameters
        ----------
        max_snapshots_in_memory, max_compressed_manifest_mem_bytes, max_decoded_manifest_mem_bytes
            As in `chunk_storage_stats`.
        max_concurrent_manifest_fetches
            As in `chunk_storage_stats`.

        Returns
        -------
        int
        """
        # Not a twin: a warning from a thread of ours would name no line of the caller's.
        options = {name: value for name, value in locals().items() if name != "self"}
        warnings.warn(
            "total_chunks_storage_async is deprecated; chunk_storage_stats_async tells more",
            DeprecationWarning,
            stacklevel=2,
        )
        return (await self.chunk_storage_stats_async(**options)).native_bytes

    def storage_stats(
        self, by: Literal["array", "snapshot"] = "array", *, snapshot_id: str | None = None
    ) -> Table:
        """Sum the bytes of chunks that each array or each snapshot refers to.

        Virtual chunks do not count as unique or shared.

        Parameters
        ----------
        by
            One row per array, largest first, or one row per snapshot on a branch or tag, newest first.
        snapshot_id
            With `by="array"`: only this snapshot, instead of all on branches and tags.

        Returns
        -------
        Table
            Columns: array and chunks, or snapshot, written_at and message; then native_bytes, virtual_bytes,
            inlined_bytes, unique_bytes (which no other array or snapshot refers to) and shared_bytes. An
            array that is in no tip any more is named by the id of its node.
        """
        from icefloe.maintenance.storage_stats import by_array, by_snapshot

        if by not in ("array", "snapshot"):
            raise ValueError(f"by is {by!r}; choose array or snapshot")
        history = self._history("counting chunks")
        if by == "snapshot":
            return by_snapshot(self._assets, history, self._threads())
        only = None if snapshot_id is None else self._refs.snapshot(SnapshotId.parse(snapshot_id)).id
        return by_array(self._assets, history, only, self._threads())

    storage_stats_async = async_twin(storage_stats)

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: dict[str, Any] | None = None,
        commit_method: str = "new_commit",
    ) -> str:
        """Rewrite all manifests of a branch, split as configured now, in one commit.

        Parameters
        ----------
        message, metadata
            The message and metadata of the commit.
        branch
            The branch to rewrite.
        commit_method
            "new_commit", or "amend" to replace the tip of the branch.

        Returns
        -------
        str
            The id of the new snapshot.
        """
        from icefloe.maintenance.rewrite_manifests import rewrite_manifests

        if commit_method not in ("new_commit", "amend"):
            raise ValueError(f"Invalid commit method: '{commit_method}'. Expected 'new_commit' or 'amend'.")
        session = self.writable_session(branch)
        return rewrite_manifests(session, self._handle, self._executor, message, metadata, commit_method)

    rewrite_manifests_async = async_twin(rewrite_manifests)

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
        max_memory_bytes: int = 512 * _MIB,
        progress: Progress | None = None,
    ) -> CloneReport:
        """Copy this repository to another storage, with the same ids, branches, tags and history.

        If the target is such a copy already, only new objects are added. An interrupted call continues when
        it is made again. Refs move after all objects were found at the target in their full size. Virtual
        chunks stay where they are, and the ops log is not copied.

        Parameters
        ----------
        target
            The storage to copy to.
        branches, tags
            Copy only these; main is always copied.
        depth
            Copy only this many of the newest snapshots of each branch and tag, and the first one of all.
        read_back
            Read every copy again and compare its bytes.
        overwrite
            Let branches that have other commits at the target follow the source.
        dry_run
            Only count what would be copied.
        max_concurrent_requests, max_memory_bytes
            Bounds for requests at the same time and the memory they need.
        progress
            A callback for progress.

        Returns
        -------
        CloneReport

        Raises
        ------
        ConflictError
            If a branch has other commits at the target and `overwrite` is False.
        """
        from icefloe.maintenance.clone import Choice, clone
        from icefloe.maintenance.copy_objects import Limits

        return clone(
            self._opened,
            target,
            Choice(
                None if branches is None else frozenset(branches),
                None if tags is None else frozenset(tags),
                depth,
            ),
            Limits(max_concurrent_requests, max_memory_bytes),
            layouts=ALL_LAYOUTS,
            read_back=read_back,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
            executor=self._executor,
        )

    clone_to_async = async_twin(clone_to)

    # Integrity

    def verify(
        self,
        level: VerifyLevel = "graph",
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        history: bool = True,
        checksums: bool = False,
        incremental: bool = False,
        dry_run: bool = False,
        max_concurrent_requests: int = _THREADS,
    ) -> VerifyReport:
        """Check that all objects that branches and tags lead to exist and are intact.

        Damage is reported, not raised.

        Parameters
        ----------
        level
            "graph" reads refs, snapshots, transaction logs and manifests; "objects" also looks for every
            chunk object, "sources" for every file of virtual references, and "chunks" decodes all chunks.
        branch, tag, snapshot_id
            Check only one branch, tag or snapshot.
        history
            If False, check the chosen snapshot without its ancestors.
        checksums
            Read all objects whose checksum was recorded by `record_checksums` and compare. The level "chunks"
            always does.
        incremental
            Skip snapshots that an earlier incremental verification at this or a deeper level found intact.
            The record is kept beside the repository, whose storage must be writable.
        dry_run
            Only count the snapshots to check.
        max_concurrent_requests
            Bound for requests at the same time.

        Returns
        -------
        VerifyReport
        """
        from icefloe.maintenance.integrity.verify import as_level, snapshots_to_verify, verify
        from icefloe.maintenance.limits import check_positive

        as_level(level)
        check_positive(max_concurrent_requests=max_concurrent_requests)
        self._require_present_format("verification")
        if sum(each is not None for each in (branch, tag, snapshot_id)) > 1:
            raise ValueError("give one of branch, tag and snapshot_id")
        whole = branch is None and tag is None and snapshot_id is None
        tip = None if whole else self._resolve(branch, tag, snapshot_id)
        return verify(
            self._refs,
            self._assets,
            self._threads(max_concurrent_requests),
            level,
            snapshots_to_verify(self._refs, tip, history=history),
            lambda id: self._session(SessionMode.readonly, id, None),
            checksums=checksums,
            incremental=incremental,
            dry_run=dry_run,
        )

    verify_async = async_twin(verify)

    def record_checksums(self, *, progress: Progress | None = None) -> int:
        """Record the checksums of all objects in use that have none yet, for `verify`.

        Checksums are kept below `icefloe/` in the storage, where other readers do not look and garbage
        collection deletes nothing. Every such object is read once. Damaged objects are recorded as they are:
        run `verify("chunks")` first.

        Parameters
        ----------
        progress
            A callback for progress.

        Returns
        -------
        int
            The number of recorded checksums.
        """
        from icefloe.maintenance.integrity.checksums import record_checksums

        self._require_present_format("recording checksums")
        return record_checksums(self._refs, self._assets.storage, self._threads(), progress)

    record_checksums_async = async_twin(record_checksums)

    def repair(
        self,
        branch: str = "main",
        *,
        sources: ReadChunk | Mapping[str, ReadChunk] | None = None,
        drop: bool = False,
        checksums: bool = False,
        virtual: bool = False,
        relocate: Mapping[str, str] | None = None,
        dry_run: bool = False,
        message: str = "Repair",
    ) -> RepairReport:
        """Repair what the tip of a branch and its history have lost, in one commit.

        Missing transaction logs are computed from the snapshots around them. Earlier snapshots stay as they
        are: verify the tip alone with `verify(branch=..., history=False)`, and expire the others.

        Parameters
        ----------
        branch
            The branch to repair.
        sources
            Where to get lost chunks: a function of an array's path and a chunk's coordinates, or one per
            path, that returns stored bytes, values or None. See `ChunkSource.from_session` and
            `icefloe.ingest.LedgerChunks`.
        drop
            Delete references that no source knows, so that the chunks read as the fill value, and remove
            lost snapshots from the history. Otherwise both are left as they are.
        checksums
            Also replace chunks whose bytes differ from the recorded checksum.
        virtual
            Also check the files of virtual references.
        relocate
            New location prefixes of such files by their old ones. Implies `virtual`.
        dry_run
            Only report what would be done.
        message
            The message of the commit.

        Returns
        -------
        RepairReport
        """
        from icefloe.maintenance.integrity.repair import repair

        self._require_present_format("a repair", writable=not dry_run)
        level: VerifyLevel = "sources" if virtual or relocate else "objects"
        return repair(
            self._refs,
            self._assets,
            self.verify(level, branch=branch, checksums=checksums).findings,
            lambda: self._session_to_repair(branch, dry_run=dry_run),
            sources=sources,
            relocate=relocate or {},
            drop=drop,
            dry_run=dry_run,
            message=message,
        )

    repair_async = async_twin(repair)

    def _session_to_repair(self, branch: str, *, dry_run: bool) -> Session:
        try:
            return self.readonly_session(branch) if dry_run else self.writable_session(branch)
        except SnapshotNotFoundError as gone:
            raise SnapshotNotFoundError(
                f"{gone.message}, the tip of {branch}; reset the branch to a snapshot that is there",
                kind=ErrorKind.SNAPSHOT_NOT_FOUND,
            ) from None

    def _snapshot_id(self, text: str) -> SnapshotId:
        """An id as users write it; those of the draft format are longer."""
        if self._refs.spec.writable:
            return SnapshotId.parse(text)
        from icefloe.legacy.codec.ids import parse_snapshot_id

        return parse_snapshot_id(text)

    def _resolve(self, branch: str | None, tag: str | None, snapshot_id: str | None) -> SnapshotId:
        _check_one_ref(branch, tag, snapshot_id)
        if branch is not None:
            return self._refs.branch(branch)
        if tag is not None:
            return self._refs.tag(tag)
        return self._refs.snapshot(self._snapshot_id(snapshot_id or "")).id


def upgrade_icechunk_repository(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> Repository:
    """Upgrade a repository from version 1 of the format to version 2, in place.

    Snapshots, manifests, transaction logs and chunks stay as they are; branches, tags, history and
    configuration move into one new file. Stop all writers first: if one of them commits meanwhile, the
    upgrade is undone, and sessions that were opened before it cannot commit any more. Call the function again
    to resume an upgrade that was interrupted while it deleted files of version 1.

    Parameters
    ----------
    repo
        The repository. This object cannot be used after the upgrade.
    dry_run
        Read everything and write nothing.
    delete_unused_v1_files
        Delete the files that version 2 does not use.
    prefetch_concurrency
        The number of snapshots to read at the same time.

    Returns
    -------
    Repository
        The upgraded repository.

    Raises
    ------
    SessionStateError
        If the repository does not have version 1 of the format.
    ConflictError
        If a branch or tag changed during the upgrade.
    """
    from icefloe.maintenance.upgrade import delete_files_of_version_1, has_files_of_version_1, upgrade

    storage, refs = repo.storage, repo._refs
    if refs.spec.refs_in_repo_info and delete_unused_v1_files and has_files_of_version_1(storage):
        if not dry_run:
            delete_files_of_version_1(storage)
        return repo
    if not isinstance(refs, RefStoreV1):
        raise SessionStateError(
            f"invalid repository version ({refs.spec.number}.0), this function can only migrate repositories "
            "that use version 1.0 of the specification, to repositories with spec version 2.0",
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        ).with_hint(Hint("{function} upgrades older formats", function="icefloe.migrate"))
    storage.check_writable()
    threads = prefetch_concurrency or (1 if storage.answers_at_once else _THREADS)
    executor = repo.executor or ThreadExecutor(threads)
    upgrade(repo._assets, refs, executor, dry_run=dry_run)
    if dry_run:
        return repo
    upgraded = Repository.open(
        storage,
        config=repo._opened.config,
        authorize_virtual_chunk_access=repo._handle.authorized,
        attribution=repo.attribution,
    )._reopen(None, None, repo._handle.trusted)
    if delete_unused_v1_files:
        delete_files_of_version_1(storage)
    repo.__class__ = _InvalidatedRepository
    return upgraded


class _InvalidatedRepository(Repository):
    """A repository object that was used before an upgrade."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(
            "This repository has been invalidated by upgrade_icechunk_repository(). "
            "Use the new Repository object returned by that function instead."
        )

    def __repr__(self) -> str:
        return "<invalidated repository: use the one that upgrade_icechunk_repository returned>"


def _check_one_ref(branch: str | None, tag: str | None, snapshot_id: str | None) -> None:
    if sum(given is not None for given in (branch, tag, snapshot_id)) != 1:
        raise ValueError("Must provide one of branch, tag, or snapshot_id")


def _layout(version: SpecVersion | int | None) -> Layout:
    layouts: dict[int | None, Layout] = {None: LAYOUT_V2, 1: LAYOUT_V1, 2: LAYOUT_V2}
    if version is not None and not isinstance(version, int):
        raise ValueError(
            f"Couldn't parse a valid version: expected a SpecVersion or a number, not {version!r}"
        )
    if isinstance(version, bool) or version not in layouts:
        raise ValueError(f"Unsupported version {version}")
    return layouts[version]


def _public_version(spec: Spec) -> SpecVersion:
    return SpecVersion(spec.number or V1.number)


def _with(storage: Storage, settings: StorageSettings | None) -> Storage:
    return storage if settings is None else storage.with_settings(settings)


_INSTEAD_OF_NONE = {
    "s3": "s3_from_env_credentials()",
    "tigris": "s3_from_env_credentials()",
    "gs": "gcs_anonymous_credentials()",
    "gcs": "gcs_anonymous_credentials()",
    "az": "azure_from_env_credentials()",
    "azure": "azure_from_env_credentials()",
    "abfs": "azure_from_env_credentials()",
    "file": "LocalFileSystemAccess()",
    "http": "HttpAccess()",
    "https": "HttpAccess()",
}


def _checked_authorization(
    authorized: Mapping[str, AnyCredential | None] | None,
) -> dict[str, AnyCredential | None]:
    """Permissions by url prefix, with a word on those that do not say how."""
    for prefix, credential in (authorized or {}).items():
        from icefloe.credentials import AnyCredential

        if credential is not None and not isinstance(credential, AnyCredential):
            raise TypeError(
                f"the credential of {redact(prefix)} is a {type(credential).__qualname__}, expected one of "
                "Credentials; containers_credentials makes one of it"
            )
        scheme = prefix.partition("://")[0]
        if credential is None and scheme in _INSTEAD_OF_NONE:
            warnings.warn(
                f"None for {redact(prefix)} in authorize_virtual_chunk_access is deprecated; say "
                f"{_INSTEAD_OF_NONE[scheme]}",
                DeprecationWarning,
                stacklevel=4,
            )
    return dict(authorized or {})
