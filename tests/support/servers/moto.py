"""moto, an S3 server from PyPI, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

_START_S = 300
PAGE = 100
"""How many objects the server lists at once; of others it is a thousand."""
# moto compares the condition of a write and then writes, with nothing to keep other threads out in between:
# of two conditional writes at once both may win. And it computes an object's tag when it is first asked for,
# from a file that other threads read at the same time: the tag may be that of half the content. Here writes
# come one at a time, and an object has its tag before anybody sees it (see docs/explanation/proof.md).
_SERVE = """
import threading
from moto.s3.models import FakeKey
from moto.s3.responses import S3Response
from moto.server import main

init, put_object, lock = FakeKey.__init__, S3Response.put_object, threading.Lock()

def init_with_tag(self, *args, **options):
    init(self, *args, **options)
    self.etag

FakeKey.__init__ = init_with_tag

def put_one_at_a_time(self):
    with lock:
        return put_object(self)

S3Response.put_object = put_one_at_a_time
main()
"""


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """Run a server and yield its URL."""
    # Fails here rather than in the server's process where moto is not installed; mypy need not read moto.
    importlib.import_module("moto")

    port = free_port()
    command = [sys.executable, "-c", _SERVE, "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE)},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def make_bucket(url: str, bucket: str) -> None:
    """Make a bucket; moto takes unsigned requests."""
    urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT")).close()


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers anything at all."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server ended with {process.returncode} before it answered")
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except urllib.error.HTTPError as answer:
            answer.close()
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"no answer from {url} within {_START_S} s")
