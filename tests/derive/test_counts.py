"""The numbers of computed, moved and kept chunks against brute force, after random histories."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe.derive.arrays import StoredArray, get_array
from tests.support.derive_history import History, open_here

SEEDS = range(int(os.environ.get("ICEFLOE_DERIVATIONS", "1")))
STEPS = int(os.environ.get("ICEFLOE_DERIVATION_STEPS", "2"))
DECODING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "units", "calendar")
PATHS = {"t2m_daily": "/t2m_daily/t2m_daily", "series": "/s/t2m"}
Chunks = dict[tuple[int, ...], Any]
"""By the coordinates of each output chunk: everything that it depends on, or its own fingerprint."""


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_equal_brute_force_after_any_history(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed, [open_here])
    steps = _list_steps(history)
    known: dict[str, tuple[Chunks, Chunks]] = {name: ({}, {}) for name in PATHS}
    for number in range(STEPS + 1):
        chosen = steps[int(history.rng.integers(len(steps)))]
        if number:
            chosen()
        before = _read_states(history.repo)

        report = history.derive()

        counts = {each.name: (each.recomputed, each.moved, each.kept) for each in report.outputs}
        for name in PATHS:
            wanted, present = before[name]
            assert counts[name] == _count(wanted, present, *known[name]), (number, chosen, name)
        known = _read_states(history.repo)


def _list_steps(history: History) -> list[Callable[[], None]]:
    """List the steps that do not run the recipe themselves, and keep the records of the latest run."""
    others = (history.merge, history.rebase, history.reset)
    return [step for step in history.steps() if step not in others]


def _count(wanted: Chunks, present: Chunks, old: Chunks, own: Chunks) -> tuple[int, int, int]:
    """Count the chunks to compute, to move and to keep, given those of the latest run."""
    valid = {at: each for at, each in old.items() if present.get(at) == own[at]}
    kept = [at for at, each in wanted.items() if valid.get(at) == each]
    moved = [at for at, each in wanted.items() if at not in kept and each in valid.values()]
    return len(wanted) - len(moved) - len(kept), len(moved), len(kept)


def _read_states(repo: icefloe.Repository) -> dict[str, tuple[Chunks, Chunks]]:
    """Return what each output chunk depends on now, and the fingerprints of the chunks of outputs."""
    session = repo.readonly_session("main")
    array = get_array(session, "/t2m", "test")
    wanted = {"t2m_daily": dict(_list_days(array)), "series": dict(_list_series(array))}
    present: dict[str, Chunks] = {}
    for name, path in PATHS.items():
        try:
            found = get_array(session, path, "test")
        except icefloe.NodeNotFoundError:
            present[name] = {}
            continue
        prints = found.fingerprints()
        present[name] = {at: prints[at].tobytes() for at in np.ndindex(*prints.shape[:-1])}
    return {name: (wanted[name], present[name]) for name in PATHS}


def _list_days(array: StoredArray) -> Any:
    """Describe the chunks of daily means, of 1 x 3 x 4 cells."""
    days = array.coordinates["time"].values // 24
    for number, day in enumerate(range(days.min(), days.max() + 1)):
        cells = np.flatnonzero(days == day)
        span = (cells[0], cells[-1] + 1) if len(cells) else (0, 0)
        members = tuple(days[slice(*span)] == day)
        for y, x in product(range(2), range(2)):
            box = (span, (3 * y, 3 * y + 3), (4 * x, 4 * x + 4))
            yield (number, y, x), (_describe(array, box), members)


def _list_series(array: StoredArray) -> Any:
    """Describe the chunks of the copy in chunks of all x 2 x 2 cells."""
    for y, x in product(range(3), range(4)):
        box = ((0, array.shape[0]), (2 * y, 2 * y + 2), (2 * x, 2 * x + 2))
        yield (0, y, x), _describe(array, box)


def _describe(array: StoredArray, box: tuple[tuple[int, int], ...]) -> Any:
    """Describe the cells of a box: their chunks, the place in the first chunk, and how they are decoded."""
    chunks = [
        range(first // size, -(-end // size)) for (first, end), size in zip(box, (4, 3, 4), strict=True)
    ]
    if any(first >= end for first, end in box):
        chunks = []
    places = [(first % size, end - first) for (first, end), size in zip(box, (4, 3, 4), strict=True)]
    prints = array.fingerprints()
    decoding = json.dumps([array.attributes.get(name) for name in DECODING])
    return tuple(prints[at].tobytes() for at in product(*chunks)) if chunks else (), tuple(places), decoding
