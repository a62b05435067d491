"""Repositories: open or create one, look through its history, move its branches and tags, start sessions."""

from __future__ import annotations

import copy
import logging
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from icefloe._internal.concurrency import (
    AsyncCloseableIterator,
    async_class_twin,
    async_static_twin,
    async_twin,
)
from icefloe._internal.ids import ManifestId, SnapshotId
from icefloe._internal.redaction import redact
from icefloe._internal.telemetry import traced
from icefloe._internal.times import to_microseconds
from icefloe.branching import BranchOperations
from icefloe.care import Care
from icefloe.config import Attribution, RepositoryConfig, StorageSettings
from icefloe.config.display import Shown, Tree, qualified
from icefloe.core.handle import Recipe
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
from icefloe.core.refs.base import unsupported
from icefloe.core.refs.v2 import FLAG_NAMES, check_flag
from icefloe.core.virtual_chunks.range_reads import ReadLimits
from icefloe.core.virtual_chunks.read import Authorized
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError
from icefloe.format.metadata import plain_metadata
from icefloe.format.spec import V1, Spec
from icefloe.history import pages as history_pages
from icefloe.history import snapshots as history
from icefloe.history.snapshots import public_snapshot, public_status, stored_status
from icefloe.legacy.layout import ALL_LAYOUTS
from icefloe.snapshots import Diff, ManifestFileInfo, SnapshotInfo
from icefloe.storage.base import Storage
from icefloe.types import FeatureFlag, RepoStatus, SessionMode, SpecVersion

if TYPE_CHECKING:
    from icefloe.ancestry_graph import AncestryGraph
    from icefloe.conflicts import ConflictSolver
    from icefloe.credentials import AnyCredential
    from icefloe.ops import Update
    from icefloe.session import Session
    from icefloe.store import IcechunkStore

__all__ = ["Repository"]

_logger = logging.getLogger(__name__)
_MOVE_NODE = 3


class Repository(BranchOperations, Care, Shown):
    """A versioned hierarchy of Zarr groups and arrays.

    Made by `create`, `open` and `open_or_create`. Pickles, with the credentials of its storage in the pickle.
    """

    def __init__(
        self,
        opened: Opened,
        recipe: Recipe,
        attribution: Attribution | None = None,
    ) -> None:
        """Not for users: see `create`, `open` and `open_or_create`."""
        self._recipe = recipe
        self._attribution = attribution or Attribution()
        self._commit_metadata: dict[str, Any] = {}
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
        recipe = Recipe(storage, opened.layout, opened.config, authorized, trusted)
        return cls(opened, recipe, attribution)

    def __getstate__(self) -> dict[str, Any]:
        derived = {"_opened", "_refs", "_assets", "_config_in_effect", "_executor"}
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opened = self._recipe.open()
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
        trusted = containers_of(config) if replaced else self._recipe.trusted
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
        authorized = self._recipe.authorized
        if authorize_virtual_chunk_access is not None:
            authorized = _checked_authorization(authorize_virtual_chunk_access)
        opened = parts(self._recipe.storage, self._recipe.layout, merged, authorized, trusted)
        return type(self)._of(opened, self._recipe.storage, authorized, self._attribution, trusted)

    reopen_async = async_twin(reopen)

    # What it is

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the configuration in effect; change it with `reopen`."""
        return copy.deepcopy(self._config_in_effect)

    @cached_property
    def _config_in_effect(self) -> RepositoryConfig:
        config = copy.deepcopy(self._opened.config)
        config.storage = self._recipe.storage.default_settings().merge(config.storage or StorageSettings())
        return config

    @property
    def storage(self) -> Storage:
        """Where the repository is kept."""
        return self._recipe.storage

    @property
    def attribution(self) -> Attribution:
        """What requests say of their sender."""
        return self._attribution

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """The url prefixes below which virtual chunks may be read."""
        return set(self._recipe.authorized)

    @property
    def virtual_read_limits(self) -> ReadLimits:
        """How far reads of neighbouring virtual chunks of one file are joined; may be set.

        Kept in this object, its sessions and their pickles, not in the repository.
        """
        return self._recipe.read_limits

    @virtual_read_limits.setter
    def virtual_read_limits(self, limits: ReadLimits) -> None:
        self._recipe = replace(self._recipe, read_limits=limits, token=uuid.uuid4().hex)
        self._assets.virtual.limits = limits

    @property
    def spec_version(self) -> SpecVersion:
        """The version of the format; those before version 1, which are only read, count as version 1."""
        return _public_version(self._refs.spec)

    def tree(self) -> Tree:
        # docstring inherited
        title = f"{qualified('', 'Repository')} ({self.spec_version.name})"
        return Tree(title, (("storage", self._recipe.storage.tree()), ("config", "<RepositoryConfig ...>")))

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
            recipe=self._recipe,
            commit_metadata=self._commit_metadata,
        )

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
