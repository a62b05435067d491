"""The `Repository` class: opening, creating, branches, tags, history, sessions and maintenance."""

from __future__ import annotations

import copy
import logging
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from icefloe._internal.concurrency import (
    AsyncCloseableIterator,
    async_class_twin,
    async_static_twin,
    async_twin,
)
from icefloe._internal.executor import Executor, ThreadExecutor
from icefloe._internal.ids import ManifestId, SnapshotId, encode_column
from icefloe._internal.telemetry import trace_calls
from icefloe._internal.times import to_microseconds
from icefloe.branch_checks import (
    BranchCheck,
    allow_check_modules,
    name_function,
    run_checks,
    validate_functions,
    validate_queries,
)
from icefloe.config import Attribution, RepositoryConfig, StorageSettings
from icefloe.config.display import Shown, Tree, qualify_name
from icefloe.core.commit.idempotency import CommittedVersions, get_versions
from icefloe.core.handle import Handle
from icefloe.core.open import (
    RepositoryParts,
    choose_layout,
    find_layout,
    list_containers,
    make_parts,
    open_parts,
)
from icefloe.core.refs.base import make_unsupported_error, read_only_format
from icefloe.core.refs.v2 import FLAG_NAMES, RefStoreV2, check_flag, check_writable
from icefloe.core.virtual_chunks.authorized_reads import Authorized
from icefloe.core.virtual_chunks.range_reads import ReadLimits
from icefloe.encoding.envelope import PLAUSIBLE_BYTES
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    SnapshotNotFoundError,
)
from icefloe.format.metadata import normalize_metadata
from icefloe.format.repo_changes import CheckedMove
from icefloe.format.spec import V1, Spec
from icefloe.history import pages as history_pages
from icefloe.history import snapshots as history
from icefloe.history.snapshots import to_public_snapshot, to_public_status, to_stored_status
from icefloe.legacy.layout import ALL_LAYOUTS
from icefloe.snapshots import Diff, ManifestFileInfo, SnapshotInfo
from icefloe.storage.base import Storage
from icefloe.storage.disk_cache import AnyDiskCache, DiskCache, choose_disk_cache
from icefloe.types import FeatureFlag, RepoStatus, SessionMode, SpecVersion

if TYPE_CHECKING:
    from icefloe._internal.executor import Progress
    from icefloe._internal.table import Table
    from icefloe.ancestry_graph import AncestryGraph
    from icefloe.conflicts import ConflictSolver, MergeResult, MergeStrategy
    from icefloe.core.merge.branches import Branching
    from icefloe.core.merge.group_commit import GroupCommits
    from icefloe.credentials import AnyCredential
    from icefloe.maintenance.clone import CloneReport
    from icefloe.maintenance.commit_graph import History
    from icefloe.maintenance.integrity.findings import VerifyLevel, VerifyReport
    from icefloe.maintenance.integrity.repair import ReadChunk, RepairReport
    from icefloe.maintenance.ops_log import OpsLogTrim
    from icefloe.maintenance.retention import RetentionPolicy, RetentionReport
    from icefloe.maintenance.statistics.collect import StatisticsReport
    from icefloe.maintenance.storage_stats import ChunkStorageStats, ReclaimableStorage
    from icefloe.maintenance.window import WindowReport
    from icefloe.ops import GCSummary, Update
    from icefloe.session import Session
    from icefloe.store import IcechunkStore

__all__ = ["Repository", "upgrade_icechunk_repository"]

_logger = logging.getLogger(__name__)
_MOVE_NODE = 3
_MIB = 1 << 20
_THREADS = 64


