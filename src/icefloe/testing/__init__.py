"""For tests of icefloe and of what is built on it: values to try things with, and storages with faults.

`strategies` needs the extra `test`.
"""

from icefloe.testing.storages import LatencyStorage

__all__ = ["LatencyStorage"]
