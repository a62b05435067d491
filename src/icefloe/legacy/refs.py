"""The ref store for formats before version 1, which is read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from icefloe._internal.ids import SnapshotId
from icefloe.core.refs.base import READ_ONLY_FORMAT, RefStore
from icefloe.errors import ErrorKind, RefNotFoundError, SnapshotNotFoundError
from icefloe.format.files import CONFIG_PATH
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.updates import RepoAvailability, RepoStatus
from icefloe.legacy.assets import LegacyAssets
from icefloe.legacy.codec.config import read_config
from icefloe.legacy.codec.files import SPEC
from icefloe.legacy.codec.refs import RefFiles, collect, decode_ref
from icefloe.storage.base import ObjectNotFoundError


class RefStoreLegacy(RefStore):
    """The read-only ref store of a legacy repository, whose branches consist of numbered files."""

    spec = SPEC

    def __init__(self, assets: LegacyAssets) -> None:
        self._assets = assets
        self._storage = assets.storage
        self._findings = assets.findings

    def files(self) -> RefFiles:
        """List the files of all branches and tags, and report missing files."""
        folders = self._assets.folders
        keys = (info.key for info in self._storage.list_prefix(f"{folders.refs}/"))
        found = collect(keys, folders)
        for name in found.branches:
            gaps = found.gaps(name)
            if gaps:
                numbers = ", ".join(map(str, gaps))
                self._findings.note(
                    f"branch {name}: the files of commits {numbers} are missing; its tip is known"
                )
        return found

    def target(self, path: str) -> SnapshotId:
        """Return the snapshot that a ref file points to."""
        return decode_ref(self._storage.get(path)[0], path, self._findings)[0]

    def properties(self, path: str) -> Mapping[str, Any]:
        """Return the additional properties in a ref file."""
        return decode_ref(self._storage.get(path)[0], path, self._findings)[1]

    def branches(self) -> Mapping[str, SnapshotId]:
        found = self.files()
        return {name: self.target(found.tip(name)) for name in found.branches}

    def tags(self) -> Mapping[str, SnapshotId]:
        found = self.files()
        alive = {name: path for name, path in found.tags.items() if name not in found.deleted_tags}
        return {name: self.target(path) for name, path in alive.items()}

    def branch(self, name: str) -> SnapshotId:
        found = self.files()
        if name not in found.branches:
            raise RefNotFoundError(f"branch not found: {name}", kind=ErrorKind.REF_NOT_FOUND)
        return self.target(found.tip(name))

    def tag(self, name: str) -> SnapshotId:
        found = self.files()
        if name not in found.tags or name in found.deleted_tags:
            raise RefNotFoundError(f"tag not found: {name}", kind=ErrorKind.REF_NOT_FOUND)
        return self.target(found.tags[name])

    def snapshot(self, id: SnapshotId) -> SnapshotInfo:
        found = self._assets.snapshot(id)
        return SnapshotInfo(found.id, found.parent_id, found.flushed_at_us, found.message, found.metadata)

    def ancestry(self, id: SnapshotId) -> Iterator[SnapshotInfo]:
        listed: dict[SnapshotId, SnapshotInfo] = {}
        seen: set[SnapshotId] = set()
        at: SnapshotId | None = id
        while at is not None and at not in seen:
            seen.add(at)
            info = self._find_known(at, listed)
            yield info
            at = info.parent_id

    def _find_known(self, id: SnapshotId, listed: dict[SnapshotId, SnapshotInfo]) -> SnapshotInfo:
        """Return a snapshot from its own file, or from the history in the files of its descendants."""
        try:
            stored = self._assets.stored(id)
        except SnapshotNotFoundError:
            if id not in listed:
                raise
            self._findings.note(f"snapshot {id} is missing; its message and time come from descendants")
            return listed[id]
        listed.update({info.id: info for info in stored.history if info.id not in listed})
        return self.snapshot(stored.snapshot.id)

    def config(self) -> dict[str, Any] | None:
        try:
            data, _ = self._storage.get(CONFIG_PATH)
        except ObjectNotFoundError:
            return None
        return read_config(data, CONFIG_PATH, self._findings)

    def status(self) -> RepoStatus:
        return RepoStatus(RepoAvailability.READ_ONLY, limited_availability_reason=READ_ONLY_FORMAT)
