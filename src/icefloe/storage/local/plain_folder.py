"""A folder for other programs than ours: its files are named as they are."""

from __future__ import annotations

from icefloe.storage.base import checked_path
from icefloe.storage.local.folder import LocalStorage


class PlainFolder(LocalStorage):
    """Objects as files under their own names, without the encoding that repositories in folders have."""

    def _file(self, path: str) -> str:
        return f"{self._root}/{checked_path(path)}"
