"""Azurite, the emulator of Azure Blob Storage: the program `azurite-blob` of the npm package azurite."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from tests.support.servers.moto import free_port, wait_until_ready

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of the emulator's only account; it is published and opens nothing else."""


@contextlib.contextmanager
def azurite_server(container: str) -> Iterator[str]:
    """Run the emulator with one container, and yield its URL. Skips the test if it is not installed."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip(
            "NOTHING OF AZURE IS TESTED: no Azurite (npm install --global azurite, or make test-servers)"
        )
    port = free_port()
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    command += ["--silent", "--skipApiVersionCheck"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/{ACCOUNT}"
    try:
        wait_until_ready(url, process)
        _make_container(url, container)
        yield url
    finally:
        process.kill()
        process.wait()


def _make_container(url: str, container: str) -> None:
    date = formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-12-02"}
    canonical = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    resource = f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    text = f"PUT{chr(10) * 12}{canonical}{resource}"
    signature = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    request = urllib.request.Request(f"{url}/{container}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request).close()
