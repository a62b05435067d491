"""Both libraries collect the garbage of a killed ingest, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.compat.official import icechunk, needs_v2
from tests.support.ingest.fault_jobs import opened, reachable, stored
from tests.support.source_tree import ROOT

pytestmark = [pytest.mark.compat, needs_v2]


@pytest.mark.parametrize("job", ["batches", "virtual-append", "rechunk"])
def test_both_libraries_collect_garbage_of_a_killed_job(tmp_path: Path, job: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.support.ingest.killed_ingest", str(tmp_path), job, "149", "61", "keep"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        check=True,
        capture_output=True,
        timeout=600,
    )
    garbage = 0

    for ours in sorted(tmp_path.glob("left-*")):
        theirs = ours.with_name(ours.name.replace("left", "copy"))
        shutil.copytree(ours, theirs)
        needed, before = reachable(opened(ours)), stored(opened(ours))
        time.sleep(0.01)
        now = datetime.now(UTC)
        opened(ours).garbage_collect(now)
        icechunk.Repository.open(icechunk.local_filesystem_storage(str(theirs))).garbage_collect(now)

        assert stored(opened(ours)) == stored(opened(theirs)) == needed
        assert opened(theirs).verify().ok
        garbage += len(before - needed)

    assert garbage > 0
