"""Simulated histories of several writers with storage faults, each determined by a seed.

A seed that fails is run again, with its schedule, by `python -m tests.support.simulation.replay WORLD SEED`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.simulation.worlds import WORLDS, run_seed

BATCH = 5
# Seeds of each world; half as many of those with maintenance. `make torture` runs more.
HISTORIES = int(os.environ.get("ICEFLOE_HISTORIES", "5"))
BATCHES = [
    (world, first)
    for world in WORLDS
    for first in range(0, HISTORIES // 2 if world.endswith("maintenance") else HISTORIES, BATCH)
]


@pytest.mark.parametrize(("world", "first"), BATCHES)
def test_no_commit_is_lost(world: str, first: int, record_property: Callable[[str, Any], None]) -> None:
    histories = [run_seed(world, seed) for seed in range(first, first + BATCH)]

    for name in ("steps", "commits", "merges", "maintenance", "crashes", "faults"):
        record_property(f"proof {name}", sum(getattr(history, name) for history in histories))
    record_property("proof histories", len(histories))
    failed = [(history.seed, history.violation) for history in histories if history.violation is not None]
    assert not failed, f"run again with: python -m tests.support.simulation.replay {world} {failed[0][0]}"
    assert sum(history.commits for history in histories) > 0


@pytest.mark.parametrize("world", ["v1", "v2-wire", "v2-maintenance"])
def test_simulation_is_reproducible(world: str) -> None:
    first, second = run_seed(world, 5), run_seed(world, 5)

    assert first == second
    assert len(first.schedule) > 50
