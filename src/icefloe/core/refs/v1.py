"""Branches and tags of V1 repositories: one small file each, changed by compare-and-swap."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from icefloe._internal.ids import SnapshotId
from icefloe.core.assets import AssetStore
from icefloe.core.refs.backoff import retry_conflicts
from icefloe.core.refs.base import CollectedError, RefStore, check_storable, make_invalid_name_error
from icefloe.core.refs.collections_v1 import CollectionsFile
from icefloe.core.refs.v2 import make_backup_name
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.files import CONFIG_PATH, MANIFESTS, OVERWRITTEN, SNAPSHOTS, read_snapshot_info
from icefloe.format.refs_v1 import REFS, RefFile, RefKind, change_bytes, decode_ref, encode_ref
from icefloe.format.repo_changes import make_lost_base_error
from icefloe.format.repo_info import MAIN, SnapshotInfo
from icefloe.format.spec import V1
from icefloe.storage.base import (
    ABSENT,
    ConditionNotMetError,
    ObjectNotFoundError,
    PutCondition,
    Unchanged,
    Version,
)

# Characters that XML cannot contain. S3 deletion requests list objects in XML.
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f\ufffe\uffff]")


class RefStoreV1(RefStore):
    """The ref store of a V1 repository, with one file per branch and tag below `refs/`."""

    spec = V1

    def __init__(self, assets: AssetStore) -> None:
        self._assets = assets
        self._storage = assets.storage
        self._collections = CollectionsFile(assets)

    def create(self, snapshot: SnapshotId) -> None:
        """Create the main branch of a V1 repository; raise ConflictError if it already exists."""
        try:
            self._put(RefFile(RefKind.BRANCH, MAIN), snapshot, ABSENT)
        except ConditionNotMetError:
            raise ConflictError(
                message=f"there is already a repository in {self._storage.place}",
                kind=ErrorKind.BRANCH_UPDATE_CONFLICT,
            ) from None

    def _make_path(self, kind: RefKind, name: str) -> RefFile:
        """Return the path of a branch or tag. Raise an error if the name is invalid."""
        check_name(name)
        file = RefFile(kind, name)
        # The tombstone of a deleted tag has the longest path.
        if not self._storage.fits(RefFile(kind, name, deleted=True).path):
            raise make_invalid_name_error(name, f"it is too long for {self._storage.place}")
        return file

    def _list_files(self) -> list[RefFile]:
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
        """Create a ref file, on the condition that it does not exist yet.

        After a lost response, the storage recognizes its own write. If it cannot, neither can the caller:
        another writer may have created the same branch or tag, and both would assume success.
        """
        self._storage.require_conditional_writes()
        self._put(file, snapshot, ABSENT)

    def all_refs(self) -> dict[RefFile, SnapshotId | None]:
        """Return the snapshot of every branch and tag; None for tombstones of deleted tags."""
        found = {file: self._read(file) for file in self._list_files() if not file.deleted}
        marks: dict[RefFile, SnapshotId | None] = {file: None for file in self._list_files() if file.deleted}
        return marks | {file: each[0] for file, each in found.items() if each is not None}

    def branches(self) -> Mapping[str, SnapshotId]:
        files = [file for file in self._list_files() if file.kind is RefKind.BRANCH and not file.deleted]
        return {file.name: found[0] for file in files if (found := self._read(file)) is not None}

    def tags(self) -> Mapping[str, SnapshotId]:
        files = [file for file in self._list_files() if file.kind is RefKind.TAG]
        gone = {file.name for file in files if file.deleted}
        alive = [file for file in files if not file.deleted and file.name not in gone]
        return {file.name: found[0] for file in alive if (found := self._read(file)) is not None}

    def _branch(self, name: str) -> tuple[SnapshotId, Version]:
        found = self._read(self._make_path(RefKind.BRANCH, name))
        if found is None:
            raise _make_not_found_error("branch", name)
        return found

    def branch(self, name: str) -> SnapshotId:
        return self._branch(name)[0]

    def tag(self, name: str) -> SnapshotId:
        found = self._read(self._make_path(RefKind.TAG, name))
        if found is None or self._storage.exists(RefFile(RefKind.TAG, name, deleted=True).path):
            raise _make_not_found_error("tag", name)
        return found[0]

    def create_branch(self, name: str, snapshot: SnapshotId) -> None:
        file = self._make_path(RefKind.BRANCH, name)
        with self._protect_ref(file, snapshot):
            try:
                self._create(file, snapshot)
            except ConditionNotMetError:
                tip = str(self.branch(name))
                raise ConflictError(None, tip, kind=ErrorKind.BRANCH_UPDATE_CONFLICT) from None

    def delete_branch(self, name: str) -> None:
        if name == MAIN:
            raise SessionStateError("main branch cannot be deleted", kind=ErrorKind.CANNOT_DELETE_MAIN)
        self._branch(name)
        for _, failure in self._storage.delete([RefFile(RefKind.BRANCH, name).path]).failed:
            raise failure

    def reset_branch(self, name: str, snapshot: SnapshotId, expected: SnapshotId | None = None) -> None:
        with self._protect_ref(self._make_path(RefKind.BRANCH, name), snapshot) as replaced:
            replaced += self._move(name, snapshot, expected, ErrorKind.BRANCH_UPDATE_CONFLICT)

    @contextlib.contextmanager
    def _protect_ref(self, file: RefFile, snapshot: SnapshotId) -> Iterator[list[SnapshotId]]:
        """Point a ref to a snapshot that may be garbage, and verify that no garbage collection has deleted
        it.

        The ref is written before collections are checked, and a collection records itself before it reads
        refs. At least one of them therefore notices the other. If the snapshot may be deleted, the ref is
        restored to its previous target, which the `with` block appends to the list, or removed.
        """
        before = self._collections.read()
        replaced: list[SnapshotId] = []
        if not self._storage.exists(
            f"{SNAPSHOTS}/{snapshot}"
        ):  # bypass the cache, which may still contain the snapshot
            raise _make_no_snapshot_error(snapshot)
        self._assets.snapshot(snapshot)
        yield replaced
        now = self._collections.read()
        if now == before and not now.under_way_us:
            return
        if now.under_way_us and not self._is_reachable(snapshot, file, replaced):
            self._roll_back(file, snapshot, replaced)
            raise SessionStateError(
                f"a garbage collection is running and may delete snapshot {snapshot}, because no branch"
                " or tag leads to it; try again after the collection",
                kind=ErrorKind.NOT_ALLOWED,
            )
        try:
            for _ in self._read_stored_ancestry(snapshot):
                pass
        except (ObjectNotFoundError, FormatError):
            self._roll_back(file, snapshot, replaced)
            raise _make_no_snapshot_error(snapshot) from None

    def _is_reachable(self, snapshot: SnapshotId, file: RefFile | None, tips: Iterable[SnapshotId]) -> bool:
        """Return True if a snapshot can be reached from the given tips, or from any ref other than `file`."""
        others = (id for each, id in self.all_refs().items() if each != file and id is not None)
        for tip in {*tips, *others}:
            with contextlib.suppress(ObjectNotFoundError, FormatError):  # the history is broken and ends here
                if snapshot in self._read_stored_ancestry(tip):
                    return True
        return False

    def _read_stored_ancestry(self, id: SnapshotId) -> Iterator[SnapshotId]:
        """Yield a snapshot and its ancestors from the stored files, bypassing the cache, because expiration
        rewrites snapshot files.
        """
        at: SnapshotId | None = id
        while at is not None:
            data, _ = self._storage.get(f"{SNAPSHOTS}/{at}")
            yield at
            at = read_snapshot_info(data, at).parent_id

    def _roll_back(self, file: RefFile, snapshot: SnapshotId, replaced: Sequence[SnapshotId]) -> None:
        found = self._read(file)
        if found is None or found[0] != snapshot:
            return  # another writer has moved the ref
        if not replaced:
            self._storage.delete([file.path])
            return
        with contextlib.suppress(ConditionNotMetError):
            self._put(file, replaced[0], Unchanged(found[1]))

    def _move(
        self,
        name: str,
        to: SnapshotId,
        expected: SnapshotId | None,
        kind: ErrorKind,
        since: int | None = None,
    ) -> list[SnapshotId]:
        """Point a branch to a snapshot, from an expected tip or from any tip. Retry while other writers
        interfere.

        Raises CollectedError if garbage was collected after the mark `since`. Returns the previous tip.
        """
        self._storage.require_conditional_writes()
        written: list[SnapshotId] = []
        for _ in retry_conflicts(self._assets.config):
            tip, version = self._branch(name)
            if written and self._is_in_history(tip, to, expected):
                return written  # our write succeeded, but its response was lost
            if expected is not None and tip != expected:
                raise ConflictError(str(expected), str(tip), kind=kind)
            # Check after reading the version. A collection changes the version after setting its mark, so the
            # conditional write fails if the mark was set in between.
            if since is not None and self.now() != since:
                raise CollectedError
            try:
                self._put(RefFile(RefKind.BRANCH, name), to, Unchanged(version))
            except ConditionNotMetError:
                written = [tip]
            except StorageError:
                if self._is_in_history(self.branch(name), to, expected):
                    return [tip]
                raise
            else:
                return [tip]
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _is_in_history(self, tip: SnapshotId, snapshot: SnapshotId, base: SnapshotId | None) -> bool:
        """Return True if a snapshot is in the history between a tip and `base`."""
        if base is None:
            return tip == snapshot
        ids = (info.id for info in self.ancestry(tip))
        return snapshot in takewhile(lambda id: id != base, ids)

    def create_tag(self, name: str, snapshot: SnapshotId) -> None:
        file = self._make_path(RefKind.TAG, name)
        with self._protect_ref(file, snapshot):
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
            raise _make_not_found_error("tag", name) from None

    def now(self) -> int:
        """Return the time of the last recorded garbage collection, in microseconds since 1970-01-01 UTC."""
        return self._collections.read().last_us

    def note_collection(self) -> int:
        """Record a garbage collection before it deletes objects, and return its mark.

        A concurrent commit may have already looked for the record but not yet moved its branch. Therefore,
        all branch files are rewritten with the same meaning but a different version, which forces the commit
        to look again. If a commit moves its branch earlier, the collection sees it when it reads the refs
        afterwards.
        """
        begun_us = self._collections.begin()
        try:
            self._rewrite_branch_files(begun_us)
        except BaseException:
            self._collections.end(begun_us)
            raise
        return begun_us

    def _rewrite_branch_files(self, now_us: int) -> None:
        for file in self._list_files():
            if file.kind is RefKind.BRANCH and not file.deleted:
                with contextlib.suppress(ObjectNotFoundError, ConditionNotMetError):
                    data, version = self._storage.get(file.path)
                    self._storage.put(file.path, change_bytes(data, now_us), Unchanged(version))

    def note_end_of_collection(self, begun_us: int) -> None:
        """Record that a garbage collection has ended."""
        self._collections.end(begun_us)

    def advance(
        self, branch: str, base: SnapshotId, snapshot: SnapshotInfo, since: int | None = None
    ) -> None:
        self._move(branch, snapshot.id, base, ErrorKind.COMMIT_CONFLICT, since)

    def detach(self, snapshot: SnapshotInfo, since: int | None = None) -> None:
        """Check that the base of a detached snapshot still exists. V1 repositories do not register detached
        snapshots.
        """
        if since is not None and self.now() != since:
            raise CollectedError
        if snapshot.parent_id is not None and not self._is_safe(snapshot.parent_id):
            raise make_lost_base_error(snapshot.parent_id)

    def _is_safe(self, base: SnapshotId) -> bool:
        """Return True if a snapshot, its history and its manifests exist and are not being deleted.

        The new snapshot that requires them has already been written, so collections that start now keep them.
        """
        if base in {*self.branches().values(), *self.tags().values()}:
            return True
        if self._collections.read().under_way_us and not self._is_reachable(base, None, ()):
            return False
        try:
            for _ in self._read_stored_ancestry(base):
                pass
        except (ObjectNotFoundError, FormatError):
            return False
        # Official collections may delete manifests and keep the snapshot.
        manifests = self._assets.snapshot(base).manifest_files
        return all(self._storage.exists(f"{MANIFESTS}/{info.id}") for info in manifests)

    def snapshot(self, id: SnapshotId) -> SnapshotInfo:
        found = self._assets.snapshot(id)
        return SnapshotInfo(found.id, found.parent_id, found.flushed_at_us, found.message, found.metadata)

    def forget_history(self) -> None:
        # An expiration rewrites snapshot files, because they contain the id of their parent.
        self._assets.forget_snapshots()

    def keeps(self, id: SnapshotId) -> bool:
        return id in {*self.branches().values(), *self.tags().values()} or self._is_reachable(id, None, ())

    def _config(self) -> tuple[dict[str, Any], Version] | None:
        try:
            data, version = self._storage.get(CONFIG_PATH)
        except ObjectNotFoundError:
            return None
        from icefloe.format.config_yaml import decode_config_yaml  # PyYAML is slow to import

        return decode_config_yaml(data, CONFIG_PATH), version

    def config(self) -> dict[str, Any] | None:
        found = self._config()
        return None if found is None else found[0]

    def save_config(self, config: dict[str, Any]) -> None:
        from icefloe.format.config_yaml import encode_config_yaml  # PyYAML is slow to import

        self._storage.require_conditional_writes()
        found = self._config()
        condition: PutCondition = ABSENT
        if found is not None:
            backup = make_backup_name(time.time_ns() // 1_000_000, CONFIG_PATH)
            self._storage.back_up(CONFIG_PATH, f"{OVERWRITTEN}/{backup}", found[1])
            condition = Unchanged(found[1])
        try:
            self._storage.put(CONFIG_PATH, encode_config_yaml(config), condition)
        except ConditionNotMetError:
            raise ConflictError(
                message="another writer changed the configuration; try again", kind=ErrorKind.CONFIG_UPDATED
            ) from None

    def tip_to_write(self, name: str) -> SnapshotId:
        return self.branch(name)


def check_name(name: str) -> None:
    """Raise an error if a V1 branch or tag name cannot be used as a folder name in every storage."""
    check_storable(name)
    if not name or "/" in name or _UNSPEAKABLE.search(name):
        raise make_invalid_name_error(
            name, "it must not be empty or contain '/', control characters, U+FFFE or U+FFFF"
        )


def _make_no_snapshot_error(id: SnapshotId) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(f"snapshot not found: {id}", kind=ErrorKind.SNAPSHOT_NOT_FOUND)


def _make_not_found_error(what: str, name: str) -> RefNotFoundError:
    return RefNotFoundError(f"ref not found: there is no {what} `{name}`", kind=ErrorKind.REF_NOT_FOUND)