class Repository(Shown):
    """A repository: a versioned hierarchy of Zarr groups and arrays.

    Use `create`, `open` or `open_or_create` to get a repository, and sessions to read and write its arrays. A
    pickled repository contains its storage credentials.

    Parameters
    ----------
    opened, handle, attribution
        Not public; see the class methods.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> group = zarr.create_group(session.store)
    >>> snapshot_id = session.commit("create the root group")
    >>> repo.lookup_branch("main") == snapshot_id
    True
    """

    def __init__(
        self,
        opened: RepositoryParts,
        handle: Handle,
        attribution: Attribution | None = None,
    ) -> None:
        """Not public: use `create`, `open` or `open_or_create`."""
        self._handle = handle
        self._attribution = attribution or Attribution()
        self._commit_metadata: dict[str, Any] = {}
        self._groups: GroupCommits | None = None
        self._executor: Executor | None = None
        self._use_parts(opened)

    def _use_parts(self, opened: RepositoryParts) -> None:
        self._opened = opened
        self._refs = opened.refs
        self._assets = opened.assets
        if isinstance(opened.refs, RefStoreV2):
            opened.refs.run_checks = partial(_run_checks, opened, self._handle)

    @classmethod
    def _of(
        cls,
        opened: RepositoryParts,
        storage: Storage,
        authorized: Authorized,
        attribution: Attribution | None,
        trusted: frozenset[str],
        disk_cache: DiskCache | None,
    ) -> Repository:
        """Create a repository object from its opened parts."""
        handle = Handle(storage, opened.layout, opened.config, authorized, trusted, disk_cache)
        return cls(opened, handle, attribution)

    def __getstate__(self) -> dict[str, Any]:
        derived = {"_opened", "_refs", "_assets", "_config_in_effect", "_executor", "_groups"}
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._executor = None
        self._groups = None
        self._use_parts(self._handle.open())

    # Opening and creating

    @classmethod
    @trace_calls
    def create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        spec_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
        *,
        disk_cache: AnyDiskCache | None = None,
    ) -> Repository:
        """Create a repository in an empty location.

        Parameters
        ----------
        storage
            The location of the repository.
        config
            Configuration to store in the repository; the default configuration is not stored.
        authorize_virtual_chunk_access
            Credentials for virtual chunk containers, by URL prefix. Virtual chunks in other containers are
            not read.
        spec_version
            The format version; the newest by default.
        check_clean_root
            If False, the location may contain other objects.
        attribution
            An identification of the client, which is sent with requests.
        disk_cache
            A folder in which to cache remote data, or a `DiskCache`. It is not stored in the repository.

        Returns
        -------
        Repository

        Raises
        ------
        InvalidInputError
            If the location is not empty.
        ConflictError
            If the location already contains a repository.
        """
        from icefloe.core.create import create_parts

        layout = choose_layout(spec_version)
        _logger.debug("Creating Repository at %s", storage.describe())
        location = storage if attribution is None else storage.with_attribution(attribution)
        authorized = _authorize(authorize_virtual_chunk_access)
        cache = choose_disk_cache(disk_cache)
        opened = create_parts(
            location,
            layout,
            copy.deepcopy(config),
            authorized,
            check_clean_root=check_clean_root,
            layouts=ALL_LAYOUTS,
            disk_cache=cache,
        )
        return cls._of(opened, location, authorized, attribution, list_containers(config), cache)

    create_async = async_class_twin(create)

    @classmethod
    @trace_calls
    def open(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        attribution: Attribution | None = None,
        *,
        disk_cache: AnyDiskCache | None = None,
    ) -> Repository:
        """Open an existing repository.

        Parameters
        ----------
        storage
            The location of the repository.
        config
            Configuration that overrides the stored configuration.
        authorize_virtual_chunk_access
            Credentials for virtual chunk containers, by URL prefix. Virtual chunks in other containers are
            not read.
        attribution
            An identification of the client, which is sent with requests.
        disk_cache
            A folder in which to cache remote data, or a `DiskCache`. It is not stored in the repository.

        Returns
        -------
        Repository

        Raises
        ------
        RepositoryNotFoundError
            If there is no repository.
        """
        _logger.debug("Opening Repository at %s", storage.describe())
        location = storage if attribution is None else storage.with_attribution(attribution)
        authorized = _authorize(authorize_virtual_chunk_access)
        cache = choose_disk_cache(disk_cache)
        opened = open_parts(location, ALL_LAYOUTS, config, authorized, cache)
        return cls._of(opened, location, authorized, attribution, list_containers(config), cache)

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
        *,
        disk_cache: AnyDiskCache | None = None,
    ) -> Repository:
        """Open a repository, or create it if it does not exist.

        Parameters
        ----------
        storage
            The location of the repository.
        config
            Configuration that overrides the stored configuration, or that is stored in a new repository.
        authorize_virtual_chunk_access
            Credentials for virtual chunk containers, by URL prefix. Virtual chunks in other containers are
            not read.
        create_version
            The format version of a new repository; the newest by default.
        check_clean_root
            If False, the location of a new repository may contain other objects.
        attribution
            An identification of the client, which is sent with requests.
        disk_cache
            A folder in which to cache remote data, or a `DiskCache`. It is not stored in the repository.

        Returns
        -------
        Repository

        Raises
        ------
        InvalidInputError
            If there is no repository, and the location is not empty.
        """
        choose_layout(create_version)
        if find_layout(storage, ALL_LAYOUTS) is None:
            try:
                return cls.create(
                    storage,
                    config,
                    authorize_virtual_chunk_access,
                    create_version,
                    check_clean_root,
                    attribution,
                    disk_cache=disk_cache,
                )
            except (ConflictError, InvalidInputError):
                if find_layout(storage, ALL_LAYOUTS) is None:  # not created by another writer in the meantime
                    raise
        return cls.open(storage, config, authorize_virtual_chunk_access, attribution, disk_cache=disk_cache)

    open_or_create_async = async_class_twin(open_or_create)

    @staticmethod
    def exists(storage: Storage, storage_settings: StorageSettings | None = None) -> bool:
        """Return True if there is a repository at a location.

        Parameters
        ----------
        storage
            The location.
        storage_settings
            Settings for this request.

        Returns
        -------
        bool
        """
        return find_layout(_with(storage, storage_settings), ALL_LAYOUTS) is not None

    exists_async = async_static_twin(exists)

    @staticmethod
    def fetch_spec_version(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> SpecVersion | None:
        """Return the format version of a repository.

        Parameters
        ----------
        storage
            The location of the repository.
        storage_settings
            Settings for this request.

        Returns
        -------
        SpecVersion or None
            None if there is no repository. Formats before version 1 are reported as version 1.
        """
        layout = find_layout(_with(storage, storage_settings), ALL_LAYOUTS)
        return None if layout is None else _to_public_version(layout.spec)

    fetch_spec_version_async = async_static_twin(fetch_spec_version)

    @staticmethod
    def fetch_config(storage: Storage) -> RepositoryConfig | None:
        """Return the stored configuration of a repository.

        Parameters
        ----------
        storage
            The location of the repository.

        Returns
        -------
        RepositoryConfig or None
            None if no configuration is stored.

        Raises
        ------
        RepositoryNotFoundError
            If there is no repository.
        """
        opened = open_parts(storage, ALL_LAYOUTS, None)
        return None if opened.refs.config() is None else opened.config

    fetch_config_async = async_static_twin(fetch_config)

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
    ) -> Repository:
        """Return the same repository with a new configuration or new credentials for virtual chunks.

        Parameters
        ----------
        config
            Changes to the current configuration.
        authorize_virtual_chunk_access
            New credentials by URL prefix; by default the current ones.

        Returns
        -------
        Repository
            A new object. The current one does not change.
        """
        replaced = config is not None and config.virtual_chunk_containers is not None
        trusted = list_containers(config) if replaced else self._handle.trusted
        return self._reopen(config, authorize_virtual_chunk_access, trusted)

    def _reopen(
        self,
        config: RepositoryConfig | None,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None,
        trusted: frozenset[str],
    ) -> Repository:
        """Reopen the repository, and send credentials to the endpoints of containers with `trusted` URL
        prefixes.
        """
        merged = copy.deepcopy(self._opened.config)
        if config is not None:
            merged = merged.merge(config)
        authorized = self._handle.authorized
        if authorize_virtual_chunk_access is not None:
            authorized = _authorize(authorize_virtual_chunk_access)
        handle = self._handle
        opened = make_parts(handle.storage, handle.layout, merged, authorized, trusted, handle.disk_cache)
        return type(self)._of(
            opened, handle.storage, authorized, self._attribution, trusted, handle.disk_cache
        )

    def _bypass_disk_cache(self) -> Repository:
        """Return a repository that reads directly from its storage: this one if it has no disk cache."""
        if self._handle.disk_cache is None:
            return self
        other = copy.copy(self)
        other._handle = replace(self._handle, disk_cache=None, token=uuid.uuid4().hex)
        other._groups = None
        other._use_parts(other._handle.reopen())
        return other

    reopen_async = async_twin(reopen)

    # Properties

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the configuration in effect. Use `reopen` to change it."""
        return copy.deepcopy(self._config_in_effect)

    @cached_property
    def _config_in_effect(self) -> RepositoryConfig:
        config = copy.deepcopy(self._opened.config)
        config.storage = self._handle.storage.default_settings().merge(config.storage or StorageSettings())
        return config

    @property
    def storage(self) -> Storage:
        """The storage of the repository."""
        return self._handle.storage

    @property
    def disk_cache(self) -> DiskCache | None:
        """The disk cache in which this client keeps remote data."""
        return self._handle.disk_cache

    @property
    def attribution(self) -> Attribution:
        """The identification of the client, which is sent with the repository's requests."""
        return self._attribution

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """The URL prefixes of the virtual chunk containers that the repository is authorized to read."""
        return set(self._handle.authorized)

    @property
    def virtual_read_limits(self) -> ReadLimits:
        """The limits for combining reads of neighbouring virtual chunks in a file. Assign a value to change
        them.

        The limits apply to this object, its sessions and their pickles. They are not stored in the
        repository.
        """
        return self._handle.read_limits

    @virtual_read_limits.setter
    def virtual_read_limits(self, limits: ReadLimits) -> None:
        self._handle = replace(self._handle, read_limits=limits, token=uuid.uuid4().hex)
        self._assets.virtual.limits = limits

    @property
    def spec_version(self) -> SpecVersion:
        """The format version of the repository. Formats before version 1 are reported as version 1."""
        return _to_public_version(self._refs.spec)

    def tree(self) -> Tree:
        # docstring inherited
        title = f"{qualify_name('', 'Repository')} ({self.spec_version.name})"
        return Tree(title, (("storage", self._handle.storage.tree()), ("config", "<RepositoryConfig ...>")))

    def _repr_html_(self) -> str:
        from icefloe.history.overview import render_overview

        return render_overview(self._refs, self._assets, self.storage)

    def save_config(self) -> None:
        """Store the current configuration in the repository."""
        self._refs.save_config(self._opened.config.to_plain())

    save_config_async = async_twin(save_config)

    def set_default_commit_metadata(self, metadata: dict[str, Any]) -> None:
        """Set metadata for all commits of sessions that this repository object opens from now on.

        Parameters
        ----------
        metadata
            JSON-serializable values, by name.
        """
        self._commit_metadata = normalize_metadata(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """Return the metadata that is added to the commits of new sessions.

        Returns
        -------
        dict
        """
        return copy.deepcopy(self._commit_metadata)

    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata of the repository.

        Returns
        -------
        dict
        """
        return dict(self._refs.metadata())

    get_metadata_async = async_twin(get_metadata)

    metadata = property(get_metadata)

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata of the repository.

        Parameters
        ----------
        metadata
            JSON-serializable values, by name.
        """
        self._refs.set_metadata(normalize_metadata(metadata))

    set_metadata_async = async_twin(set_metadata)

    def update_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Add or replace entries in the metadata of the repository.

        Parameters
        ----------
        metadata
            JSON-serializable values, by name.

        Returns
        -------
        dict
            The new metadata.
        """
        return dict(self._refs.update_metadata(normalize_metadata(metadata)))

    update_metadata_async = async_twin(update_metadata)

    def get_status(self) -> RepoStatus:
        """Return the status of the repository: online or read-only, with the reason.

        Returns
        -------
        RepoStatus
        """
        self._require_repo_info("a status of the repository")
        return to_public_status(self._refs.status())

    get_status_async = async_twin(get_status)

    status = property(get_status)

    def set_status(self, status: RepoStatus) -> None:
        """Make the repository read-only for all users, or writable again.

        Parameters
        ----------
        status
            The new status, with an optional reason.
        """
        self._refs.set_status(to_stored_status(status))

    set_status_async = async_twin(set_status)

    def feature_flags(self) -> list[FeatureFlag]:
        """Return all feature flags of the repository, sorted by id.

        Returns
        -------
        list of FeatureFlag
        """
        self._require_repo_info("a feature flag")
        settings = self._refs.feature_flags()
        return [FeatureFlag(id, name, True, settings.get(id)) for id, name in sorted(FLAG_NAMES.items())]

    feature_flags_async = async_twin(feature_flags)

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        """Return the enabled feature flags of the repository, sorted by id.

        Returns
        -------
        list of FeatureFlag
        """
        return [flag for flag in self.feature_flags() if flag.enabled]

    enabled_feature_flags_async = async_twin(enabled_feature_flags)

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        """Return the disabled feature flags of the repository, sorted by id.

        Returns
        -------
        list of FeatureFlag
        """
        return [flag for flag in self.feature_flags() if not flag.enabled]

    disabled_feature_flags_async = async_twin(disabled_feature_flags)

    def set_feature_flag(self, name: str, setting: bool | None) -> None:
        """Enable or disable a feature of the repository, or reset it to its default.

        Parameters
        ----------
        name
            The name of the feature flag.
        setting
            True, False, or None for the default.

        Raises
        ------
        InvalidInputError
            If there is no feature flag with this name.
        """
        self._require_repo_info("a feature flag")
        numbers = {known: id for id, known in FLAG_NAMES.items()}
        if name not in numbers:
            known = ", ".join(sorted(numbers))
            raise InvalidInputError(
                f"there is no feature flag {name!r}; expected one of {known}",
                kind=ErrorKind.INVALID_FEATURE_FLAG,
            )
        self._refs.set_feature_flag(numbers[name], setting)

    set_feature_flag_async = async_twin(set_feature_flag)

    def _require_repo_info(self, what: str) -> None:
        if not self._refs.spec.refs_in_repo_info:
            raise make_unsupported_error(what, self._refs.spec)

    # Branches and tags

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Create a branch at a snapshot.

        Parameters
        ----------
        branch
            The name of the branch.
        snapshot_id
            The snapshot that becomes its tip.

        Raises
        ------
        AlreadyExistsError
            If the branch exists.
        SnapshotNotFoundError
            If the snapshot does not exist.
        """
        self._refs.create_branch(branch, SnapshotId.parse(snapshot_id))

    create_branch_async = async_twin(create_branch)

    def list_branches(self) -> set[str]:
        """Return the names of all branches of the repository.

        Returns
        -------
        set of str
        """
        return set(self._refs.branches())

    list_branches_async = async_twin(list_branches)

    def lookup_branch(self, branch: str) -> str:
        """Return the id of the snapshot at the tip of a branch.

        Parameters
        ----------
        branch
            The name of the branch.

        Returns
        -------
        str

        Raises
        ------
        RefNotFoundError
            If the branch does not exist.
        """
        return str(self._refs.branch(branch))

    lookup_branch_async = async_twin(lookup_branch)

    def reset_branch(self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None) -> None:
        """Move a branch to another snapshot.

        Parameters
        ----------
        branch
            The name of the branch.
        snapshot_id
            The new tip.
        from_snapshot_id
            If given, move the branch only if this is its current tip.

        Raises
        ------
        ConflictError
            If the tip of the branch is not `from_snapshot_id`.
        """
        expected = None if from_snapshot_id is None else SnapshotId.parse(from_snapshot_id)
        self._refs.reset_branch(branch, SnapshotId.parse(snapshot_id), expected)

    reset_branch_async = async_twin(reset_branch)

    def delete_branch(self, branch: str) -> None:
        """Delete a branch. Its snapshots are kept until garbage collection.

        Parameters
        ----------
        branch
            The name of the branch; not main.
        """
        self._refs.delete_branch(branch)

    delete_branch_async = async_twin(delete_branch)

    def protect(
        self,
        branch: str,
        *,
        sql: Sequence[str] | None = None,
        python: Sequence[str | Callable[[Session], Any]] | None = None,
    ) -> None:
        """Protect a branch: its history can be extended, but not rewritten.

        Commits, merges and resets to a later snapshot are allowed. Amending, squashing, deleting and other
        resets are refused by the same conditional write that would make the change. A branch can have checks:
        each new snapshot is first written without a branch, and the branch moves only after the checks have
        passed. The protection and the checks are stored in the metadata of the repository. Other clients
        ignore them.

        Parameters
        ----------
        branch
            The branch.
        sql
            Queries that return or count offending rows of the new snapshot, called `this`. They run in the
            built-in SQL engine. They replace the existing queries of the branch; None keeps those.
        python
            Functions, or their names `module:function`, that take a read-only session of the new snapshot.
            They return True or None if the snapshot is valid, and False or a message otherwise. They replace
            the existing functions of the branch; None keeps those. The repository stores only their names.
            Other processes import them only after a call of `icefloe.allow_check_modules`.

        Raises
        ------
        CheckFailedError
            If the tip of the branch does not pass the checks.
        InvalidInputError
            If a check is invalid.
        FormatError
            If the repository has format version 1.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.protect("main", sql=["SELECT time, t2m FROM this WHERE t2m > 400"])
        >>> repo.protected_branches()["main"][0].text
        'SELECT time, t2m FROM this WHERE t2m > 400'
        """
        validate_queries(sql or ())
        names = None if python is None else [name_function(each) for each in python]
        validate_functions(names or ())
        allow_check_modules(*(name.partition(":")[0] for name in names or ()))
        self._refs.protect(branch, sql, names)

    protect_async = async_twin(protect)

    def unprotect(self, branch: str) -> None:
        """Remove the protection of a branch, including its checks.

        Parameters
        ----------
        branch
            The branch.
        """
        self._refs.unprotect(branch)

    unprotect_async = async_twin(unprotect)

    def protected_branches(self) -> dict[str, tuple[BranchCheck, ...]]:
        """Return the protected branches of the repository, with their checks.

        Returns
        -------
        dict
            The checks of each protected branch.
        """
        return dict(self._refs.protected_branches())

    protected_branches_async = async_twin(protected_branches)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Create a tag, a permanent name for a snapshot.

        Parameters
        ----------
        tag
            The name of the tag. The names of deleted tags cannot be reused.
        snapshot_id
            The snapshot.

        Raises
        ------
        AlreadyExistsError
            If the tag exists, or existed and was deleted.
        """
        self._refs.create_tag(tag, SnapshotId.parse(snapshot_id))

    create_tag_async = async_twin(create_tag)

    def list_tags(self) -> set[str]:
        """Return the names of all tags of the repository.

        Returns
        -------
        set of str
        """
        return set(self._refs.tags())

    list_tags_async = async_twin(list_tags)

    def lookup_tag(self, tag: str) -> str:
        """Return the id of the snapshot that a tag points to.

        Parameters
        ----------
        tag
            The name of the tag.

        Returns
        -------
        str

        Raises
        ------
        RefNotFoundError
            If the tag does not exist.
        """
        return str(self._refs.tag(tag))

    lookup_tag_async = async_twin(lookup_tag)

    def delete_tag(self, tag: str) -> None:
        """Delete a tag. Its name cannot be reused.

        Parameters
        ----------
        tag
            The name of the tag.
        """
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
        strategy: MergeStrategy | ConflictSolver = "fail",
        dry_run: bool = False,
    ) -> MergeResult:
        """Merge a version into a branch.

        If the branch has no commits of its own, it is fast-forwarded to the version. Otherwise both are
        compared with their last common snapshot, chunk by chunk, and the changes of the version become one
        commit on the branch.

        Parameters
        ----------
        source
            The version to merge: a branch, a tag or a snapshot id (see `icefloe.history.versions`).
        into
            The branch to merge into.
        message, metadata
            The message and metadata of the commit, if one is needed.
        strategy
            How to resolve conflicts: "ours" keeps the data of the branch, "theirs" takes the data of the
            source, and "fail" raises an error. An `AppendSolver` keeps the rows that both sides appended.
        dry_run
            Report the result, including conflicts, without writing anything.

        Returns
        -------
        MergeResult

        Raises
        ------
        MergeConflictError
            If there are conflicts and the strategy is "fail". The error contains a table of the conflicts.
        AppendConflictError
            If an `AppendSolver` cannot combine the rows of both sides.
        """
        plain = normalize_metadata(metadata or {})
        return self._branching().merge(
            self._find(source), into, message, strategy, dry_run=dry_run, metadata=plain
        )

    merge_async = async_twin(merge)

    def cherry_pick(
        self,
        snapshot_id: str,
        *,
        branch: str,
        message: str | None = None,
        strategy: MergeStrategy | ConflictSolver = "fail",
        dry_run: bool = False,
    ) -> MergeResult:
        """Apply the changes of one snapshot to a branch, as a new commit.

        Parameters
        ----------
        snapshot_id
            The snapshot whose changes are applied, or a branch or tag.
        branch
            The branch to commit to.
        message
            The commit message; by default, that of the snapshot.
        strategy, dry_run
            See `merge`.

        Returns
        -------
        MergeResult

        Raises
        ------
        MergeConflictError
            If there are conflicts and the strategy is "fail".
        """
        return self._branching().cherry_pick(
            self._find(snapshot_id), branch, message, strategy, dry_run=dry_run
        )

    cherry_pick_async = async_twin(cherry_pick)

    def revert(
        self,
        snapshot_id: str,
        *,
        branch: str,
        message: str | None = None,
        strategy: MergeStrategy | ConflictSolver = "fail",
        dry_run: bool = False,
    ) -> MergeResult:
        """Undo the changes of one snapshot on a branch, as a new commit.

        Parameters
        ----------
        snapshot_id
            The snapshot whose changes are undone, or a branch or tag.
        branch
            The branch to commit to.
        message
            The message of the commit.
        strategy
            See `merge`. If a later commit changed the same data, this is a conflict: "ours" keeps the later
            change, and "theirs" undoes it as well.
        dry_run
            See `merge`.

        Returns
        -------
        MergeResult

        Raises
        ------
        MergeConflictError
            If there are conflicts and the strategy is "fail".
        """
        undone = self._find(snapshot_id)
        return self._branching().revert(undone, branch, message, strategy, dry_run=dry_run)

    revert_async = async_twin(revert)

    def squash(self, snapshot_id: str, *, branch: str, message: str | None = None) -> str:
        """Replace all snapshots of a branch after a given one with a single snapshot.

        The replaced snapshots are kept until garbage collection, or for as long as other branches and tags
        refer to them. Sessions that started at one of them can no longer be rebased.

        Parameters
        ----------
        snapshot_id
            The last snapshot to keep, or a branch or tag.
        branch
            The branch to squash.
        message
            The message of the new snapshot; by default, all replaced messages.

        Returns
        -------
        str
            The id of the new snapshot.
        """
        return str(self._branching().squash(branch, self._find(snapshot_id), message))

    squash_async = async_twin(squash)

    def _find(self, version: str) -> SnapshotId:
        from icefloe.history.versions import resolve_version

        tip = self._refs.branches().get(version)  # a branch takes precedence over a tag of the same name
        return tip or SnapshotId.parse(resolve_version(self, version))

    def _branching(self) -> Branching:
        from icefloe.core.merge.branches import Branching

        executor = ThreadExecutor(self._assets.config.max_concurrent_requests)
        return Branching(self._refs, self._assets, executor, self._commit_metadata)

    # History

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """Return the parent, time, message and metadata of a snapshot.

        Parameters
        ----------
        snapshot_id
            The id of the snapshot.

        Returns
        -------
        SnapshotInfo

        Raises
        ------
        SnapshotNotFoundError
            If the snapshot does not exist.
        """
        return to_public_snapshot(self._refs.snapshot(self._snapshot_id(snapshot_id)))

    lookup_snapshot_async = async_twin(lookup_snapshot)

    def committed_versions(self, app: str, *, branch: str = "main") -> CommittedVersions:
        """Return the versions of an application that a branch contains, as recorded by its commit keys.

        Parameters
        ----------
        app
            The name of the application, as in `CommitKey`.
        branch
            The branch.

        Returns
        -------
        CommittedVersions
            The last version and the digest of its data. `version in result` is True if a version was
            committed.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> group = zarr.create_group(session.store)
        >>> made = session.commit_once("batch 7", key=icefloe.CommitKey("stream", "7"))
        >>> versions = repo.committed_versions("stream")
        >>> versions.last, "7" in versions, "8" in versions
        ('7', True, False)
        """
        return get_versions(self._assets.snapshot(self._refs.branch(branch)), app)

    committed_versions_async = async_twin(committed_versions)

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """List the manifests of a snapshot.

        Parameters
        ----------
        snapshot_id
            The id of the snapshot.

        Returns
        -------
        list of ManifestFileInfo
        """
        snapshot = self._assets.snapshot(self._snapshot_id(snapshot_id))
        return [ManifestFileInfo(str(i.id), i.size_bytes, i.num_chunk_refs) for i in snapshot.manifest_files]

    list_manifest_files_async = async_twin(list_manifest_files)

    def ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> AsyncCloseableIterator[SnapshotInfo]:
        """Iterate over a snapshot and its ancestors, newest first.

        Parameters
        ----------
        branch, tag, snapshot_id
            The newest snapshot. Pass one of them.

        Returns
        -------
        iterator of SnapshotInfo
            For use with `for` and `async for`.
        """
        tip = self._resolve(branch, tag, snapshot_id)
        return AsyncCloseableIterator(history_pages.iterate_ancestry(self._refs, tip))

    async_ancestry = ancestry

    def ancestry_graph(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
    ) -> AncestryGraph:
        """Draw the history of a snapshot, or of all branches, as a graph.

        Parameters
        ----------
        branch, tag, snapshot_id
            The newest snapshot; by default the tips of all branches.
        plain
            Draw without colours.

        Returns
        -------
        AncestryGraph
            The graph. `print` shows it as text, and notebooks show it as an image.
        """
        given = (branch, tag, snapshot_id)
        tip = None if given == (None, None, None) else self._resolve(*given)
        return history.draw(self._refs, tip, plain=plain)

    ancestry_graph_async = async_twin(ancestry_graph)

    def ops_log(self) -> AsyncCloseableIterator[Update]:
        """Iterate over the operations on the repository, newest first.

        Returns
        -------
        iterator of Update
            For use with `for` and `async for`.
        """
        self._require_repo_info("the ops log")
        from icefloe.history.ops import iterate_ops_log

        return AsyncCloseableIterator(iterate_ops_log(self._refs))

    def ops_log_async(self) -> AsyncCloseableIterator[Update]:
        """Iterate over the operations on the repository, newest first. This is the same as `ops_log`.

        Returns
        -------
        iterator of Update
            For use with `for` and `async for`.
        """
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
        """Return the changes from one snapshot to a later snapshot of the same history.

        Parameters
        ----------
        from_branch, from_tag, from_snapshot_id
            The earlier snapshot. Pass one of them.
        to_branch, to_tag, to_snapshot_id
            The later snapshot. Pass one of them.

        Returns
        -------
        Diff

        Raises
        ------
        InvalidInputError
            If the first snapshot is not an ancestor of the second one.
        """
        start = self._resolve(from_branch, from_tag, from_snapshot_id)
        end = self._resolve(to_branch, to_tag, to_snapshot_id)
        return history.diff_between(self._refs, self._assets, start, end)

    diff_async = async_twin(diff)

    # Inspection of files

    def inspect_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """Return the content of a snapshot file.

        Parameters
        ----------
        snapshot_id
            The id of the snapshot.

        Returns
        -------
        dict
            The content in the same form as in the official package.
        """
        from icefloe.history.inspect import inspect_snapshot

        return inspect_snapshot(self._assets, SnapshotId.parse(snapshot_id))

    inspect_snapshot_async = async_twin(inspect_snapshot)

    def inspect_repo_info(self) -> dict[str, Any]:
        """Return the content of the repo info file.

        Returns
        -------
        dict
            The content in the same form as in the official package.
        """
        from icefloe.history.inspect import inspect_repo_info

        self._require_repo_info("the repo info file")
        return inspect_repo_info(self._assets)

    inspect_repo_info_async = async_twin(inspect_repo_info)

    def inspect_manifest(self, manifest_id: str) -> dict[str, Any]:
        """Return the content of a manifest file, without its chunk references.

        Parameters
        ----------
        manifest_id
            The id of the manifest.

        Returns
        -------
        dict
            The content in the same form as in the official package.
        """
        from icefloe.history.inspect import inspect_manifest

        return inspect_manifest(self._assets, ManifestId.parse(manifest_id))

    inspect_manifest_async = async_twin(inspect_manifest)

    def inspect_transaction_log(self, snapshot_id: str) -> dict[str, Any]:
        """Return the content of a transaction log, including the logs of expired ancestors.

        Parameters
        ----------
        snapshot_id
            The id of the snapshot.

        Returns
        -------
        dict
            The content in the same form as in the official package.
        """
        from icefloe.history.inspect import inspect_transaction_log

        id = SnapshotId.parse(snapshot_id)
        return inspect_transaction_log(self._assets, id, history.read_pruned_logs(self._refs, id))

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
        """Open a read-only session on one snapshot.

        Parameters
        ----------
        branch, tag, snapshot_id
            The snapshot: the tip of a branch, the snapshot of a tag, or a snapshot id. Pass one of them.
        as_of
            With `branch`: select its newest snapshot that is not later than this time.

        Returns
        -------
        Session

        Raises
        ------
        RefNotFoundError, SnapshotNotFoundError
            If there is no such branch, tag or snapshot.
        """
        if as_of is None:
            return self._session(SessionMode.readonly, self._resolve(branch, tag, snapshot_id), None)
        if branch is None:
            raise ValueError("as_of requires a branch")
        _check_one_ref(branch, tag, snapshot_id)
        id = history.find_snapshot_at(self._refs, branch, to_microseconds(as_of))
        return self._session(SessionMode.readonly, id, None)

    readonly_session_async = async_twin(readonly_session)

    def writable_session(self, branch: str, *, collect_statistics: bool = False) -> Session:
        """Open a session that commits to a branch.

        Parameters
        ----------
        branch
            The name of the branch.
        collect_statistics
            If True, read the changed chunks after the commit and record their statistics.

        Returns
        -------
        Session

        Raises
        ------
        RefNotFoundError
            If the branch does not exist.
        """
        session = self._session(SessionMode.writable, self._refs.tip_to_write(branch), branch)
        session._collects_statistics = collect_statistics
        return session

    writable_session_async = async_twin(writable_session)

    def writable_session_at(self, branch: str, snapshot_id: str) -> Session:
        """Open a session that starts at an earlier snapshot of a branch and commits to its tip.

        A commit is checked for conflicts with all later commits of the branch.

        Parameters
        ----------
        branch
            The name of the branch.
        snapshot_id
            The id of a snapshot of the branch.

        Returns
        -------
        Session
        """
        self._refs.tip_to_write(branch)
        return self._session(SessionMode.writable, self._snapshot_id(snapshot_id), branch)

    def rearrange_session(self, branch: str) -> Session:
        """Open a session that can only move and rename nodes.

        Parameters
        ----------
        branch
            The branch to commit to.

        Returns
        -------
        Session
        """
        if not self._refs.spec.moves:
            raise make_unsupported_error("moving nodes", self._refs.spec)
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
        collect_statistics: bool = False,
    ) -> Iterator[IcechunkStore]:
        """Commit the changes of a `with` block to a branch, unless the block raises an exception.

        Parameters
        ----------
        branch
            The branch to commit to.
        message, metadata
            The message and metadata of the commit.
        rebase_with
            A solver for conflicts with concurrent commits; by default, conflicts raise an error.
        rebase_tries
            The maximum number of attempts to rebase.
        collect_statistics
            If True, read the changed chunks after the commit and record their statistics.

        Yields
        ------
        IcechunkStore
            The store to write to.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="add a group") as store:
        ...     group = zarr.create_group(store, path="air")
        """
        session = self.writable_session(branch, collect_statistics=collect_statistics)
        yield session.store
        session.commit(message, metadata, rebase_with=rebase_with, rebase_tries=rebase_tries)

    def _session(self, mode: SessionMode, id: SnapshotId, branch: str | None) -> Session:
        from icefloe.core.preload import preload
        from icefloe.session import Session

        snapshot = self._assets.snapshot(id)
        manifest = self._opened.config.manifest
        preload(self._assets, snapshot, asked_for=manifest is not None and manifest.preload is not None)
        session = Session(
            mode=mode,
            snapshot=snapshot,
            branch=branch,
            refs=self._refs,
            assets=self._assets,
            config=self._config_in_effect,
            handle=self._handle,
            commit_metadata=self._commit_metadata,
            after_commit=_collect_after_commit,
        )
        session._groups = self._groups
        return session

    def group_commits(self, *, max_delay_ms: float | None = 20.0) -> None:
        """Combine concurrent commits of this process to the same branch into one snapshot.

        Sessions opened afterwards commit together. The first commit waits for others, and commits without
        conflicts share a snapshot whose metadata lists them. A conflicting commit fails without affecting the
        others.

        Parameters
        ----------
        max_delay_ms
            How long a commit waits for others, in milliseconds. None, the default behaviour, commits each
            session separately.
        """
        from icefloe.core.merge.group_commit import GroupCommits

        self._groups = None if max_delay_ms is None else GroupCommits(max_delay_ms)

    # Maintenance. Its modules are imported on demand, so that opening a repository is fast.

    def with_executor(self, executor: Executor) -> Repository:
        """Return the same repository with an executor for its maintenance operations.

        Objects are read, copied and decoded on the executor, for example on Spark. Only this process moves
        refs and deletes objects.

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
        """The executor for maintenance operations, or None for threads."""
        return self._executor

    def _threads(self, max_concurrent_requests: int = _THREADS) -> Executor:
        """Return the executor of this repository, or a new one with this many threads."""
        return self._executor or ThreadExecutor(max_concurrent_requests)

    def _make_readers(self, max_concurrent_requests: int = _THREADS) -> Executor:
        """Return the executor for reading small files. It uses no threads if the storage is local or in
        memory.
        """
        return self._threads(1 if self._assets.storage.answers_at_once else max_concurrent_requests)

    def _require_present_format(self, what: str, *, writable: bool = False) -> None:
        """Raise an error if the repository has a format before version 1 or is read-only."""
        if not self._refs.spec.writable:
            raise read_only_format(what)
        if writable:
            check_writable(self._refs.status())

    def _history(self, what: str) -> History:
        from icefloe.maintenance.commit_graph import load_history

        self._require_present_format(what)
        return load_history(self._refs)

    def expire_snapshots(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
    ) -> set[str]:
        """Remove snapshots that were written before a given time from the history.

        The tip of main is always kept. The tips of other branches and of tags are kept unless these refs may
        be deleted. The data is kept until the next garbage collection.

        Parameters
        ----------
        older_than
            Remove snapshots that were written before this time.
        delete_expired_branches, delete_expired_tags
            Delete branches and tags whose snapshot expires, except main.

        Returns
        -------
        set of str
            The ids of the removed snapshots.
        """
        from icefloe.maintenance.expire import Expiration, expire

        self._require_present_format("expiration", writable=True)
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
        """Remove the snapshots that a retention policy does not keep from the history.

        The data is kept until the next garbage collection. Each kept snapshot gets its nearest kept ancestor
        as its parent, and inherits the transaction logs of the removed snapshots in between. A time instead
        of a policy has the same effect as `expire_snapshots`.

        Parameters
        ----------
        policy
            The rules that decide which snapshots to keep, or a time before which snapshots are removed.
        delete_expired_branches, delete_expired_tags
            If `policy` is a time: delete branches and tags whose snapshot expires, except main.
        dry_run
            Only report which snapshots would be removed.

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
                "delete_expired_branches and delete_expired_tags require a time instead of a policy"
            )
        report = retain(self._refs, self._assets, policy, dry_run=dry_run)
        if policy.operations is None:
            return report
        cutoff = datetime.now(UTC) - policy.operations
        return replace(report, ops_log=self.trim_ops_log(cutoff, dry_run=dry_run))

    retain_async = async_twin(retain)

    def estimate_expiration(
        self,
        *,
        older_than: datetime | None = None,
        policy: RetentionPolicy | None = None,
        kept: Iterable[str] | None = None,
    ) -> ReclaimableStorage:
        """Count the objects that a garbage collection could delete after an expiration.

        Pass exactly one of the arguments.

        Parameters
        ----------
        older_than
            The time that would be passed to `expire_snapshots`.
        policy
            The policy that would be passed to `retain`.
        kept
            The ids of the only snapshots that would be kept.

        Returns
        -------
        ReclaimableStorage
        """
        from icefloe.maintenance.expire import Expiration
        from icefloe.maintenance.retention import mark_kept_snapshots
        from icefloe.maintenance.storage_stats import measure_reclaimable

        if sum(each is not None for each in (older_than, policy, kept)) != 1:
            raise ValueError("pass one of older_than, policy and kept")
        history = self._history("storage statistics")
        rules = policy if older_than is None else Expiration(to_microseconds(older_than))
        keep = mark_kept_snapshots(history, rules or set(kept or ()))
        return measure_reclaimable(self._assets, history, keep, self._threads())

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
        """Delete objects that no snapshot uses and that were written before a given time.

        Parameters
        ----------
        delete_object_older_than
            Delete objects older than this. Choose a time before the oldest open session was started, because
            its uncommitted chunks are not in use yet.
        dry_run
            Only count the objects to delete.
        max_snapshots_in_memory, max_compressed_manifest_mem_bytes, max_decoded_manifest_mem_bytes
            Limits for files that are held in memory at the same time.
        max_concurrent_manifest_fetches, max_concurrent_deletes, max_concurrent_listings
            Limits for concurrent requests.
        max_consecutive_delete_failures
            Stop after this many failed delete requests in a row.

        Returns
        -------
        GCSummary
        """
        from icefloe.maintenance.gc import GCLimits, collect

        threads = _count_concurrent_reads(
            max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches,
        )
        limits = {
            "max_concurrent_deletes": max_concurrent_deletes,
            "max_consecutive_delete_failures": max_consecutive_delete_failures,
        }
        _check_positive(**limits, max_concurrent_listings=max_concurrent_listings)
        self._require_present_format("garbage collection", writable=True)
        cutoff, readers = to_microseconds(delete_object_older_than), self._make_readers(threads)
        return collect(self._refs, self._assets, cutoff, readers, dry_run=dry_run, limits=GCLimits(**limits))

    garbage_collect_async = async_twin(garbage_collect)

    def trim_ops_log(self, older_than: datetime, *, dry_run: bool = False) -> OpsLogTrim:
        """Delete backups of the repo info file that contain only operations before a given time.

        Every change to the repository keeps the previous repo info file as a backup, in which the ops log
        continues. The entries in the current file and all snapshots are kept. The ops log then ends at the
        first deleted backup.

        Parameters
        ----------
        older_than
            Delete backups whose newest operation was before this time.
        dry_run
            Only count the backups to delete.

        Returns
        -------
        OpsLogTrim
            The deleted backups, and the number of remaining operations.
        """
        from icefloe.core.refs.v2 import RefStoreV2
        from icefloe.maintenance.ops_log import trim_ops_log

        self._require_repo_info("the ops log")
        self._require_present_format("shortening the ops log", writable=not dry_run)
        if not isinstance(self._refs, RefStoreV2):
            raise TypeError("only repositories of version 2 have an ops log")
        return trim_ops_log(self._refs, self._assets.storage, to_microseconds(older_than), dry_run=dry_run)

    trim_ops_log_async = async_twin(trim_ops_log)

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

        self._require_present_format("garbage collection")
        return list_garbage(self._refs, self._assets, to_microseconds(older_than), self._make_readers())

    find_garbage_async = async_twin(find_garbage)

    def chunk_storage_stats(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * _MIB,
        max_decoded_manifest_mem_bytes: int = 4096 * _MIB,
        max_concurrent_manifest_fetches: int = 500,
    ) -> ChunkStorageStats:
        """Sum the sizes of all chunks reachable from branches and tags. Each chunk is counted once.

        Parameters
        ----------
        max_snapshots_in_memory, max_compressed_manifest_mem_bytes, max_decoded_manifest_mem_bytes
            Limits for files that are held in memory at the same time.
        max_concurrent_manifest_fetches
            Limit for concurrent requests.

        Returns
        -------
        ChunkStorageStats
        """
        from icefloe.maintenance.storage_stats import sum_chunk_storage

        threads = _count_concurrent_reads(
            max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches,
        )
        self._require_present_format("storage statistics")
        return sum_chunk_storage(self._refs, self._assets, self._make_readers(threads))

    chunk_storage_stats_async = async_twin(chunk_storage_stats)

    def total_chunks_storage(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * _MIB,
        max_decoded_manifest_mem_bytes: int = 4096 * _MIB,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Sum the sizes of native chunks in bytes. Deprecated: use `chunk_storage_stats`.

        Parameters
        ----------
        max_snapshots_in_memory, max_compressed_manifest_mem_bytes, max_decoded_manifest_mem_bytes
            Limits for files that are held in memory at the same time.
        max_concurrent_manifest_fetches
            Limit for concurrent requests.

        Returns
        -------
        int
        """
        options = {name: value for name, value in locals().items() if name != "self"}
        warnings.warn(
            "total_chunks_storage is deprecated; use chunk_storage_stats",
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
        """Sum the sizes of native chunks in bytes. Deprecated: use `chunk_storage_stats_async`.

        Parameters
        ----------
        max_snapshots_in_memory, max_compressed_manifest_mem_bytes, max_decoded_manifest_mem_bytes
            Limits for files that are held in memory at the same time.
        max_concurrent_manifest_fetches
            Limit for concurrent requests.

        Returns
        -------
        int
        """
        # Not an async_twin: a warning from another thread would not point to the caller's line.
        options = {name: value for name, value in locals().items() if name != "self"}
        warnings.warn(
            "total_chunks_storage_async is deprecated; use chunk_storage_stats_async",
            DeprecationWarning,
            stacklevel=2,
        )
        return (await self.chunk_storage_stats_async(**options)).native_bytes

    def storage_stats(
        self, by: Literal["array", "snapshot"] = "array", *, snapshot_id: str | None = None
    ) -> Table:
        """Sum the sizes of the chunks that each array or each snapshot refers to.

        Parameters
        ----------
        by
            "array": one row per array, largest first. "snapshot": one row per snapshot on a branch or tag,
            newest first.
        snapshot_id
            With `by="array"`: count only the chunks of this snapshot instead of all.

        Returns
        -------
        Table
            Columns: array and chunks, or snapshot, written_at and message; then native_bytes, virtual_bytes,
            inlined_bytes, unique_bytes (of chunks that no other array or snapshot refers to) and
            shared_bytes. Virtual chunks count as neither unique nor shared. Deleted arrays are identified by
            their node id.
        """
        from icefloe.maintenance.storage_stats import measure_by_array, measure_by_snapshot

        if by not in ("array", "snapshot"):
            raise ValueError(f"by must be 'array' or 'snapshot', not {by!r}")
        history = self._history("storage statistics")
        if by == "snapshot":
            return measure_by_snapshot(self._assets, history, self._threads())
        only = None if snapshot_id is None else self._refs.snapshot(SnapshotId.parse(snapshot_id)).id
        return measure_by_array(self._assets, history, only, self._threads())

    storage_stats_async = async_twin(storage_stats)

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: dict[str, Any] | None = None,
        commit_method: str = "new_commit",
    ) -> str:
        """Rewrite all manifests of a branch with the current configuration, in one commit.

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

    def keep_window(
        self,
        keep: timedelta | float,
        dim: str = "time",
        *,
        branch: str = "main",
        exact: bool = False,
        message: str | None = None,
        metadata: dict[str, Any] | None = None,
        dry_run: bool = False,
    ) -> WindowReport:
        """Keep only the latest labels along a dimension, and drop the oldest labels in one commit.

        Chunks are moved by reference. The window therefore starts at the last label that keeps at least
        `keep` and lies on a chunk boundary in every array with the dimension, except that arrays below 16 MiB
        are rewritten if necessary. Rows are dropped in all groups that have a coordinate `dim`. If other
        writers append in the meantime, the window is computed again.

        Parameters
        ----------
        keep
            The distance between the last label and the first label to keep: a duration for times, otherwise a
            number.
        dim
            The dimension.
        branch
            The branch to commit to.
        exact
            Cut exactly at this distance. Arrays in which no chunk starts there are rewritten.
        message, metadata
            The message and metadata of the commit.
        dry_run
            Report what would be dropped without changing anything.

        Returns
        -------
        WindowReport
            The new snapshot, and the numbers of rows that were dropped and kept.

        Raises
        ------
        InvalidInputError
            If there is no common chunk boundary, labels are not ascending, or an array has a rectilinear
            chunk grid. In these cases, nothing is changed.
        """
        from icefloe.maintenance.window import keep_window

        return keep_window(self, branch, dim, keep, exact, message, metadata, dry_run=dry_run)

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
        """Copy the repository to another storage, with the same ids, branches, tags and history.

        If the target is a clone of this repository, only new objects are copied. Call the method again to
        resume an interrupted clone. Branches and tags are moved only after all objects exist at the target in
        their full size. The files of virtual chunks and the ops log are not copied.

        Parameters
        ----------
        target
            The storage to copy to.
        branches, tags
            The branches and tags to copy; all by default. main is always copied.
        depth
            Copy only this many of the newest snapshots of each branch and tag, and the first snapshot.
        read_back
            Read every copy back and compare it with the original.
        overwrite
            Move branches even if commits at the target are lost.
        dry_run
            Only count the objects to copy.
        max_concurrent_requests, max_memory_bytes
            Limits for concurrent copies.
        progress
            A callback that receives the name of a folder, the number of copied objects and the total number.

        Returns
        -------
        CloneReport

        Raises
        ------
        ConflictError
            If a branch has commits at the target that the source lacks and `overwrite` is False.
        """
        from icefloe.maintenance.clone import CloneSelection, clone
        from icefloe.maintenance.copy_objects import CopyLimits

        return clone(
            self._opened,
            target,
            CloneSelection(
                None if branches is None else frozenset(branches),
                None if tags is None else frozenset(tags),
                depth,
            ),
            CopyLimits(max_concurrent_requests, max_memory_bytes),
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
        """Verify that all objects reachable from branches and tags exist and are intact.

        Damage is reported and does not raise an error.

        Parameters
        ----------
        level
            "graph" reads refs, snapshots, transaction logs and manifests; "objects" also checks that chunk
            objects exist, "sources" also the files of virtual references, and "chunks" also decodes all
            chunks.
        branch, tag, snapshot_id
            Check only one branch, tag or snapshot.
        history
            If False, check the selected snapshot without its ancestors.
        checksums
            Also compare all objects with the checksums that `record_checksums` stored. Always done at level
            "chunks".
        incremental
            Skip snapshots that an earlier incremental verification found intact at this level or a higher
            one. The record of intact snapshots is stored next to the repository, which must be writable.
        dry_run
            Only count the snapshots to check.
        max_concurrent_requests
            Limit for concurrent requests.

        Returns
        -------
        VerifyReport
        """
        from icefloe.maintenance.integrity.verify import as_level, list_snapshots_to_verify, verify

        as_level(level)
        _check_positive(max_concurrent_requests=max_concurrent_requests)
        self._require_present_format("verification")
        if sum(each is not None for each in (branch, tag, snapshot_id)) > 1:
            raise ValueError("pass at most one of branch, tag and snapshot_id")
        whole = branch is None and tag is None and snapshot_id is None
        tip = None if whole else self._resolve(branch, tag, snapshot_id)
        stored = self._bypass_disk_cache()
        return verify(
            stored._refs,
            stored._assets,
            self._threads(max_concurrent_requests),
            level,
            list_snapshots_to_verify(stored._refs, tip, history=history),
            lambda id: stored._session(SessionMode.readonly, id, None),
            checksums=checksums,
            incremental=incremental,
            dry_run=dry_run,
        )

    verify_async = async_twin(verify)

    def record_checksums(self, *, progress: Progress | None = None) -> int:
        """Record checksums of all used objects that have none yet, for later comparison by `verify`.

        Each of these objects is read once. The checksums are stored below `icefloe/`, which other readers and
        garbage collection ignore. Run `verify("chunks")` first, because checksums of damaged objects are
        recorded like any others.

        Parameters
        ----------
        progress
            A callback that receives a label, the number of objects read and the total number.

        Returns
        -------
        int
            The number of recorded checksums.
        """
        from icefloe.maintenance.integrity.checksums import record_checksums

        self._require_present_format("recording checksums")
        return record_checksums(self._refs, self._assets.storage, self._threads(), progress)

    record_checksums_async = async_twin(record_checksums)

    def collect_statistics(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        arrays: Sequence[str] | None = None,
    ) -> StatisticsReport:
        """Read the chunks that have no statistics yet, and record statistics that speed up queries.

        The statistics are stored below `icefloe/statistics/`, which other readers and their garbage
        collection ignore. Chunks that have statistics are not read again.

        Parameters
        ----------
        branch, tag, snapshot_id
            The version whose chunks are read; by default the tips of all branches and tags.
        arrays
            Paths of arrays; all by default.

        Returns
        -------
        StatisticsReport
            The number of chunks that were read, and of those that already had statistics.
        """
        from icefloe.maintenance.statistics.collect import collect_statistics

        self._require_present_format("collecting statistics")
        ids = {*self._refs.branches().values(), *self._refs.tags().values()}
        if (branch, tag, snapshot_id) != (None, None, None):
            ids = {self._resolve(branch, tag, snapshot_id)}
        sessions = [self.readonly_session(snapshot_id=str(id)) for id in sorted(ids)]
        return collect_statistics(sessions, self._threads(), arrays)

    collect_statistics_async = async_twin(collect_statistics)

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
        """Restore lost objects of a branch and its history, in one commit.

        Missing transaction logs are recomputed from the snapshots before and after them. Earlier snapshots do
        not change, so verify only the tip with `verify(branch=..., history=False)`, and expire the earlier
        snapshots.

        Parameters
        ----------
        branch
            The branch to repair.
        sources
            A source of lost chunks, or one per array path. It is a function that takes an array path and
            chunk coordinates, and returns stored bytes, values or None. See `ChunkSource.from_session` and
            `icefloe.ingest.LedgerChunks`.
        drop
            Delete references to chunks that no source has, so that they read as the fill value, and remove
            lost snapshots from the history. By default, these are left unchanged.
        checksums
            Also replace chunks whose bytes differ from the recorded checksum.
        virtual
            Also check the files of virtual references.
        relocate
            New URL prefixes for the files of virtual references, by old prefix. Implies `virtual`.
        dry_run
            Only report what would be done.
        message
            The message of the commit.

        Returns
        -------
        RepairReport
        """
        from icefloe.maintenance.integrity.repair import repair

        self._require_present_format("repair", writable=not dry_run)
        level: VerifyLevel = "sources" if virtual or relocate else "objects"
        stored = self._bypass_disk_cache()
        return repair(
            stored._refs,
            stored._assets,
            stored.verify(level, branch=branch, checksums=checksums).findings,
            lambda: stored._session_to_repair(branch, dry_run=dry_run),
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
                f"{gone.message}, the tip of {branch}; reset the branch to an existing snapshot",
                kind=ErrorKind.SNAPSHOT_NOT_FOUND,
            ) from None

    def _snapshot_id(self, text: str) -> SnapshotId:
        """Parse a snapshot id. Ids in the draft format are longer."""
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


def _run_checks(opened: RepositoryParts, handle: Handle, move: CheckedMove) -> None:
    """Run the checks on the snapshot that a protected branch would move to."""
    from icefloe.session import Session

    if not move.is_new and move.tip.parent_id is None:
        return  # the first snapshot of a repository, which has no data
    session = Session(
        mode=SessionMode.readonly,
        snapshot=move.tip.id,
        branch=None,
        refs=opened.refs,
        assets=opened.assets,
        config=opened.config,
        handle=handle,
    )
    run_checks(move.branch, move.checks, session, is_tip=not move.is_new)


def _collect_after_commit(session: Session, paths: Sequence[str]) -> None:
    from icefloe.maintenance.statistics.collect import collect_after_commit

    collect_after_commit(session, paths)


def upgrade_icechunk_repository(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> Repository:
    """Upgrade a repository from format version 1 to version 2, in place.

    Snapshots, manifests, transaction logs and chunks are unchanged. Branches, tags, history and configuration
    move into one new file. Stop all writers first. If one of them commits during the upgrade, the upgrade is
    undone. Sessions that were opened before the upgrade can no longer commit. Call the function again to
    resume an upgrade that was interrupted while it deleted version 1 files.

    Parameters
    ----------
    repo
        The repository. This object cannot be used after the upgrade.
    dry_run
        Read everything without writing anything.
    delete_unused_v1_files
        Delete the version 1 files that version 2 does not use.
    prefetch_concurrency
        The number of snapshots to read at the same time.

    Returns
    -------
    Repository
        The upgraded repository.

    Raises
    ------
    SessionStateError
        If the repository does not have format version 1.
    ConflictError
        If a branch or tag changed during the upgrade.
    """
    from icefloe.maintenance.upgrade_v1 import delete_files_of_version_1, upgrade

    threads = prefetch_concurrency or (1 if repo.storage.answers_at_once else _THREADS)
    executor, delete = repo.executor or ThreadExecutor(threads), delete_unused_v1_files
    if not upgrade(repo._refs, repo._assets, executor, dry_run=dry_run, delete_old_files=delete):
        return repo
    upgraded = Repository.open(
        repo.storage,
        config=repo._opened.config,
        authorize_virtual_chunk_access=repo._handle.authorized,
        attribution=repo.attribution,
    )._reopen(None, None, repo._handle.trusted)
    if delete_unused_v1_files:
        delete_files_of_version_1(repo.storage)
    repo.__class__ = _InvalidatedRepository
    return upgraded


class _InvalidatedRepository(Repository):
    """Stands in for a repository object that was opened before an upgrade and can no longer be used."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(
            "This repository has been invalidated by upgrade_icechunk_repository(). "
            "Use the new Repository object returned by that function instead."
        )

    def __repr__(self) -> str:
        return "<invalidated repository: use the one that upgrade_icechunk_repository returned>"


