"""Processes that append rows to the same arrays, and repeat an append until it is acknowledged."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any

from icefloe.config import RepositoryConfig
from icefloe.core.commit.idempotency import CommitKey
from icefloe.core.merge.rebase import arrange_appends
from icefloe.errors import ConflictError, StorageError
from icefloe.feeds.append_solver import AppendSolver
from icefloe.repository import Repository
from tests.support import processes
from tests.support.simulation.bank import storage_at
from tests.support.simulation.feed import Append, put_metadata, put_rows, read_table, value

_APP = "feed"
_MOST = 1000
"""Labels of a process: its number times this, and the next ones."""


def create(place: dict[str, Any], spec_version: int) -> None:
    """Create a repository with empty arrays."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    session = Repository.create(storage_at(place), config, spec_version=spec_version).writable_session("main")
    put_metadata(session, 0)
    session.commit("created")


def run(place: dict[str, Any], count: int, appends: int) -> None:
    """Run concurrent processes, each of which makes some appends."""
    program = "import sys; from tests.support.simulation import feed_processes as f; f.main(*sys.argv[1:])"
    with ExitStack() as stack:
        workers = [
            stack.enter_context(processes.started(program, json.dumps(place), number, appends))
            for number in range(count)
        ]
        for worker in workers:
            printed = worker.stdout.read()
            assert worker.wait() == 0, printed


def check(place: dict[str, Any], count: int, appends: int) -> None:
    """Check that every label occurs once, with its values, and that every key was committed once."""
    repo = Repository.open(storage_at(place))
    table = read_table(repo.readonly_session("main"))
    expected = sorted(number * _MOST + step for number in range(count) for step in range(appends))
    assert sorted(table["time"]) == expected
    for name in ("a", "b"):
        assert table[name] == [value(label, name) for label in table["time"]]
    messages = [info.message for info in repo.ancestry(branch="main")][:-2]
    assert sorted(map(int, messages)) == expected


def main(place: str, number: str, appends: str) -> None:
    repo = Repository.open(storage_at(json.loads(place)))
    for step in range(int(appends)):
        _append(repo, int(number) * _MOST + step)


def _append(repo: Repository, label: int) -> None:
    """Append a row until an attempt is acknowledged. The key makes it happen once."""
    rows = Append(str(label), (label,), ("a", "b"))
    while True:
        solver = AppendSolver("time")
        try:
            session = repo.writable_session("main")
            put_rows(session, rows)
            arrange_appends(session.workspace, solver)
            key = CommitKey(_APP, str(label))
            session.commit_once(str(label), key=key, rebase_with=solver, allow_empty=True)
        except (ConflictError, StorageError) as error:
            sys.stderr.write(f"{label} is repeated: {error}\n")
            continue
        return
