"""ministack, an S3 server from PyPI that is independent of moto."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.moto import free_port, make_bucket, wait_until_ready


@contextlib.contextmanager
def ministack_server(folder: Path, bucket: str) -> Iterator[str]:
    """Run the server with one bucket, and yield its URL. Fails the test if it is not installed."""
    if importlib.util.find_spec("ministack") is None:
        pytest.fail("ministack is not installed: pip install ministack, or run make test-servers")
    port = free_port()
    # It listens on all interfaces unless told otherwise.
    environment = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "s3"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ministack"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=environment,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, process)
        make_bucket(url, bucket)
        yield url
    finally:
        process.kill()
        process.wait()
