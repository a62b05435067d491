"""Detect the layout of a repository and open it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

from icefloe.config import EffectiveConfig, RepositoryConfig
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2, decode_stored_config
from icefloe.core.virtual_chunks.authorized_reads import Authorized, VirtualReader
from icefloe.errors import RepositoryNotFoundError
from icefloe.format.files import REPO_PATH
from icefloe.format.repo_info import MAIN
from icefloe.format.spec import V1, V2, Spec
from icefloe.storage.base import BucketNotFoundError, Storage
from icefloe.storage.disk_cache import CachedLocation, DiskCache
from icefloe.types import SpecVersion

NO_CONFIG: Final = RepositoryConfig()
"""A configuration in which nothing is set."""


class Layout(Protocol):
    """The file layout of one format version. It detects, opens and creates repositories of that version.

    Layouts have no state: a pickled repository contains its layout.
    """

    @property
    def spec(self) -> Spec:
        """The capabilities of repositories with this layout."""
        ...

    def is_present(self, storage: Storage, newer: Layout | None = None) -> bool:
        """Return True if there is a repository with this layout in the storage.

        Raises FormatError if there is also a repository with a `newer` layout.
        """
        ...

    def open(
        self, storage: Storage, config: EffectiveConfig, virtual: VirtualReader
    ) -> tuple[RefStore, AssetStore]:
        """Create the objects that read and write a repository with this layout.

        Nothing is read yet.
        """
        ...


class LayoutV2:
    """The layout of version 2, with one repo info file for all refs.

    See `Layout` for the docstrings.
    """

    spec = V2

    def is_present(self, storage: Storage, newer: Layout | None = None) -> bool:
        return storage.exists(REPO_PATH)

    def open(
        self, storage: Storage, config: EffectiveConfig, virtual: VirtualReader
    ) -> tuple[RefStore, AssetStore]:
        return RefStoreV2(storage, config), AssetStore(storage, V2, config, virtual)


class LayoutV1:
    """The layout of version 1, with one file per branch and tag.

    See `Layout` for the docstrings.
    """

    spec = V1

    def is_present(self, storage: Storage, newer: Layout | None = None) -> bool:
        from icefloe.format.refs_v1 import RefFile, RefKind

        return storage.exists(RefFile(RefKind.BRANCH, MAIN).path)

    def open(
        self, storage: Storage, config: EffectiveConfig, virtual: VirtualReader
    ) -> tuple[RefStore, AssetStore]:
        from icefloe.core.refs.v1 import RefStoreV1

        assets = AssetStore(storage, V1, config, virtual)
        return RefStoreV1(assets), assets


LAYOUT_V2: Final = LayoutV2()
LAYOUT_V1: Final = LayoutV1()
LAYOUTS: Final[tuple[Layout, ...]] = (LAYOUT_V2, LAYOUT_V1)
"""The writable layouts, newest first. `icefloe.legacy` adds read-only layouts."""


@dataclass(frozen=True, slots=True)
class RepositoryParts:
    """The parts of an opened repository: storage, assets, refs and configuration."""

    refs: RefStore
    assets: AssetStore
    config: RepositoryConfig
    layout: Layout


def choose_layout(version: SpecVersion | int | None) -> Layout:
    """Return the file layout of a format version; raise ValueError for an unknown version."""
    layouts: dict[int | None, Layout] = {None: LAYOUT_V2, 1: LAYOUT_V1, 2: LAYOUT_V2}
    if version is not None and not isinstance(version, int):
        raise ValueError(
            f"Couldn't parse a valid version: expected a SpecVersion or a number, not {version!r}"
        )
    if isinstance(version, bool) or version not in layouts:
        raise ValueError(f"Unsupported version {version}")
    return layouts[version]


def find_layout(storage: Storage, layouts: Sequence[Layout]) -> Layout | None:
    """Detect the file layout of a repository; None if there is no repository in the storage."""
    newest, *older = layouts
    return newest if newest.is_present(storage) else _find_older_layout(storage, older)


def _find_older_layout(storage: Storage, layouts: Sequence[Layout]) -> Layout | None:
    found = None
    try:
        for layout in layouts:
            if layout.is_present(storage, newer=found):
                found = layout
    except BucketNotFoundError:
        return None
    return found


def open_parts(
    storage: Storage,
    layouts: Sequence[Layout],
    config: RepositoryConfig | None,
    authorized: Authorized | None = None,
    disk_cache: DiskCache | None = None,
) -> RepositoryParts:
    """Open the repository in a storage, and return its parts. `config` overrides the stored configuration.

    The virtual chunk containers in `config` may receive credentials. `layouts` starts with version 2.
    """
    layout, refs, stored = _find_refs(storage, layouts)
    merged = None if stored is None else RepositoryConfig.from_plain(stored)
    if config is not None:
        merged = (merged or RepositoryConfig()).merge(config)
    opened = make_parts(storage, layout, merged, authorized, list_containers(config), disk_cache)
    if isinstance(refs, RefStoreV2) and isinstance(opened.refs, RefStoreV2):
        opened.refs.take_over(refs)
    return opened


def _find_refs(storage: Storage, layouts: Sequence[Layout]) -> tuple[Layout, RefStore, dict[str, Any] | None]:
    """Load the refs and the stored configuration. A V2 repository takes a single read."""
    newest, *older = layouts
    refs = RefStoreV2(storage, _make_default_config())
    try:
        return newest, refs, decode_stored_config(refs.load())
    except RepositoryNotFoundError:
        layout = _find_older_layout(storage, older)
        if layout is None:
            raise
    found = make_parts(storage, layout, None).refs
    return layout, found, found.config()


@cache
def _make_default_config() -> EffectiveConfig:
    return NO_CONFIG.effective()


def list_containers(config: RepositoryConfig | None) -> frozenset[str]:
    """Return the URL prefixes of the virtual chunk containers in a configuration."""
    return frozenset((config.virtual_chunk_containers if config else None) or {})


def make_parts(
    storage: Storage,
    layout: Layout,
    config: RepositoryConfig | None,
    authorized: Authorized | None = None,
    trusted: Collection[str] = (),
    disk_cache: DiskCache | None = None,
) -> RepositoryParts:
    """Create the parts of an opened repository, with the given configuration or the default one.

    `authorized` contains the credentials for virtual chunk containers, by URL prefix. `trusted` contains the
    prefixes of containers whose endpoints do not come from the stored configuration.
    """
    effective = _make_default_config() if config is None else config.effective()
    config = config or copy.deepcopy(NO_CONFIG)  # three times as fast as creating a configuration
    if config.storage is not None:
        storage = storage.with_settings(config.storage)
    containers = config.virtual_chunk_containers or {}
    virtual = VirtualReader(containers, authorized or {}, config.storage, storage, trusted)
    refs, assets = layout.open(storage, effective, virtual)
    if disk_cache is not None:
        assets.disk = virtual.disk = CachedLocation(disk_cache, storage.identity)
    return RepositoryParts(refs, assets, config, layout)
