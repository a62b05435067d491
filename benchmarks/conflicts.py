"""Benchmark conflicts: rebase a session of 100,000 chunk writes over a commit of the same size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Job, Row, Side
from benchmarks.official import BUCKET

GRID = (200, 1000)
HALF = (100, 1000)
COUNT = HALF[0] * HALF[1]


def _packages() -> tuple[Any, Any]:
    import icechunk

    import icefloe

    return icefloe, icechunk


def _behind(package: Any, folder: Path, rows_apart: int) -> Any:
    """Create a session with 100,000 changes, and a newer commit with as many, `rows_apart` rows away."""
    import zarr

    storage = package.local_filesystem_storage(str(folder))
    repository = package.Repository.create(storage)
    session = repository.writable_session("main")
    zarr.create_array(
        session.store, name="array", shape=GRID, chunks=(1, 1), dtype="f4", compressors=None, fill_value=0
    )
    session.commit("array")
    ours, theirs = (repository.writable_session("main") for _ in range(2))
    for each, first in ((theirs, 0), (ours, rows_apart)):
        locations = [f"{BUCKET}{first}-{number // 100}.nc" for number in range(COUNT)]
        numbers = np.arange(COUNT, dtype=np.uint64)
        each.store.set_virtual_refs_arr(
            "array", HALF, locations, numbers, numbers + 1, arr_offset=(first, 0), validate_containers=False
        )
    theirs.commit("theirs")
    return ours


def _rebase(side: int, rows_apart: int, solve: bool) -> Callable[[Path, Path], Job]:
    def prepare(_: Path, scratch: Path) -> Job:
        package = _packages()[side]
        session = _behind(package, scratch / "repository", rows_apart)
        solver = package.BasicConflictSolver() if solve else package.ConflictDetector()

        def job() -> list[Any]:
            try:
                session.rebase(solver)
            except package.RebaseFailedError as error:
                return list(error.conflicts)
            return []

        return job

    return prepare


def _same(ours: list[Any], theirs: list[Any]) -> None:
    assert [each.conflicted_chunks for each in ours] == [each.conflicted_chunks for each in theirs]


def _row(name: str, title: str, rows_apart: int, cpu_ratio: float, solve: bool = False) -> Row:
    return Row(
        name=name,
        title=f"100,000 chunk writes over a commit of 100,000: {title}",
        ours=Side("session.rebase", _rebase(0, rows_apart, solve)),
        theirs=Side("session.rebase", _rebase(1, rows_apart, solve)),
        cpu_ratio=cpu_ratio,
        check=_same,
        repeat=9,
    )


ROWS = [
    _row("rebase-apart", "other chunks", rows_apart=100, cpu_ratio=3),
    _row("rebase-detect", "the same chunks, all reported", rows_apart=0, cpu_ratio=10),
    _row("rebase-solve", "the same chunks, ours kept", rows_apart=0, cpu_ratio=3, solve=True),
]
