"""The official library and icefloe's checksum catalogue do not interfere with each other."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import icefloe
from tests.support.compat.histories import random_history, seen, storage

icechunk = pytest.importorskip("icechunk")
pytestmark = pytest.mark.compat


@pytest.mark.parametrize("version", [1, 2])
def test_official_library_ignores_the_checksum_catalogue(tmp_path: Path, version: int) -> None:
    if version == 2 and not hasattr(icechunk, "SpecVersion"):
        pytest.skip("this release of the official library has no version 2 of the format")
    random_history(icechunk, tmp_path, version, random.Random(5))
    ours = icefloe.Repository.open(storage(icefloe, tmp_path))
    before = seen(icechunk.Repository.open(storage(icechunk, tmp_path)))
    ours.record_checksums()
    ours.verify("objects", incremental=True)
    kept = {path for path in (tmp_path / "icefloe").rglob("*") if path.is_file()}

    theirs = icechunk.Repository.open(storage(icechunk, tmp_path))
    assert seen(theirs) == before
    theirs.expire_snapshots(datetime.now(UTC))
    time.sleep(0.003)
    theirs.garbage_collect(datetime.now(UTC))

    assert len(kept) == 2
    assert {path for path in (tmp_path / "icefloe").rglob("*") if path.is_file()} == kept
    assert icefloe.Repository.open(storage(icefloe, tmp_path)).verify("graph", checksums=True).ok
