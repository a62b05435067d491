"""The layout of repositories in formats before version 1. The decoders are imported on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from icefloe.config import EffectiveConfig
from icefloe.core.open import LAYOUTS, Layout
from icefloe.core.virtual_chunks.authorized_reads import VirtualReader
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.refs_v1 import RefFile, RefKind
from icefloe.format.repo_info import MAIN
from icefloe.storage.base import Storage

if TYPE_CHECKING:
    from icefloe.format.spec import Spec
    from icefloe.legacy.assets import LegacyAssets
    from icefloe.legacy.refs import RefStoreLegacy


class LegacyLayout:
    """The read-only layout of legacy repositories, whose branches consist of numbered files. See `Layout` for
    the docstrings.
    """

    @property
    def spec(self) -> Spec:
        from icefloe.legacy.codec.files import SPEC

        return SPEC

    def is_present(self, storage: Storage, newer: Layout | None = None) -> bool:
        from icefloe.legacy.assets import find_folders
        from icefloe.legacy.codec.files import ALPHA

        folders = find_folders(storage, by_name=newer is not None)
        if folders is not None and newer is not None:
            main = RefFile(RefKind.BRANCH, MAIN).path
            where = "in the same folders" if folders is ALPHA else f"below {folders.refs}/"
            raise FormatError(
                f"the location contains repositories of two formats: {main} has version 1, and there are "
                f"branches of an older format {where}; move one of them",
                kind=ErrorKind.INVALID_FILE_FORMAT,
            )
        return folders is not None

    def open(
        self, storage: Storage, config: EffectiveConfig, virtual: VirtualReader
    ) -> tuple[RefStoreLegacy, LegacyAssets]:
        from icefloe.legacy.assets import LegacyAssets
        from icefloe.legacy.refs import RefStoreLegacy

        assets = LegacyAssets(storage, config, virtual)
        return RefStoreLegacy(assets), assets


LEGACY: Final = LegacyLayout()
ALL_LAYOUTS: Final[tuple[Layout, ...]] = (*LAYOUTS, LEGACY)
"""All layouts that can be opened, newest first."""
