"""References of V1 repositories: a small file per branch and tag, each changed by compare-and-swap."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any, Final, NoReturn

from icefloe.core.assets import AssetStore
from icefloe.core.refs import CollectedError, check_storable, invalid_name, unsupported
from icefloe.core.refs_v2 import backup_name
from icefloe.core.retries import attempts
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    RefNotFoundError,
    SessionStateError,
    StorageError,
)
from icefloe.format.config_codec import decode_config_yaml, encode_config_yaml
from icefloe.format.files import CONFIG_PATH, OVERWRITTEN
from icefloe.format.refs_v1 import REFS, RefFile, RefKind, decode_ref, encode_ref, respelt
from icefloe.format.repo_info import MAIN, SnapshotInfo
from icefloe.format.spec import V1
from icefloe.format.updates import RepoStatus, Update
from icefloe.ids import SnapshotId
from icefloe.storage.base import (
    ABSENT,
    ConditionNotMetError,
    ObjectNotFoundError,
    PutCondition,
    Unchanged,
    Version,
)

# What has no place in XML: S3 names the objects to delete in it.
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f\ufffe\uffff]")


COLLECTED: Final = f"{OVERWRITTEN}/collected.icefloe"
"""When icefloe last collected garbage. It lies among backups, where no reader and no collection looks."""


class RefStoreV1:
    """A `RefStore` over the files below `refs/`. The docstrings of its methods are those of `RefStore`."""

    spec = V1

    def __init__(self, assets: AssetStore) -> None:
        self._assets = assets
        self._storage = assets.storage

    def create(self, snapshot: SnapshotId) -> None:
        """Write the first branch; ConflictError if there is one already."""
        try:
            self._put(RefFile(RefKind.BRANCH, MAIN), snapshot, ABSENT)
        except ConditionNotMetError:
            raise ConflictError(
                message=f"there is a repository in {self._storage.place} already",
                kind=ErrorKind.BRANCH_UPDATE_CONFLICT,
            ) from None

    def _file(self, kind: RefKind, name: str) -> RefFile:
        """The file of a branch or tag of that name, if it can be one's here."""
        check_name(name)
        file = RefFile(kind, name)
        # The mark of a deleted tag is the longest path.
        if not self._storage.fits(RefFile(kind, name, deleted=True).path):
            raise invalid_name(name, f"it is too long for {self._storage.place}")
        return file

    def _files(self) -> list[RefFile]:
        found = (RefFile.parse(info.key) for info in self._storage.list_prefix(f"{REFS}/"))
        return [file for file in found if file is not None]

    def _read(self, file: RefFile) -> tuple[SnapshotId, Version] | None:
        try:
            data, version = self._storage.get(file.path)
        except ObjectNotFoundError:
            return None
        return decode_ref(data, file.path), version

    def _put(self, file: RefFile, snapshot: SnapshotId, condition: PutCondition) -> None:
        self._storage.put(file.path, encode_ref(snapshot), condition)

    def _create(self, file: RefFile, snapshot: SnapshotId) -> None:
        """Write a file that is not there yet.

        A storage knows its own write again when the answer was lost. Where it does not, nobody can: somebody
        else may have made the same branch or tag, and both would be told that it is theirs.
        """
        self._storage.require_conditional_writes()
        self._put(file, snapshot, ABSENT)

    def all_refs(self) -> dict[RefFile, SnapshotId | None]:
        """Every branch and tag with what it points to, and the marks of deleted tags."""
        found = {file: self._read(file) for file in self._files() if not file.deleted}
        marks: dict[RefFile, SnapshotId | None] = {file: None for file in self._files() if file.deleted}
        return marks | {file: each[0] for file, each in found.items() if each is not None}

    def branches(self) -> Mapping[str, SnapshotId]:
        files = [file for file in self._files() if file.kind is RefKind.BRANCH and not file.deleted]
        return {file.name: found[0] for file in files if (found := self._read(file)) is not None}

    def tags(self) -> Mapping[str, SnapshotId]:
        files = [file for file in self._files() if file.kind is RefKind.TAG]
        gone = {file.name for file in files if file.deleted}
        alive = [file for file in files if not file.deleted and file.name not in gone]
        return {file.name: found[0] for file in alive if (found := self._read(file)) is not None}

    def _branch(self, name: str) -> tuple[SnapshotId, Version]:
        found = self._read(self._file(RefKind.BRANCH, name))
        if found is None:
            raise _not_found("branch", name)
        return found

    def branch(self, name: str) -> SnapshotId:
        return self._branch(name)[0]

    def tag(self, name: str) -> SnapshotId:
        found = self._read(self._file(RefKind.TAG, name))
        if found is None or self._storage.exists(RefFile(RefKind.TAG, name, deleted=True).path):
            raise _not_found("tag", name)
        return found[0]

    def create_branch(self, name: str, snapshot: SnapshotId) -> None:
        file = self._file(RefKind.BRANCH, name)
        self._assets.snapshot(snapshot)
        try:
            self._create(file, snapshot)
        except ConditionNotMetError:
            raise ConflictError(None, str(self.branch(name)), kind=ErrorKind.BRANCH_UPDATE_CONFLICT) from None

    def delete_branch(self, name: str) -> None:
        if name == MAIN:
            raise SessionStateError("main branch cannot be deleted", kind=ErrorKind.CANNOT_DELETE_MAIN)
        self._branch(name)
        for _, failure in self._storage.delete([RefFile(RefKind.BRANCH, name).path]).failed:
            raise failure

    def reset_branch(self, name: str, snapshot: SnapshotId, expected: SnapshotId | None = None) -> None:
        self._assets.snapshot(snapshot)
        self._move(name, snapshot, expected, ErrorKind.BRANCH_UPDATE_CONFLICT)

    def _move(
        self,
        name: str,
        to: SnapshotId,
        expected: SnapshotId | None,
        kind: ErrorKind,
        since: int | None = None,
    ) -> None:
        """Point a branch elsewhere, from where it is expected or from anywhere, again and again while others
        write in between; not after a collection since a mark.
        """
        self._storage.require_conditional_writes()
        written = False
        for _ in attempts(self._assets.config):
            tip, version = self._branch(name)
            if written and self._follows(tip, to, expected):
                return  # the answer to our write was lost, and others may have gone on from it
            if expected is not None and tip != expected:
                raise ConflictError(str(expected), str(tip), kind=kind)
            # After the version was read, which a collection changes after it has set its mark.
            if since is not None and self.now() != since:
                raise CollectedError
            try:
                self._put(RefFile(RefKind.BRANCH, name), to, Unchanged(version))
            except ConditionNotMetError:
                written = True
            except StorageError:
                if self._follows(self.branch(name), to, expected):
                    return
                raise
            else:
                return

    def _follows(self, tip: SnapshotId, snapshot: SnapshotId, base: SnapshotId | None) -> bool:
        """Whether a snapshot is in a history, looking no further back than `base`."""
        if base is None:
            return tip == snapshot
        ids = (info.id for info in self.ancestry(tip))
        return snapshot in takewhile(lambda id: id != base, ids)

    def create_tag(self, name: str, snapshot: SnapshotId) -> None:
        file = self._file(RefKind.TAG, name)
        self._assets.snapshot(snapshot)
        try:
            self._create(file, snapshot)
        except ConditionNotMetError:
            raise AlreadyExistsError(
                f"tag already exists, or was deleted: {name}", kind=ErrorKind.TAG_ALREADY_EXISTS
            ) from None

    def delete_tag(self, name: str) -> None:
        self.tag(name)
        self._storage.require_conditional_writes()
        try:
            self._storage.put(RefFile(RefKind.TAG, name, deleted=True).path, b"", ABSENT)
        except ConditionNotMetError:
            raise _not_found("tag", name) from None

    def check_tip(self, branch: str, base: SnapshotId) -> None:
        tip = self.branch(branch)
        if tip != base:
            raise ConflictError(str(base), str(tip), kind=ErrorKind.COMMIT_CONFLICT)

    def now(self) -> int:
        """The time of the last collection by icefloe, in microseconds; there is no log of others."""
        try:
            return int(self._storage.get(COLLECTED)[0])
        except (ObjectNotFoundError, ValueError):
            return 0

    def note_collection(self) -> None:
        """Tell sessions that are open now that what they wrote may be deleted.

        A commit that has looked for the mark already, and not moved its branch yet, has to look again:
        branches get another version, with the same meaning. One that moves its branch before that is seen by
        whoever reads refs thereafter.
        """
        now_us = time.time_ns() // 1000
        self._storage.put(COLLECTED, str(now_us).encode())
        for file in self._files():
            if file.kind is RefKind.BRANCH and not file.deleted:
                with contextlib.suppress(ObjectNotFoundError, ConditionNotMetError):
                    data, version = self._storage.get(file.path)
                    self._storage.put(file.path, respelt(data, now_us), Unchanged(version))

    def advance(
        self, branch: str, base: SnapshotId, snapshot: SnapshotInfo, since: int | None = None
    ) -> None:
        self._move(branch, snapshot.id, base, ErrorKind.COMMIT_CONFLICT, since)

    def amend(
        self, branch: str, base: SnapshotId, snapshot: SnapshotInfo, since: int | None = None
    ) -> NoReturn:
        raise unsupported("amend", self.spec)

    def detach(self, snapshot: SnapshotInfo, since: int | None = None) -> None:
        """Nothing to do: the file itself makes a snapshot known."""
        if since is not None and self.now() != since:
            raise CollectedError

    def snapshot(self, id: SnapshotId) -> SnapshotInfo:
        found = self._assets.snapshot(id)
        return SnapshotInfo(found.id, found.parent_id, found.flushed_at_us, found.message, found.metadata)

    def ancestry(self, id: SnapshotId) -> Iterator[SnapshotInfo]:
        seen: set[SnapshotId] = set()
        at: SnapshotId | None = id
        while at is not None and at not in seen:
            seen.add(at)
            info = self.snapshot(at)
            yield info
            at = info.parent_id

    def _config(self) -> tuple[dict[str, Any], Version] | None:
        try:
            data, version = self._storage.get(CONFIG_PATH)
        except ObjectNotFoundError:
            return None
        return decode_config_yaml(data, CONFIG_PATH), version

    def config(self) -> dict[str, Any] | None:
        found = self._config()
        return None if found is None else found[0]

    def save_config(self, config: dict[str, Any]) -> None:
        self._storage.require_conditional_writes()
        found = self._config()
        condition: PutCondition = ABSENT
        if found is not None:
            backup = backup_name(time.time_ns() // 1_000_000, CONFIG_PATH)
            self._storage.back_up(CONFIG_PATH, f"{OVERWRITTEN}/{backup}", found[1])
            condition = Unchanged(found[1])
        try:
            self._storage.put(CONFIG_PATH, encode_config_yaml(config), condition)
        except ConditionNotMetError:
            raise ConflictError(
                message="the configuration was changed by somebody else", kind=ErrorKind.CONFIG_UPDATED
            ) from None

    def metadata(self) -> Mapping[str, Any]:
        raise unsupported("metadata of the repository", self.spec)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        raise unsupported("metadata of the repository", self.spec)

    def update_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        raise unsupported("metadata of the repository", self.spec)

    def tip_to_write(self, name: str) -> SnapshotId:
        return self.branch(name)

    def status(self) -> RepoStatus:
        return RepoStatus()

    def set_status(self, status: RepoStatus) -> None:
        raise unsupported("a status of the repository", self.spec)

    def feature_flags(self) -> Mapping[int, bool]:
        return {}

    def set_feature_flag(self, flag: int, setting: bool | None) -> None:
        raise unsupported("a feature flag", self.spec)

    def ops_log(self) -> Iterator[Update]:
        raise unsupported("the ops log", self.spec)


def check_name(name: str) -> None:
    """Refuse names that cannot be a folder's in every place."""
    check_storable(name)
    if not name or "/" in name or _UNSPEAKABLE.search(name):
        raise invalid_name(
            name, "it must not be empty, nor contain '/', control characters or U+FFFE and U+FFFF"
        )


def _not_found(what: str, name: str) -> RefNotFoundError:
    return RefNotFoundError(f"ref not found: there is no {what} `{name}`", kind=ErrorKind.REF_NOT_FOUND)
