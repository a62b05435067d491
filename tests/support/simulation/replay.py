"""Run one seed again and print its schedule: `python -m tests.support.simulation.replay v2 17`."""

from __future__ import annotations

import argparse
import sys

from tests.support.simulation.worlds import WORLDS, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    history = run_seed(given.world, given.seed, given.steps)
    sys.stdout.write("\n".join([*history.schedule, history.violation or "no violation"]) + "\n")
    return 1 if history.violation else 0


if __name__ == "__main__":
    sys.exit(main())
