"""Copy objects between storages in batches, in parallel and within a memory limit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from icefloe._internal.executor import Executor, Progress, Task, ThreadExecutor
from icefloe._internal.ids import encode_column
from icefloe.core.assets import make_object_metadata
from icefloe.errors import ErrorKind, StorageError
from icefloe.format.files import CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS
from icefloe.format.id_columns import is_member, view_id_keys
from icefloe.format.spec import Spec
from icefloe.maintenance.listings import Ids, ObjectListing
from icefloe.storage.base import ObjectKind, ObjectNotFoundError, Storage

_FILE_TYPES: Final = {SNAPSHOTS: "snapshot", MANIFESTS: "manifest", TRANSACTIONS: "transaction-log"}


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Limits on concurrent copies between storages: their number and their memory use."""

    max_concurrent_requests: int = 64
    max_memory_bytes: int = 512 << 20

    def threads_for(self, listing: ObjectListing) -> int:
        """Return how many threads can copy objects at the same time within the memory limit."""
        largest = int(listing.sizes.max(initial=1))
        return max(1, min(self.max_concurrent_requests, self.max_memory_bytes // (2 * largest)))


@dataclass(frozen=True, slots=True)
class Copier:
    """Copies objects from one storage to another."""

    source: Storage
    target: Storage
    spec: Spec
    read_back: bool
    """True to read each copy back and compare it with the original."""

    def copy_all(
        self, listing: ObjectListing, executor: Executor | None, limits: CopyLimits, progress: Progress | None
    ) -> None:
        """Copy all objects in a listing to another storage."""
        batches = list(listing.batches())
        running = executor or ThreadExecutor(limits.threads_for(listing), "copies")
        results = running.map(Task(partial(_copy_batch, self), "batches of objects"), batches)
        done = 0
        for batch, _ in zip(batches, results, strict=True):
            done += len(batch)
            if progress is not None:
                progress(listing.folder, done, len(listing))

    def copy(self, folder: str, path: str) -> None:
        """Copy one object to another storage."""
        try:
            data, _ = self.source.get(path)
        except ObjectNotFoundError:
            raise _make_missing_error(path, self.source) from None
        if folder == CHUNKS:
            self.target.put(path, data, kind=ObjectKind.CHUNK)
        else:
            self.target.put(path, data, metadata=make_object_metadata(self.spec, _FILE_TYPES[folder]))
        if self.read_back and self.target.get(path)[0] != data:
            raise StorageError(
                f"{path} in {self.target.place} differs from the bytes that were just written",
                kind=ErrorKind.STORAGE_OTHER,
            )


def _copy_batch(copier: Copier, batch: ObjectListing) -> None:
    for path in batch.paths():
        copier.copy(batch.folder, path)
    copier.target.sync()  # another process may have moved the refs


def find_needed_rows(listed: ObjectListing, needed: Ids, storage: Storage) -> ObjectListing:
    """Find the objects to copy in a sorted listing, and return their rows. Raise StorageError if one is
    missing.
    """
    missing = needed[~is_member(needed, listed.ids)]
    if len(missing):
        raise _make_missing_error(f"{listed.folder}/{encode_column(missing[:1])[0]}", storage)
    return listed.take(view_id_keys(listed.ids).searchsorted(view_id_keys(needed)))


def find_missing(wanted: ObjectListing, existing: ObjectListing) -> ObjectListing:
    """Return the rows of objects that another listing lacks or lists with a different size."""
    same, sizes = existing.find(wanted.ids)
    same[same] = sizes == wanted.sizes[same]
    return wanted.take(~same)


def _make_missing_error(path: str, storage: Storage) -> StorageError:
    return StorageError(
        f"{path} is missing from {storage.place}. If a garbage collection deleted it meanwhile, try again; "
        "otherwise `verify` lists what else is missing",
        kind=ErrorKind.OBJECT_NOT_FOUND,
    )
