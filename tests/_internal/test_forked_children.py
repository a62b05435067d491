"""Child processes that are forked while threads of the parent are running."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from icefloe._internal.concurrency import fork_safe_lock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

COMMIT_IN_BOTH = """
import faulthandler, os, sys, threading
import zarr
import icefloe

def commit(index):
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(sys.argv[1]))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[index] = index
    session.commit("x", rebase_with=icefloe.ConflictDetector())

sys.setswitchinterval(1e-5)
repo = icefloe.Repository.create(icefloe.local_filesystem_storage(sys.argv[1]))
with repo.transaction("main", message="start") as store:
    zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")
thread = threading.Thread(target=commit, args=(1,))
thread.start()
while "icefloe.core.merge.conflicts" not in sys.modules:  # what a commit imports when it is first needed
    pass
if (child := os.fork()) == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    commit(2)
    os._exit(0)
_, status = os.waitpid(child, 0)
thread.join()
values = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:].tolist()
assert (status, values) == (0, [0, 1, 2, 0]), (status, values)
"""


def test_child_forked_during_an_import_can_commit(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", COMMIT_IN_BOTH, str(tmp_path / "repo")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_lock_held_in_the_parent_is_free_in_a_forked_child(reentrant: bool) -> None:
    lock = fork_safe_lock(reentrant=reentrant)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    if (child := os.fork()) == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        with lock:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()

    assert status == 0
