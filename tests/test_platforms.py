"""Importing icefloe and working in memory require no POSIX-only features."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_POSIX = """
import importlib, os, sys

for name in ("fork", "register_at_fork", "pread", "fchmod", "sync", "getuid"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None

import numpy as np
import icefloe.storage
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage, s3_storage
import zarr

repo = Repository.create(in_memory_storage())
session = repo.writable_session("main")
zarr.create_array(session.store, name="a", data=np.arange(4))
session.commit("first")
print(zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:].tolist())
s3_storage(bucket="b", prefix="p", anonymous=True, region="us-east-1")
"""


def test_memory_and_cloud_storage_work_without_posix_modules() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_POSIX], capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[0, 1, 2, 3]"
