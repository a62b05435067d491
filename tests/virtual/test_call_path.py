"""Count the calls of parsing and combining files, including imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

PROGRAM = """
import sys
from pathlib import Path
from benchmarks.call_paths import virtualize_and_combine
calls = virtualize_and_combine(Path(sys.argv[1]))
print(calls.codes.total(), len(calls.modules))
"""


@pytest.mark.needs("h5py", "xarray")
def test_virtualize_and_combine_need_few_calls(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    program = [sys.executable, "-c", PROGRAM, str(tmp_path)]

    # In a separate process, because modules that other tests imported would not be counted.
    done = subprocess.run(
        program, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )

    calls, modules = map(int, done.stdout.split())
    assert calls <= 1000
    assert modules <= 40
