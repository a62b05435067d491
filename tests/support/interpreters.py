"""Run a program in a new interpreter in which `icechunk` is icefloe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WORKER = "def work(_):\n    import icechunk.storage\n    from icechunk import Repository\n"
WORKER += "    return Repository.__module__, icechunk.storage.__name__, icechunk.__version__\n"


def run(tmp_path: Path, code: str, *arguments: str, worker: str = WORKER) -> str:
    """Run a program that imports icefloe as icechunk, and return its output."""
    (tmp_path / "worker.py").write_text(worker)
    (tmp_path / "program.py").write_text(code)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), *arguments],
        capture_output=True,
        text=True,
        env=clean,
        cwd=tmp_path,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
