"""Show the progress of maintenance."""

from __future__ import annotations

from icefloe._internal.executor import ThreadExecutor
from icefloe.cli.output import Output
from icefloe.repository import Repository

_THREADS = 64


def watched(repo: Repository, out: Output, *, reads_only: bool = False) -> Repository:
    """Return the repository with an executor that reports progress.

    `reads_only`: the operation only reads small files, which one thread does faster on a local disk.
    """
    alone = reads_only and repo.storage.answers_at_once
    executor = repo.executor or ThreadExecutor(1 if alone else _THREADS)
    return repo.with_executor(executor.with_progress(out.progress))
