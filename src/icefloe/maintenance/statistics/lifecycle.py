"""Handle statistics files during garbage collection, cloning and verification."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import ManifestId, encode_column
from icefloe._internal.times import from_microseconds
from icefloe.errors import IcechunkError
from icefloe.format.files import MANIFESTS
from icefloe.maintenance.listings import Ids, list_folder
from icefloe.maintenance.statistics.files import FOLDER, FileName, list_files, open_file
from icefloe.storage.base import ObjectNotFoundError, Storage, StorageObjectInfo


def find_orphans(storage: Storage, older_than_us: int, deleted: Ids) -> list[StorageObjectInfo]:
    """Find old statistics files whose manifests no longer exist, so that garbage collection can delete
    them.
    """
    # List statistics first, because the manifest of a statistics file is written before that file.
    cutoff = from_microseconds(older_than_us)
    old = [info for info in storage.list_prefix(f"{FOLDER}/") if info.created_at < cutoff]
    named = [(info, name) for info in old if (name := FileName.parse(info.key)) is not None]
    if not named:
        return []
    gone = set(encode_column(deleted))
    there = set(encode_column(list_folder(storage, MANIFESTS).ids)) - gone
    return [info for info, name in named if name.manifest not in there]


def copy_statistics(source: Storage, target: Storage, executor: Executor) -> int:
    """Copy the statistics files of a clone's manifests, and return how many were copied."""
    names = list_files(source)
    if not names:
        return 0
    manifests = set(encode_column(list_folder(target, MANIFESTS).ids))
    there = {name.path for name in list_files(target)}
    paths = [name.path for name in names if name.manifest in manifests and name.path not in there]
    return sum(executor.map(Task(partial(_copy, source, target), "statistics files"), paths))


def _copy(source: Storage, target: Storage, path: str) -> int:
    try:
        target.put(path, source.get(path)[0])
    except ObjectNotFoundError:  # a garbage collection deleted it
        return 0
    return 1


def find_damaged(
    storage: Storage, manifests: list[ManifestId], executor: Executor
) -> Iterator[tuple[str, str | None]]:
    """Verify the statistics files of manifests. Yield the path of each file, and its damage or None."""
    names = list_files(storage, [str(each) for each in manifests])
    paths = [name.path for name in names]
    return zip(paths, executor.map(Task(partial(_check, storage), "statistics files"), paths), strict=True)


def _check(storage: Storage, path: str) -> str | None:
    try:
        header, columns = open_file(storage.get(path)[0], path)
    except ObjectNotFoundError:
        return None
    except IcechunkError as damage:
        return str(damage)
    whole = header["rows"] == 0 or len(columns) % header["rows"] == 0
    return None if whole else f"{path}: the columns do not have {header['rows']} rows"
