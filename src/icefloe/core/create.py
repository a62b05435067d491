"""Create repositories."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID
from icefloe.config import RepositoryConfig
from icefloe.core.open import NO_CONFIG, Layout, RepositoryParts, list_containers, make_parts
from icefloe.core.refs.base import MIGRATE
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.core.virtual_chunks.authorized_reads import Authorized
from icefloe.errors import ConflictError, ErrorKind, Hint, InvalidInputError
from icefloe.format.config_flexbuffers import encode_config
from icefloe.format.first_files import INITIAL_SNAPSHOT, make_first_files
from icefloe.storage.base import Storage
from icefloe.storage.disk_cache import DiskCache


def create_parts(
    storage: Storage,
    layout: Layout,
    config: RepositoryConfig | None,
    authorized: Authorized | None = None,
    *,
    check_clean_root: bool,
    layouts: Sequence[Layout],
    disk_cache: DiskCache | None = None,
) -> RepositoryParts:
    """Create a repository by writing its initial snapshot, and then the ref that makes it visible.

    Raises ConflictError if one of the read-only `layouts` is already at the location.
    """
    storage.prepare_for_creation()
    if check_clean_root:
        stray = next(storage.list_prefix(""), None)
        if stray is not None:
            raise InvalidInputError(
                f"a repository requires an empty location, but {storage.place} contains {stray.key};"
                " choose another location",
                kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
            ).with_hint(Hint("or pass {check_clean_root} to keep the existing files", check_clean_root=False))
    elif any(not each.spec.writable and each.is_present(storage) for each in layouts):
        raise ConflictError(
            message="this location already contains a repository of an older format; choose another location",
            kind=ErrorKind.REPO_INFO_UPDATED,
        ).with_hint(MIGRATE)
    opened = make_parts(storage, layout, config, authorized, list_containers(config), disk_cache)
    assets, now_us = opened.assets, time.time_ns() // 1000
    assets.storage.require_conditional_writes()
    plain = None if config is None or config == NO_CONFIG else config.to_plain()
    if isinstance(opened.refs, RefStoreV2):
        stored = None if plain is None else encode_config(plain)
        first = make_first_files(now_us, stored, assets.config.compression_level)
        assets.put_snapshot(first.snapshot, first.snapshot_file)
        assets.put_transaction_log(first.log, first.log_file)
        opened.refs.create(first.info, first.info_file)
    elif isinstance(opened.refs, RefStoreV1):
        assets.write_snapshot(replace(INITIAL_SNAPSHOT, flushed_at_us=now_us))
        if plain is not None:
            opened.refs.save_config(
                plain
            )  # written first, so that readers never see a repository without its configuration
        opened.refs.create(INITIAL_SNAPSHOT_ID)
    return opened
