"""Repositories of all releases with random damage: every flipped bit and every deleted object is found.

`make test` damages a few places of a few repositories, ICEFLOE_DAMAGES=500 that many of each.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

import icefloe
from icefloe import Repository, in_memory_storage
from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, encode_column
from icefloe.errors import IcechunkError, SessionStateError
from icefloe.maintenance.integrity import catalogue
from icefloe.maintenance.integrity.findings import VerifyLevel, VerifyReport
from icefloe.storage.base import Storage
from tests.support.format import golden

DAMAGES = int(os.environ.get("ICEFLOE_DAMAGES", "0"))
QUICK = ("v1-0.2.0-basic", "v1-1.1.21-expire_gc", "v2-2.0.0-expire_gc", "migrated-1.1.21-to-2.3.0-virtual")
NAMES = golden.NAMES if DAMAGES else QUICK
OLDER = golden.OLDER_NAMES if DAMAGES else golden.OLDER_NAMES[::6]


def stored(name: str) -> Storage:
    """Copy a repository of an official release to memory."""
    storage = in_memory_storage()
    for path, data in golden.load(name).files.items():
        storage.put(path, data)
    return storage


def flipped(data: bytes, places: random.Random) -> bytes:
    """Return bytes with one bit flipped."""
    bit = places.randrange(len(data) * 8)
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def recorded(storage: Storage) -> list[str]:
    """Return the objects in the catalogue."""
    known = catalogue.load(storage)
    return [
        f"{folder}/{name}"
        for folder in catalogue.FOLDERS
        for name in encode_column(catalogue.get_row_ids(known.of(folder)))
    ]


def samples(paths: list[str], places: random.Random) -> Iterator[str]:
    """Return the same number of objects of each folder."""
    by_folder = {
        folder: [path for path in paths if path.startswith(f"{folder}/")] for folder in catalogue.FOLDERS
    }
    for at in range(DAMAGES or 8):
        choice = by_folder[catalogue.FOLDERS[at % len(catalogue.FOLDERS)]]
        if choice:
            yield places.choice(choice)


def objects_named(report: VerifyReport) -> set[str]:
    return {found.object for found in report.findings}


@pytest.mark.parametrize("name", NAMES)
def test_flipped_bit_anywhere_is_found_by_its_checksum(name: str) -> None:
    places = random.Random(name)
    storage = stored(name)
    Repository.open(storage).record_checksums()
    paths = recorded(storage)
    assert Repository.open(storage).verify("objects", checksums=True).ok

    for path in samples(paths, places):
        data, _ = storage.get(path)
        storage.put(path, flipped(data, places))

        report = Repository.open(storage).verify("graph", checksums=True)

        assert path in objects_named(report), path
        storage.put(path, data)


@pytest.mark.parametrize("name", NAMES)
def test_any_deleted_object_is_found_at_its_level(name: str) -> None:
    """A first snapshot needs no transaction log, so only the catalogue shows that one is missing."""
    places = random.Random(name)
    storage = stored(name)
    Repository.open(storage).record_checksums()

    for path in samples(recorded(storage), places):
        data, _ = storage.get(path)
        storage.delete([path])
        repo = Repository.open(storage)

        level: VerifyLevel = "objects" if path.startswith("chunks/") else "graph"
        found = objects_named(repo.verify(level))
        found_by_checksums = objects_named(repo.verify("graph", checksums=True))

        assert path in found_by_checksums, path
        assert path in found or path == f"transactions/{INITIAL_SNAPSHOT_ID}", path
        storage.put(path, data)


@pytest.mark.parametrize("name", [name for name in NAMES if golden.load(name).has_repo_info])
def test_flipped_bit_in_the_repo_info_file_is_found(name: str) -> None:
    places = random.Random(name)
    storage = stored(name)
    Repository.open(storage).record_checksums()
    data, _ = storage.get("repo")

    for _ in range(DAMAGES or 8):
        storage.put("repo", flipped(data, places))
        try:
            found = objects_named(Repository.open(storage).verify("graph", checksums=True))
        except IcechunkError:  # so much is wrong that it cannot be opened
            continue
        assert found


@pytest.mark.parametrize("name", OLDER)
def test_migration_reports_missing_objects(name: str) -> None:
    """Missing refs and transaction logs cannot be detected."""
    storage = stored(name)
    looked_for = {"s", "m", "c", "snapshots", "manifests", "chunks"}

    for path in [path for path, _ in storage.list_objects() if path.partition("/")[0] in looked_for]:
        data, _ = storage.get(path)
        storage.delete([path])

        try:
            told = bool(icefloe.migrate(storage, dry_run=True).gaps)
        except SessionStateError:  # nothing is left of main
            told = path.startswith("s")

        assert told, path
        storage.put(path, data)


@pytest.mark.parametrize("name", OLDER)
def test_migration_of_a_damaged_repository_fails_or_is_correct(name: str) -> None:
    """Chunks are not damaged here, because the formats have no checksums for them."""
    places = random.Random(name)
    storage = stored(name)
    files = golden.load(name).files
    paths = [path for path, data in files.items() if data and path.partition("/")[0] not in ("c", "chunks")]

    told = 0
    for _ in range(DAMAGES or 8):
        path = places.choice(paths)
        data, _ = storage.get(path)
        storage.put(path, flipped(data, places))
        try:
            told += bool(icefloe.migrate(storage, dry_run=True).gaps)
        except IcechunkError:
            told += 1
        storage.put(path, data)

    assert told
