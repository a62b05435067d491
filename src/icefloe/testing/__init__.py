"""Storages that inject latency and faults, and the modules of `icechunk.testing`.

`models`, `strategies`, `trees`, `invariants` and `utils` provide the same names as the official package. They
require the `test` extra.
"""

from icefloe.testing.flaky import FlakyStorage
from icefloe.testing.storages import LatencyStorage, PassingStorage

__all__ = ["FlakyStorage", "LatencyStorage", "PassingStorage"]
