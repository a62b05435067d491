"""The variants of simulations: versions of the format, and where faults occur."""

from __future__ import annotations

from typing import Final

from tests.support.simulation import wire
from tests.support.simulation.simulate import History, simulate

WORLDS: Final = ("v1", "v2", "v1-wire", "v2-wire", "v1-maintenance", "v2-maintenance")
"""With `wire` requests get lost below the retries of a storage, else above them. With `maintenance` snapshots
expire and garbage is collected."""


def run_seed(world: str, seed: int, steps: int = 50) -> History:
    """Run one simulation of a variant."""
    version = int(world[1])
    if not world.endswith("wire"):
        return simulate(seed, spec_version=version, steps=steps, maintenance=world.endswith("maintenance"))
    with wire.wired():
        return simulate(
            seed,
            spec_version=version,
            steps=steps,
            make_storage=wire.make_storage,
            connect=wire.connect,
        )
