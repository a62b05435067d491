"""Storages that inject latency and faults, and the modules of `icechunk.testing`.

`models`, `strategies`, `trees`, `invariants` and `utils` contain the names of the official package. They need
the extra `test`.
"""

from icefloe.testing.flaky import FlakyStorage
from icefloe.testing.storages import LatencyStorage, PassingStorage

__all__ = ["FlakyStorage", "LatencyStorage", "PassingStorage"]
