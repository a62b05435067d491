"""kill -9 at every point of an ingest: main is unchanged or complete, and the next run completes it."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.ingest.fault_jobs import JOBS

# How many touches of the repository lie between two kills; ICEFLOE_KILL_EVERY=1 leaves none out.
# Without it two jobs are tried, at a few moments.
EVERY = int(os.environ.get("ICEFLOE_KILL_EVERY", "197"))
TRIED = list(JOBS) if "ICEFLOE_KILL_EVERY" in os.environ else ["native", "virtual-append"]

INGEST = "import sys; from tests.support.ingest import killed_ingest; killed_ingest.main(*sys.argv[1:])"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders need a POSIX system")


@pytest.mark.parametrize("job", TRIED)
def test_ingest_killed_before_any_storage_access_is_recovered(tmp_path: Path, job: str) -> None:
    first = random.randrange(EVERY)
    code, printed = processes.run(INGEST, tmp_path, job, EVERY, first)

    assert (code, printed.split()[:1]) == (0, [job]), f"first kill {first}: {printed[-3000:]}"