def _authorize(
    authorized: Mapping[str, AnyCredential | None] | None,
) -> dict[str, AnyCredential | None]:
    if not authorized:
        return {}
    from icefloe.credentials import check_authorization

    return check_authorization(authorized)


def _check_one_ref(branch: str | None, tag: str | None, snapshot_id: str | None) -> None:
    if sum(given is not None for given in (branch, tag, snapshot_id)) != 1:
        raise ValueError("Must provide one of branch, tag, or snapshot_id")


def _count_concurrent_reads(snapshots: int, compressed_bytes: int, decoded_bytes: int, requests: int) -> int:
    """Return how many files may be read at once within all limits, whatever their sizes."""
    _check_positive(
        max_snapshots_in_memory=snapshots,
        max_compressed_manifest_mem_bytes=compressed_bytes,
        max_decoded_manifest_mem_bytes=decoded_bytes,
        max_concurrent_manifest_fetches=requests,
    )
    return max(1, min(snapshots, requests, decoded_bytes // PLAUSIBLE_BYTES))


def _check_positive(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"invalid zero value: {name} must be at least 1, but is {count}")


def _to_public_version(spec: Spec) -> SpecVersion:
    return SpecVersion(spec.number or V1.number)


def _with(storage: Storage, settings: StorageSettings | None) -> Storage:
    return storage if settings is None else storage.with_settings(settings)
