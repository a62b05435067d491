"""Finding out what stands at a place, and starting a repository there."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

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
from icefloe.format.first_files import INITIAL_SNAPSHOT, first_files
from icefloe.format.legacy.files import ALPHA
from icefloe.format.refs_v1 import RefFile, RefKind
from icefloe.format.repo_info import MAIN
from icefloe.format.spec import OLDER, V1, V2, Spec
from icefloe.ids import INITIAL_SNAPSHOT_ID
from icefloe.storage.base import BucketNotFoundError, Storage

_NO_CONFIG: Final = RepositoryConfig()


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
    merged = None if stored is None else RepositoryConfig.from_plain(stored)
    if config is not None:
        merged = (merged or RepositoryConfig()).merge(config)
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
    older = parts(storage, spec, None).refs
    return older, older.config()


@cache
def _default_config() -> EffectiveConfig:
    return _NO_CONFIG.effective()


def parts(
    storage: Storage, spec: Spec, config: RepositoryConfig | None, authorized: Authorized | None = None
) -> Opened:
    """A repository as the engine works with it, under a configuration, or the default one.

    `authorized` are the url prefixes of containers whose virtual chunks may be read, and how.
    """
    effective = _default_config() if config is None else config.effective()
    config = config or copy.deepcopy(_NO_CONFIG)  # as good as a new one, and made in a third of the time
    if config.storage is not None:
        storage = storage.with_settings(config.storage)
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
    opened = parts(storage, spec, config, authorized)
    assets, now_us = opened.assets, time.time_ns() // 1000
    assets.storage.require_conditional_writes()
    plain = None if config is None or config == _NO_CONFIG else config.to_plain()
    if isinstance(opened.refs, RefStoreV2):
        stored = None if plain is None else encode_config(plain)
        first = first_files(now_us, stored, assets.config.compression_level)
        assets.put_snapshot(first.snapshot, first.snapshot_file)
        assets.put_transaction_log(first.log, first.log_file)
        opened.refs.create(first.info, first.info_file)
    elif isinstance(opened.refs, RefStoreV1):
        assets.write_snapshot(replace(INITIAL_SNAPSHOT, flushed_at_us=now_us))
        if plain is not None:
            opened.refs.save_config(plain)  # a repository without its configuration is never seen
        opened.refs.create(INITIAL_SNAPSHOT_ID)
    return opened
