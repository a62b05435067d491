"""Processes that move money between accounts in an array, all on one branch.

Each prints the ids of the commits that were acknowledged to it, one per line.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import ExitStack
from typing import Any

from zarr.core.buffer import cpu

from icefloe.config import RepositoryConfig
from icefloe.conflicts import ConflictDetector
from icefloe.errors import ConflictError
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage import Storage, local_filesystem_storage, s3_storage
from tests.support import processes
from tests.support.simulation.audit import Audit, chunk_bytes, number
from tests.support.simulation.twins import document

ACCOUNTS = 24
TOTAL = 100 * ACCOUNTS


def storage_at(place: dict[str, Any]) -> Storage:
    """Return the storage of a folder or of an S3 prefix."""
    if "folder" in place:
        return local_filesystem_storage(place["folder"])
    return s3_storage(
        region="us-east-1",
        allow_http=True,
        force_path_style=True,
        access_key_id="access",
        secret_access_key="secret",
        **place,
    )


def found(place: dict[str, Any], spec_version: int) -> None:
    """Create the bank, with the same amount in every account."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    session = Repository.create(storage_at(place), config, spec_version=spec_version).writable_session("main")
    session.store.set_sync("accounts/zarr.json", cpu.Buffer.from_bytes(document(ACCOUNTS, 0)))
    for account in range(ACCOUNTS):
        _put(session, account, TOTAL // ACCOUNTS)
    session.commit("founded")


def run(place: dict[str, Any], count: int, transfers: int, seed: int) -> list[str]:
    """Run concurrent processes that make transfers; return the acknowledged commits."""
    program = "import sys; from tests.support.simulation import bank; bank.main(*sys.argv[1:])"
    acknowledged: list[str] = []
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                processes.started(program, json.dumps(place), transfers, seed * 1000 + number)
            )
            for number in range(count)
        ]
        for worker in workers:
            printed = worker.stdout.read()
            assert worker.wait() == 0, printed
            acknowledged += printed.split()
    return acknowledged


def check(place: dict[str, Any], acknowledged: list[str]) -> int:
    """Check that the history has exactly the acknowledged commits and no money was lost."""
    audit = Audit(storage_at(place))
    stored = audit.everything()
    history = audit.history(stored.refs.branches["main"], stored)
    assert len(set(acknowledged)) == len(acknowledged)
    there, said = set(history[:-2]), set(acknowledged)
    assert there == said, f"lost: {sorted(said - there)}; never acknowledged: {sorted(there - said)}"
    for id in history[:-1]:
        assert sum(audit.tree(id)["/accounts"][2].values()) == TOTAL, f"money lost at {id}"
    return len(history)


def _put(session: Session, account: int, amount: int) -> None:
    session.store.set_sync(f"accounts/c/{account}", cpu.Buffer.from_bytes(chunk_bytes(amount)))


def _balance(session: Session, account: int) -> int:
    data = session.store.get_sync(f"accounts/c/{account}")
    assert data is not None
    return number(data.to_bytes())


def _transfer(repo: Repository, source: random.Random) -> str:
    """Retry a transfer until it succeeds. After a conflict the balances are read again."""
    while True:
        session = repo.writable_session("main")
        payer, payee = source.sample(range(ACCOUNTS), 2)
        amount = source.randrange(1, 10)
        _put(session, payer, _balance(session, payer) - amount)
        _put(session, payee, _balance(session, payee) + amount)
        try:
            return session.commit(f"{payer} pays {payee} {amount}", rebase_with=ConflictDetector())
        except ConflictError:
            continue


def main(place: str, transfers: str, seed: str) -> None:
    source = random.Random(int(seed))
    repo = Repository.open(storage_at(json.loads(place)))
    for _ in range(int(transfers)):
        sys.stdout.write(_transfer(repo, source) + "\n")
