"""kill -9 at every point of an ingest: main is as it was or complete, and the next run ends it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ingest.fault_jobs import JOBS
from tests.source_tree import ROOT

# How many touches of the repository lie between two kills; ICEFLOE_KILL_EVERY=1 leaves none out.
# Without it two jobs are tried, at a few moments.
EVERY = int(os.environ.get("ICEFLOE_KILL_EVERY", "197"))
TRIED = list(JOBS) if "ICEFLOE_KILL_EVERY" in os.environ else ["native", "virtual-append"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders need a POSIX system")


@pytest.mark.parametrize("job", TRIED)
def test_an_ingest_killed_before_any_touch_of_its_repository(tmp_path: Path, job: str) -> None:
    first = random.randrange(EVERY)
    done = subprocess.run(
        [sys.executable, "-m", "tests.ingest.killed_ingest", str(tmp_path), job, str(EVERY), str(first)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )

    assert done.stdout.split()[:1] == [job], f"first kill {first}: {done.stderr[-3000:]}"
