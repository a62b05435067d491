"""Benchmark the import of the package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import OURS, THEIRS, Job, Row, Side


def _importing(package: str) -> Callable[[Path, Path], Job]:
    command = [sys.executable, "-c", f"import {package}"]
    return lambda *_: lambda: subprocess.run(command, check=True).returncode


ROWS = [
    Row(
        name="import",
        title="a process that imports the package and ends",
        ours=Side("import icefloe", _importing(OURS)),
        theirs=Side("import icechunk", _importing(THEIRS)),
        cpu_ratio=2,
        repeat=9,
    )
]
