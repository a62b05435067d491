"""One writer of the feed benchmark: append rows to the same arrays as others. It does not import xarray."""

from __future__ import annotations

import random
import sys
import time
from importlib import import_module
from typing import Any

import numpy as np
import zarr

from benchmarks import slow_s3


def main(name: str, url: str, prefix: str, number: int, commits: int) -> None:
    """Wait for a line on standard input, and append."""
    package = import_module(name)
    repo = package.Repository.open(slow_s3.storage(package, url, prefix, f"writer{number}"))
    append = _append if hasattr(package, "AppendSolver") else _append_until_first
    print("ready", flush=True)
    sys.stdin.readline()
    for step in range(commits):
        append(package, repo, number * commits + step)
    assert "xarray" not in sys.modules


def _append(package: Any, repo: Any, label: int) -> None:
    session = repo.writable_session("main")
    _write(session, label)
    session.commit(f"row {label}", rebase_with=package.AppendSolver("time"))


def _append_until_first(package: Any, repo: Any, label: int) -> None:
    """Start again until no other writer comes first: no solver of the official library allows appends."""
    while True:
        session = repo.writable_session("main")
        _write(session, label)
        try:
            session.commit(f"row {label}")
        except package.ConflictError:
            time.sleep(random.uniform(0, 0.5))
            continue
        return


def _write(session: Any, label: int) -> None:
    group = zarr.open_group(session.store)
    values: Any = group["t"]
    labels: Any = group["time"]
    rows = values.shape[0]
    values.resize((rows + 1, values.shape[1]))
    labels.resize((rows + 1,))
    values[rows] = np.full(values.shape[1], label, "f4")
    labels[rows] = label


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
