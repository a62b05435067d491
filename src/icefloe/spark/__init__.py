"""Queries, writes, ingests and maintenance on Apache Spark.

Names are loaded on first use, so that Java can be found without pyspark.
"""

from icefloe._internal.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
