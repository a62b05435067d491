"""The official package beside a recorded report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.maintenance.integrity.last_report import record_report

official: Any = pytest.importorskip("icechunk")

pytestmark = pytest.mark.compat


def test_official_package_keeps_the_stored_report(tmp_path: Path) -> None:
    ours = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)), spec_version=1)
    with ours.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 9), chunks=(2,))
    recorded = record_report(ours.storage, ours.verify("objects"))

    theirs = official.Repository.open(official.local_filesystem_storage(str(tmp_path)))
    theirs.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    session = theirs.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 5
    session.commit("theirs")

    assert icefloe.last_verification(icefloe.open(str(tmp_path)).storage) == recorded
    assert icefloe.open(str(tmp_path)).verify("objects").ok
