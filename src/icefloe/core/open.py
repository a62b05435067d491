"""Finding out what stands at a place, and opening it.

What older formats need is loaded where one is met.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from icefloe.config import EffectiveConfig, RepositoryConfig
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2, stored_config
from icefloe.core.virtual_chunks.read import Authorized, VirtualReader
from icefloe.errors import ErrorKind, FormatError, RepositoryNotFoundError
from icefloe.format.files import REPO_PATH
from icefloe.format.repo_info import MAIN
from icefloe.format.spec import OLDER, V1, V2, Spec
from icefloe.storage.base import BucketNotFoundError, Storage

NO_CONFIG: Final = RepositoryConfig()
"""As it is without any setting."""


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
    from icefloe.format.refs_v1 import RefFile, RefKind
    from icefloe.legacy.assets import find_layout
    from icefloe.legacy.codec.files import ALPHA

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
    """The repository at a place, with its stored configuration under the given one.

    The virtual chunk containers of the given one are trusted with credentials.
    """
    refs, stored = _find_refs(storage)
    merged = None if stored is None else RepositoryConfig.from_plain(stored)
    if config is not None:
        merged = (merged or RepositoryConfig()).merge(config)
    opened = parts(storage, refs.spec, merged, authorized, containers_of(config))
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
    return NO_CONFIG.effective()


def containers_of(config: RepositoryConfig | None) -> frozenset[str]:
    """Return the url prefixes of the virtual chunk containers that a configuration has."""
    return frozenset((config.virtual_chunk_containers if config else None) or {})


def parts(
    storage: Storage,
    spec: Spec,
    config: RepositoryConfig | None,
    authorized: Authorized | None = None,
    trusted: Collection[str] = (),
) -> Opened:
    """A repository as the engine works with it, under a configuration, or the default one.

    `authorized` are the url prefixes of containers whose virtual chunks may be read, and how; `trusted` are
    those of containers whose endpoint is not taken from the stored configuration.
    """
    effective = _default_config() if config is None else config.effective()
    config = config or copy.deepcopy(NO_CONFIG)  # as good as a new one, and made in a third of the time
    if config.storage is not None:
        storage = storage.with_settings(config.storage)
    containers = config.virtual_chunk_containers or {}
    virtual = VirtualReader(containers, authorized or {}, config.storage, storage, trusted)
    if not spec.writable:
        from icefloe.legacy.assets import LegacyAssets
        from icefloe.legacy.refs import RefStoreLegacy

        older = LegacyAssets(storage, effective, virtual)
        return Opened(RefStoreLegacy(older), older, config)
    assets = AssetStore(storage, spec, effective, virtual)
    if spec.refs_in_repo_info:
        return Opened(RefStoreV2(storage, effective), assets, config)
    from icefloe.core.refs.v1 import RefStoreV1

    return Opened(RefStoreV1(assets), assets, config)
