"""A writer that is killed between its steps, and the expected state after each step. Run by `test_kills.py`.

Called with a folder, the version of the format, the name of a plan and how often to kill, it runs the steps
of the plan in one forked child after another. Each child kills itself (SIGKILL) before its n-th touch of the
file system, n going from 0 to beyond the last; what it acknowledged before comes back through a pipe. So
every point of a commit or merge at which a machine can fail is covered, as far as the order of calls goes.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from icefloe import AppendSolver, CommitKey, ConflictDetector, Repository, RepositoryConfig, Session
from icefloe.storage.local.folder import LocalStorage

NATIVE = RepositoryConfig(inline_chunk_threshold_bytes=0)
TOUCHES = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock"}

Step = Callable[[Repository], None]


def create(folder: Path, spec_version: int) -> Repository:
    return Repository.open_or_create(
        LocalStorage(folder), config=NATIVE, create_version=spec_version, check_clean_root=False
    )


def _commit(branch: str, value: int) -> Step:
    def commit(repo: Repository) -> None:
        with repo.transaction(branch, message=f"{branch} {value}") as store:
            array = zarr.open_array(store, path="a", mode="a", shape=(2,), chunks=(1,), dtype="i4")
            array[:] = np.array([value, value])

    return commit


def _amend(repo: Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = -1
    session.amend("amended")


def _reset(repo: Repository) -> None:
    repo.reset_branch("main", repo.lookup_tag("first"))


def _save_config(repo: Repository) -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=7)
    Repository.open(repo.storage, config).save_config()


def _begin(repo: Repository) -> None:
    """Open a session without committing; its changes are not visible."""
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="b", shape=(2,), chunks=(1,), dtype="i4")[:] = 7
    _begun.append(session)


def _rebase_and_commit(repo: Repository) -> None:
    _begun.pop().commit("rebased", rebase_with=ConflictDetector())


def _merge_forks_and_commit(repo: Repository) -> None:
    session = repo.writable_session("main")
    forks = [session.fork(), session.fork()]
    for index, fork in enumerate(forks):
        zarr.open_array(fork.store, path="a")[index] = 10 + index
    session.merge(*forks)
    session.commit("two forks")


def _put(branch: str, index: int, value: int) -> Step:
    def put(repo: Repository) -> None:
        session = repo.writable_session(branch)
        zarr.open_array(session.store, path="a")[index] = value
        session.commit(f"{branch}[{index}] = {value}")

    return put


def _squash(repo: Repository) -> None:
    since = list(repo.ancestry(branch="main"))[2]
    repo.squash(since.id, branch="main", message="two in one")


def _append(*labels: int) -> Step:
    def append(repo: Repository) -> None:
        session = repo.writable_session("main")
        _put_rows(session, labels)
        session.commit_once(f"append {labels}", key=CommitKey("feed", str(labels)))

    return append


def _put_rows(session: Session, labels: tuple[int, ...]) -> None:
    """Append labels to the coordinate, and a value for each to the array `a`."""
    group = zarr.open_group(session.store, mode="a")
    for name, chunk in (("time", 4), ("a", 1)):
        array: Any = group.get(name)
        if array is None:
            array = group.create_array(
                name, shape=(0,), chunks=(chunk,), dtype="i4", dimension_names=("time",)
            )
        length = array.shape[0]
        array.resize((length + len(labels),))
        array[length:] = np.array(labels) * (1 if name == "time" else 10)


def _begin_append(repo: Repository) -> None:
    session = repo.writable_session("main")
    _put_rows(session, (8,))
    _begun.append(session)


def _rebase_append(repo: Repository) -> None:
    _begun.pop().commit("append 8", rebase_with=AppendSolver("time"))


def _append_in_a_group(repo: Repository) -> None:
    repo.group_commits(max_delay_ms=0)
    session = repo.writable_session("main")
    _put_rows(session, (11,))
    session.commit_once("append 11", key=CommitKey("feed", "11"))
    repo.group_commits(max_delay_ms=None)


_begun: list[Session] = []

_WRITES: dict[str, Step] = {
    "commit": _commit("main", 1),
    "tag": lambda repo: repo.create_tag("first", repo.lookup_branch("main")),
    "branch": lambda repo: repo.create_branch("side", repo.lookup_branch("main")),
    "commit on the branch": _commit("side", 2),
    "commit again": _commit("main", 3),
    "amend": _amend,
    "reset": _reset,
    "save_config": _save_config,
    "delete_tag": lambda repo: repo.delete_tag("first"),
    "delete_branch": lambda repo: repo.delete_branch("side"),
    "begin": _begin,
    "commit last": _commit("main", 4),
    "rebase and commit": _rebase_and_commit,
    "merge forks and commit": _merge_forks_and_commit,
}
_BRANCHES: dict[str, Step] = {
    "commit": _commit("main", 1),
    "branch": lambda repo: repo.create_branch("side", repo.lookup_branch("main")),
    "put on the branch": _put("side", 0, 2),
    "put": _put("main", 1, 3),
    "merge": lambda repo: void(repo.merge("side", "main", message="merged")),
    "put on the branch again": _put("side", 1, 4),
    "cherry-pick": lambda repo: void(
        repo.cherry_pick(repo.lookup_branch("side"), branch="main", strategy="theirs", message="picked")
    ),
    "revert": lambda repo: void(repo.revert(repo.lookup_branch("main"), branch="main")),
    "reset": lambda repo: repo.reset_branch("side", repo.lookup_branch("main")),
    "put ahead": _put("side", 0, 5),
    "fast-forward": lambda repo: void(repo.merge("side", "main", message="forward")),
    "squash": _squash,
}
_FEED: dict[str, Step] = {
    "append": _append(1, 2, 3),
    "append again": _append(4, 5),
    "begin an append": _begin_append,
    "append beside it": _append(6, 7),
    "rebase the append": _rebase_append,
    "window": lambda repo: void(repo.keep_window(4.0, "time")),
    "append in a group": _append_in_a_group,
}
PLANS = {"writes": _WRITES, "branches": _BRANCHES, "feed": _FEED}
ONLY_IN_V2 = {"amend"}


def steps(plan: str, spec_version: int) -> list[str]:
    return [name for name in PLANS[plan] if spec_version > 1 or name not in ONLY_IN_V2]


def seen(folder: Path) -> Any:
    """Return everything that a reader sees: histories, values and the configuration."""
    storage = LocalStorage(folder)
    if not Repository.exists(storage):
        return None
    repo = Repository.open(storage)
    config = Repository.fetch_config(storage)
    return {
        "branches": {name: _version(repo, branch=name) for name in repo.list_branches()},
        "tags": {name: _version(repo, tag=name) for name in repo.list_tags()},
        "threshold": None if config is None else config.inline_chunk_threshold_bytes,
    }


def _version(repo: Repository, **ref: str) -> list[Any]:
    store = repo.readonly_session(**ref).store  # type: ignore[arg-type]
    values = [
        np.asarray(zarr.open_array(store, path=path, mode="r")[:]).tolist()
        for path in ("a", "time")
        if store.get_sync(f"{path}/zarr.json")
    ]
    return [[info.message for info in repo.ancestry(**ref)], values]


def run(folder: Path, spec_version: int, plan: str, done: Callable[[str], None]) -> None:
    """Run all steps of a plan, and acknowledge each."""
    repo = create(folder, spec_version)
    done("create")
    for name in steps(plan, spec_version):
        PLANS[plan][name](repo)
        done(name)


def _killed_before(touch: int, folder: Path, spec_version: int, plan: str) -> tuple[list[str], bool]:
    """Kill a child process before one of its file operations; return what it acknowledged."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        left = iter(range(touch, -1, -1))

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            ours = event == "fcntl.flock" or str(folder) in str(arguments[0]) if event in TOUCHES else False
            if ours and next(left, 0) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        run(folder, spec_version, plan, lambda name: void(os.write(writer, f"{name}\n".encode())))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        acknowledged = pipe.read().decode().splitlines()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"the writer failed, not killed, after {acknowledged}")
    return acknowledged, os.WIFSIGNALED(status)


def void(_: object) -> None:
    """Ignore all arguments."""


def main(root: Path, spec_version: int, plan: str, every: int, first: int) -> None:
    """Print one line of JSON for each kill: its position, and the acknowledged steps."""
    run(root / "imports", spec_version, plan, void)  # loads all that children will need
    gc.freeze()
    touch, killed = first, True
    while killed:
        folder = root / f"killed-{touch}"
        acknowledged, killed = _killed_before(touch, folder, spec_version, plan)
        sys.stdout.write(json.dumps([folder.name, acknowledged]) + "\n")
        touch += every
