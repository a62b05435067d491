"""Finding out what stands at a place, and starting a repository there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import Any

from icefloe.config import EffectiveConfig, RepositoryConfig
from icefloe.core.assets import AssetStore
from icefloe.core.assets_legacy import LegacyAssets, find_layout
from icefloe.core.refs import RefStore
from icefloe.core.refs_legacy import RefStoreLegacy
from icefloe.core.refs_v1 import RefStoreV1
from icefloe.core.refs_v2 import RefStoreV2, stored_config
from icefloe.core.virtual_reads import Authorized, VirtualReader
from icefloe.errors import ConflictError, ErrorKind, FormatError, InvalidInputError, RepositoryNotFoundError
from icefloe.format.config_codec import encode_config
from icefloe.format.files import REPO_PATH
from icefloe.format.legacy.files import ALPHA
from icefloe.format.refs_v1 import RefFile, RefKind
from icefloe.format.repo_info import MAIN, RepoInfo, SnapshotInfo, SnapshotInfos
from icefloe.format.snapshot import ManifestFiles, Nodes, Snapshot
from icefloe.format.spec import OLDER, V1, V2, Spec
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.updates import RepoInitialized, RepoStatus, Update, Updates
from icefloe.ids import INITIAL_SNAPSHOT_ID
from icefloe.storage.base import BucketNotFoundError, Storage

_INITIAL_MESSAGE = "Repository initialized"
_INITIAL_METADATA: dict[str, Any] = {"__icechunk": {"is_root": True}}


@dataclass(frozen=True, slots=True)
class Opened:
    """The parts of a repository that the engine works with."""

    refs: RefStore
    assets: AssetStore
    config: RepositoryConfig


def find_spec(storage: Storage) -> Spec | None:
    """The version of the repository at a place; None where there is none."""
    if storage.exists(REPO_PATH):
        return V2
    return _find_spec_before_repo_info(storage)


def _find_spec_before_repo_info(storage: Storage) -> Spec | None:
    main = RefFile(RefKind.BRANCH, MAIN).path
    try:
        has_main = storage.exists(main)
        older = find_layout(storage, by_name=has_main)
    except BucketNotFoundError:
        return None
    if has_main and older is not None:
        where = "in the same folders" if older is ALPHA else f"below {older.refs}/"
        raise FormatError(
            f"repositories of two formats in one place: {main} is of version 1, "
            f"and there are branches of an older format {where}; move one of them elsewhere",
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    if older is not None:
        return OLDER
    return V1 if has_main else None


def open_parts(
    storage: Storage, config: RepositoryConfig | None, authorized: Authorized | None = None
) -> Opened:
    """The repository at a place, with its stored configuration under the given one."""
    refs, stored = _find_refs(storage)
    merged = RepositoryConfig.from_plain(stored) if stored is not None else RepositoryConfig()
    if config is not None:
        merged = merged.merge(config)
    opened = parts(storage, refs.spec, merged, authorized)
    if isinstance(refs, RefStoreV2) and isinstance(opened.refs, RefStoreV2):
        opened.refs.take_over(refs)
    return opened


def _find_refs(storage: Storage) -> tuple[RefStore, dict[str, Any] | None]:
    """The references at a place and the stored configuration, from one read where it is a V2 repository."""
    newer = RefStoreV2(storage, _default_config())
    try:
        return newer, stored_config(newer.load())
    except RepositoryNotFoundError:
        spec = _find_spec_before_repo_info(storage)
        if spec is None:
            raise
    older = parts(storage, spec, RepositoryConfig()).refs
    return older, older.config()


@cache
def _default_config() -> EffectiveConfig:
    return RepositoryConfig().effective()


def parts(
    storage: Storage, spec: Spec, config: RepositoryConfig, authorized: Authorized | None = None
) -> Opened:
    """A repository as the engine works with it, under a configuration.

    `authorized` are the url prefixes of containers whose virtual chunks may be read, and how.
    """
    if config.storage is not None:
        storage = storage.with_settings(config.storage)
    effective = config.effective()
    virtual = VirtualReader(config.virtual_chunk_containers or {}, authorized or {}, config.storage)
    if not spec.writable:
        older = LegacyAssets(storage, effective, virtual)
        return Opened(RefStoreLegacy(older), older, config)
    assets = AssetStore(storage, spec, effective, virtual)
    refs = RefStoreV2(storage, effective) if spec.refs_in_repo_info else RefStoreV1(assets)
    return Opened(refs, assets, config)


def create_parts(
    storage: Storage,
    spec: Spec,
    config: RepositoryConfig | None,
    authorized: Authorized | None = None,
    *,
    check_clean_root: bool,
) -> Opened:
    """Start a repository: the initial snapshot first, then the ref that makes it one."""
    storage.prepare_for_creation()
    if check_clean_root:
        stray = next(storage.list_prefix(""), None)
        if stray is not None:
            raise InvalidInputError(
                f"a repository is created in an empty place, and there is {stray.key} in {storage.place};"
                " choose another place, or pass check_clean_root=False to keep what is there",
                kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
            )
    elif find_layout(storage) is not None:
        raise ConflictError(
            message="there is a repository of an older format at this place already; "
            "icefloe.migrate turns it into version 2",
            kind=ErrorKind.REPO_INFO_UPDATED,
        )
    opened = parts(storage, spec, config or RepositoryConfig(), authorized)
    opened.assets.storage.require_conditional_writes()
    now_us = time.time_ns() // 1000
    snapshot = Snapshot(
        INITIAL_SNAPSHOT_ID,
        None,
        now_us,
        _INITIAL_MESSAGE,
        _INITIAL_METADATA,
        ManifestFiles.of([]),
        Nodes.of([]),
    )
    opened.assets.write_snapshot(snapshot)
    plain = None if config is None or config == RepositoryConfig() else config.to_plain()
    if isinstance(opened.refs, RefStoreV2):
        opened.assets.write_transaction_log(TransactionLog.of(INITIAL_SNAPSHOT_ID))
        opened.refs.create(_first_repo_info(snapshot, plain))
    elif isinstance(opened.refs, RefStoreV1):
        if plain is not None:
            opened.refs.save_config(plain)  # a repository without its configuration is never seen
        opened.refs.create(INITIAL_SNAPSHOT_ID)
    return opened


def _first_repo_info(snapshot: Snapshot, config: dict[str, Any] | None) -> RepoInfo:
    info = SnapshotInfo(snapshot.id, None, snapshot.flushed_at_us, snapshot.message, snapshot.metadata)
    return RepoInfo(
        snapshots=SnapshotInfos.of([info]),
        branches={MAIN: snapshot.id},
        tags={},
        deleted_tags=frozenset(),
        status=RepoStatus(set_at_us=snapshot.flushed_at_us),
        latest_updates=Updates.of([Update(RepoInitialized(), snapshot.flushed_at_us)]),
        config=None if config is None else encode_config(config),
    )
