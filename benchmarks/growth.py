"""Benchmark growth: repositories with many commits, branches and arrays, each at several sizes.

The rows of one operation form a curve. It should be a straight line, except for `commits-in-a-row`: each
commit to a repository of version 2 rewrites the list of all snapshots, so that n commits take time in
proportion to the square of n.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import zarr

import icefloe
from benchmarks.harness import Job, Row, Side
from tests.support.long_histories import write_history

SIZES = (1_000, 10_000, 100_000)
ROW_OF_COMMITS = (250, 500, 1_000, 2_000)
PAST = datetime(2000, 1, 1, tzinfo=UTC)


def _commit(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 5
    session.commit("more")


HISTORY_JOBS: dict[str, Callable[[icefloe.Repository], Any]] = {
    "open": lambda repo: icefloe.Repository.open(repo.storage).lookup_branch("main"),
    "commit": _commit,
    "log": lambda repo: len(list(repo.ops_log())),
    "ancestry": lambda repo: len(list(repo.ancestry(branch="main"))),
    "graph": lambda repo: len(repo.ancestry_graph().commits),
    "gc": lambda repo: repo.garbage_collect(PAST).chunks_deleted,
    "expire": lambda repo: len(repo.expire_snapshots(datetime.now(UTC))),
}
BRANCH_JOBS = ("open", "commit", "graph", "gc")


def _on_history(job: str, commits: int, branches: int, shared: Path, empty: Path) -> Job:
    del shared, empty
    return partial(HISTORY_JOBS[job], write_history(commits, branches))


def _commits_in_a_row(count: int, shared: Path, empty: Path) -> Job:
    del shared, empty
    repo = write_history(0)

    def run() -> None:
        for _ in range(count):
            _commit(repo)

    return run


def _arrays(count: int, shared: Path, empty: Path, *, deletes: bool) -> Job:
    """Create arrays in one session, or delete all of them in one session."""
    del shared, empty
    repo = write_history(0)
    session = repo.writable_session("main")
    document = session._workspace.array("/a").user_data

    def create() -> None:
        for number in range(count):
            session._workspace.set_metadata(f"/g{number % 100:02}/a{number:06}", document)
        session.commit("arrays")

    if not deletes:
        return create
    create()
    other = repo.writable_session("main")

    def delete() -> None:
        for number in range(count):
            other._workspace.delete_node(f"/g{number % 100:02}/a{number:06}")
        other.commit("no arrays")

    return delete


def _history_rows() -> list[Row]:
    rows = []
    for size in SIZES:
        for job in HISTORY_JOBS:
            side = Side(f"{job} in memory", partial(_on_history, job, size, 0))
            rows.append(Row(f"growth-commits-{size}-{job}", f"{job} with {size:,} commits", side, repeat=1))
        for job in BRANCH_JOBS:
            side = Side(f"{job} in memory", partial(_on_history, job, 10, size))
            rows.append(Row(f"growth-branches-{size}-{job}", f"{job} with {size:,} branches", side, repeat=1))
        for name, deletes in (("create", False), ("delete", True)):
            side = Side(f"{name} and commit, in memory", partial(_arrays, size, deletes=deletes))
            rows.append(Row(f"growth-arrays-{size}-{name}", f"{name} {size:,} arrays", side, repeat=1))
    return rows


ROWS = [
    *_history_rows(),
    *(
        Row(
            f"commits-in-a-row-{count}",
            f"{count:,} commits, one after the other",
            Side("open a session, write one chunk, commit; in memory", partial(_commits_in_a_row, count)),
            repeat=1,
        )
        for count in ROW_OF_COMMITS
    ),
]
