"""Repositories: open or create one, look through its history, move its branches and tags, start sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from icefloe.concurrency import async_twin
from icefloe.config import RepositoryConfig
from icefloe.core.diff import logs_diff
from icefloe.core.opening import Opened, create_parts, find_spec, open_parts, require_spec
from icefloe.core.refs_v2 import FLAG_NAMES, check_flag, check_writable
from icefloe.errors import ErrorKind, InvalidInputError, SnapshotNotFoundError
from icefloe.format import repo_info
from icefloe.format.spec import V1, V2, Spec
from icefloe.ids import SnapshotId
from icefloe.session import Session
from icefloe.snapshots import Diff, ManifestFileInfo, SnapshotInfo, from_microseconds, to_microseconds
from icefloe.storage.base import Storage
from icefloe.store import IcechunkStore
from icefloe.types import FeatureFlag, SessionMode, SpecVersion

_MOVE_NODE = 3


class Repository:
    """A versioned hierarchy of Zarr groups and arrays."""

    def __init__(self, opened: Opened, storage: Storage) -> None:
        """Not for users: see `create`, `open` and `open_or_create`."""
        self._opened = opened
        self._storage = storage
        self._refs = opened.refs
        self._assets = opened.assets
        self._commit_metadata: dict[str, Any] = {}

    # Opening and creating

    @classmethod
    def create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        *,
        spec_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,
    ) -> Repository:
        """Start a repository in an empty place."""
        spec = _spec(spec_version)
        return cls(create_parts(storage, spec, config, check_clean_root=check_clean_root), storage)

    @classmethod
    def open(cls, storage: Storage, config: RepositoryConfig | None = None) -> Repository:
        """The repository at a place."""
        return cls(open_parts(storage, require_spec(storage), config), storage)

    @classmethod
    def open_or_create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        *,
        create_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,
    ) -> Repository:
        """The repository at a place, started if there is none."""
        if find_spec(storage) is not None:
            return cls.open(storage, config)
        return cls.create(storage, config, spec_version=create_version, check_clean_root=check_clean_root)

    @staticmethod
    def exists(storage: Storage) -> bool:
        """Whether there is a repository at a place."""
        return find_spec(storage) is not None

    @staticmethod
    def fetch_spec_version(storage: Storage) -> SpecVersion | None:
        """The version of the format that a repository has; None where there is none."""
        spec = find_spec(storage)
        return None if spec is None else SpecVersion(spec.number)

    @staticmethod
    def fetch_config(storage: Storage) -> RepositoryConfig | None:
        """The configuration stored in a repository; None where it has none."""
        opened = open_parts(storage, require_spec(storage), None)
        return None if opened.refs.config() is None else opened.config

    # What it is

    @property
    def config(self) -> RepositoryConfig:
        """The configuration in effect."""
        return self._opened.config

    @property
    def storage(self) -> Storage:
        """Where the repository is kept."""
        return self._storage

    @property
    def spec_version(self) -> SpecVersion:
        """The version of the format."""
        return SpecVersion(self._refs.spec.number)

    def __repr__(self) -> str:
        kind = self._storage.describe()["type"]
        return f"<icefloe.Repository>\nstorage: {kind}\nspec_version: {self.spec_version.name}"

    def save_config(self) -> None:
        """Store the configuration in effect in the repository."""
        self._refs.save_config(self.config.to_plain())

    save_config_async = async_twin(save_config)

    def set_default_commit_metadata(self, metadata: dict[str, Any]) -> None:
        """Metadata for the commits of all sessions to come; kept in this object alone."""
        self._commit_metadata = dict(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """What `set_default_commit_metadata` was given."""
        return dict(self._commit_metadata)

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
        self._refs.set_metadata(metadata)

    set_metadata_async = async_twin(set_metadata)

    def update_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Merge into the repository's metadata; the result."""
        return dict(self._refs.update_metadata(metadata))

    update_metadata_async = async_twin(update_metadata)

    def feature_flags(self) -> list[FeatureFlag]:
        """All feature flags."""
        settings = self._refs.feature_flags()
        return [FeatureFlag(id, name, True, settings.get(id)) for id, name in FLAG_NAMES.items()]

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
        numbers = {known: id for id, known in FLAG_NAMES.items()}
        if name not in numbers:
            known = ", ".join(sorted(numbers))
            raise InvalidInputError(
                f"there is no feature flag {name!r}; there are {known}", kind=ErrorKind.INVALID_FEATURE_FLAG
            )
        self._refs.set_feature_flag(numbers[name], setting)

    set_feature_flag_async = async_twin(set_feature_flag)

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
        return _public(self._refs.snapshot(SnapshotId.parse(snapshot_id)))

    lookup_snapshot_async = async_twin(lookup_snapshot)

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifests of a snapshot."""
        snapshot = self._assets.snapshot(SnapshotId.parse(snapshot_id))
        return [ManifestFileInfo(str(i.id), i.size_bytes, i.num_chunk_refs) for i in snapshot.manifest_files]

    list_manifest_files_async = async_twin(list_manifest_files)

    def ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> Iterator[SnapshotInfo]:
        """A snapshot and its ancestors, newest first."""
        return map(_public, self._refs.ancestry(self._resolve(branch, tag, snapshot_id)))

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
        steps = []
        for info in self._refs.ancestry(end):
            if info.id == start:
                break
            steps.append(info)
        else:
            steps = []
        if not steps:
            raise InvalidInputError(
                f"{start} is not an ancestor of {end}", kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF
            )
        ids = [id for info in reversed(steps) for id in (*info.pruned_ancestor_tx_logs, info.id)]
        logs = map(self._assets.transaction_log, ids)
        return logs_diff(logs, self._assets.snapshot(start), self._assets.snapshot(end))

    diff_async = async_twin(diff)

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
        if as_of is not None and branch is None:
            raise ValueError("as_of requires a branch to be specified")
        id = self._resolve(branch, tag, snapshot_id)
        if as_of is not None:
            id = self._as_of(id, to_microseconds(as_of), branch)
        return self._session(SessionMode.readonly, id, None)

    readonly_session_async = async_twin(readonly_session)

    def _as_of(self, tip: SnapshotId, at_us: int, branch: str | None) -> SnapshotId:
        for info in self._refs.ancestry(tip):
            if info.flushed_at_us <= at_us:
                return info.id
        raise SnapshotNotFoundError(
            f"branch {branch} has no snapshot as old as that", kind=ErrorKind.NO_SNAPSHOT_AT_TIME
        )

    def writable_session(self, branch: str) -> Session:
        """A session whose changes can be committed to a branch."""
        check_writable(self._refs.status())
        return self._session(SessionMode.writable, self._refs.branch(branch), branch)

    writable_session_async = async_twin(writable_session)

    def rearrange_session(self, branch: str) -> Session:
        """A session that moves and renames nodes, and does nothing else."""
        check_writable(self._refs.status())
        check_flag(self._refs.feature_flags(), _MOVE_NODE)
        return self._session(SessionMode.rearrange, self._refs.branch(branch), branch)

    rearrange_session_async = async_twin(rearrange_session)

    @contextmanager
    def transaction(
        self, branch: str, *, message: str, metadata: Mapping[str, Any] | None = None
    ) -> Iterator[IcechunkStore]:
        """A store whose changes are committed at the end of the block, if it did not raise."""
        session = self.writable_session(branch)
        yield session.store
        session.commit(message, metadata)

    def _session(self, mode: SessionMode, id: SnapshotId, branch: str | None) -> Session:
        return Session(
            mode=mode,
            snapshot=self._assets.snapshot(id),
            branch=branch,
            refs=self._refs,
            assets=self._assets,
            config=self.config,
            commit_metadata=self._commit_metadata,
        )

    def _resolve(self, branch: str | None, tag: str | None, snapshot_id: str | None) -> SnapshotId:
        if sum(given is not None for given in (branch, tag, snapshot_id)) != 1:
            raise ValueError("Must provide one of branch, tag, or snapshot_id")
        if branch is not None:
            return self._refs.branch(branch)
        if tag is not None:
            return self._refs.tag(tag)
        return self._refs.snapshot(SnapshotId.parse(snapshot_id or "")).id


def _spec(version: SpecVersion | int | None) -> Spec:
    specs = {None: V2, 1: V1, 2: V2}
    if isinstance(version, bool) or version not in specs:
        raise ValueError(f"Unsupported version {version}")
    return specs[version]


def _public(info: repo_info.SnapshotInfo) -> SnapshotInfo:
    parent_id = None if info.parent_id is None else str(info.parent_id)
    return SnapshotInfo(
        str(info.id), parent_id, from_microseconds(info.flushed_at_us), info.message, dict(info.metadata)
    )
