"""Concurrent processes on one repository: no transfer and no acknowledged commit is lost."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.moto import make_bucket
from tests.support.simulation import bank


@pytest.fixture(scope="module")
def s3_url(s3_server: str) -> str:
    make_bucket(s3_server, "bank")
    return s3_server


@pytest.mark.skipif(sys.platform == "win32", reason="folders need a POSIX system")
@pytest.mark.parametrize(("spec_version", "transfers"), [(1, 15), (2, 20)])
def test_processes_commit_concurrently_to_a_folder(
    tmp_path: Path, spec_version: int, transfers: int, record_property: Callable[[str, Any], None]
) -> None:
    place = {"folder": str(tmp_path / "bank")}
    bank.found(place, spec_version)

    acknowledged = bank.run(place, 3, transfers, seed=1)

    assert bank.check(place, acknowledged) == 3 * transfers + 2
    record_property("proof commits of processes", len(acknowledged))


@pytest.mark.parametrize("spec_version", [1, 2])
def test_processes_commit_concurrently_to_a_bucket(
    s3_url: str, spec_version: int, record_property: Callable[[str, Any], None]
) -> None:
    place = {"bucket": "bank", "prefix": uuid.uuid4().hex, "endpoint_url": s3_url}
    bank.found(place, spec_version)

    acknowledged = bank.run(place, 2, 6, seed=1)

    assert bank.check(place, acknowledged) == 14
    record_property("proof commits of processes", len(acknowledged))
