"""The Spark source `icechunk`: Spark imports all modules named `pyspark_*` when it looks for sources."""

from icefloe.spark.source import IcechunkSource as DefaultSource

__all__ = ["DefaultSource"]
