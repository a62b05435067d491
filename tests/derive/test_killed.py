"""kill -9 at any point of a run: all outputs are old or all are new, and the next run completes them."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests.support import processes

# How many touches of the repository lie between two kills; ICEFLOE_KILL_EVERY=1 leaves none out.
EVERY = int(os.environ.get("ICEFLOE_KILL_EVERY", "97"))

DERIVE = "import sys; from tests.support import killed_derive; killed_derive.main(*sys.argv[1:])"

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="folders need a POSIX system"),
    pytest.mark.needs("xarray"),
]


def test_run_killed_at_any_point_leaves_old_or_new_outputs(tmp_path: Path) -> None:
    first = random.randrange(EVERY)
    code, printed = processes.run(DERIVE, tmp_path, EVERY, first)

    assert (code, printed.split()[:1]) == (0, ["derive"]), f"first kill {first}: {printed[-3000:]}"
