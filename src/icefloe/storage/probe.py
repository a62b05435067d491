"""Test whether a storage honours conditional writes, before entrusting data to it.

Some S3-compatible servers accept write conditions but ignore them. Then two concurrent writers both succeed,
and one commit is silently lost.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from icefloe.errors import StorageError
from icefloe.storage.base import ABSENT, PutCondition, Storage, Unchanged, Version, accepts

RACERS = 6
ROUNDS = 3
CLEANING_PAUSES = (0.0, 0.1, 0.5, 1.0)  # seconds between a deletion and the next listing


@dataclass(frozen=True, slots=True)
class ProbeCheck:
    """The result of one check of a probe. If it failed, it describes the incorrect behaviour of the
    storage.
    """

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The results of all checks of a probe on one storage."""

    place: str
    checks: tuple[ProbeCheck, ...]

    @property
    def safe(self) -> bool:
        """True if the probe found that concurrent commits are safe."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        lines = [
            f"{'ok    ' if check.passed else 'FAILED'} {check.name}{f': {check.detail}' * bool(check.detail)}"
            for check in self.checks
        ]
        verdict = "safe for concurrent commits" if self.safe else "NOT safe for concurrent commits"
        return "\n".join([f"{self.place}: {verdict}", *lines])


def probe(storage: Storage) -> ProbeReport:
    """Test reads, writes, conditional writes and races in a separate folder of a storage, which is deleted
    afterwards.

    If the storage cannot be reached, that counts as a failed check. Raises ReadOnlyError if the storage is
    read-only.
    """
    storage.check_writable()
    folder = f"icefloe-probe-{uuid.uuid4().hex}"
    run = _Probe(storage, folder)
    checks: list[ProbeCheck] = []
    try:
        for name, check in run.checks():
            checks.append(_outcome(name, check))
            if not checks[-1].passed and name == "write and read back":
                break
    finally:
        _clean_up(storage, folder, run.names)
    place = ", ".join(f"{key}: {value}" for key, value in storage.describe().items())
    return ProbeReport(place, tuple(checks))


def _clean_up(storage: Storage, folder: str, names: list[str]) -> None:
    """Delete the objects of the checks, including those that appear only after the deletion was acknowledged.

    A server that ignores conditions may finish a racing write after it has responded to all of them.
    """
    paths = [f"{folder}/{name}" for name in names]
    with suppress(StorageError):  # the storage cannot be reached, which the checks have already reported
        for patience in CLEANING_PAUSES:
            storage.delete(paths)
            time.sleep(patience)
            paths = [info.key for info in storage.list_prefix(folder)]
            if not paths:
                break
    storage.remove_empty_folder(folder)


def _outcome(name: str, check: Callable[[], str]) -> ProbeCheck:
    try:
        problem = check()
    except StorageError as error:
        problem = error.message
    return ProbeCheck(name, not problem, problem)


class _Probe:
    """The checks of a probe. Each returns an empty string, or a description of the problem."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self.names: list[str] = []

    def checks(self) -> list[tuple[str, Callable[[], str]]]:
        return [
            ("write and read back", self.write_and_read_back),
            ("create only if absent", self.create_only_if_absent),
            ("replace only if unchanged", self.replace_only_if_unchanged),
            ("no replacement of a missing object", self.no_replacement_of_missing),
            (f"one winner of {RACERS} creators", self.one_creator_wins),
            (f"one winner of {RACERS} replacers", self.one_replacer_wins),
            ("listing shows new objects", self.listing_shows_new_objects),
        ]

    def write_and_read_back(self) -> str:
        path = self._make_path("plain")
        self._storage.put(path, b"first")
        self._storage.put(path, b"second")
        data, _ = self._storage.get(path)
        return "" if data == b"second" else f"wrote b'second', read {data!r}"

    def create_only_if_absent(self) -> str:
        path = self._make_path("create")
        self._storage.put(path, b"first", ABSENT)
        if accepts(self._storage, path, b"second", ABSENT):
            return "a write with the condition that the object is absent overwrote an existing object"
        data, _ = self._storage.get(path)
        return "" if data == b"first" else "a refused write changed the object"

    def replace_only_if_unchanged(self) -> str:
        path = self._make_path("replace")
        old = self._storage.put(path, b"first", ABSENT)
        _, seen = self._storage.get(path)
        if seen != old:
            return f"the version is {old} after writing and {seen} after reading"
        new = self._storage.put(path, b"second", Unchanged(old))
        if new == old:
            return "the content changed, but the version did not"
        if accepts(self._storage, path, b"third", Unchanged(old)):
            return "a write with the condition that the object is unchanged overwrote a changed object"
        data, _ = self._storage.get(path)
        return "" if data == b"second" else "a refused write changed the object"

    def no_replacement_of_missing(self) -> str:
        path = self._make_path("missing")
        version = self._storage.put(path, b"first", ABSENT)
        self._storage.delete([path])
        if accepts(self._storage, path, b"second", Unchanged(version)):
            return "a write with the condition that the object is unchanged created a deleted object"
        return ""

    def one_creator_wins(self) -> str:
        return self._run_race("race-create", lambda path: ABSENT)

    def one_replacer_wins(self) -> str:
        def unchanged(path: str) -> PutCondition:
            version: Version = self._storage.put(path, b"start", ABSENT)
            return Unchanged(version)

        return self._run_race("race-replace", unchanged)

    def listing_shows_new_objects(self) -> str:
        path = self._make_path("listed")
        self._storage.put(path, b"x")
        listed = {info.key for info in self._storage.list_prefix(self._folder)}
        return "" if path in listed else "a new object is not in the listing"

    def _run_race(self, name: str, condition_for: Callable[[str], PutCondition]) -> str:
        for round_number in range(ROUNDS):
            path = self._make_path(f"{name}-{round_number}")
            condition = condition_for(path)
            start = threading.Barrier(RACERS)

            def racer(number: int, path: str = path, condition: PutCondition = condition) -> int | None:
                start.wait()  # noqa: B023  # all racers finish before the next round
                return number if accepts(self._storage, path, b"%d" % number, condition) else None

            with ThreadPoolExecutor(RACERS) as threads:
                winners = [n for n in threads.map(racer, range(RACERS)) if n is not None]
            if len(winners) != 1:
                return f"{len(winners)} of {RACERS} simultaneous writers succeeded"
            data, _ = self._storage.get(path)
            if data != b"%d" % winners[0]:
                return "the content is not that of the successful writer"
        return ""

    def _make_path(self, name: str) -> str:
        self.names.append(name)
        return f"{self._folder}/{name}"
