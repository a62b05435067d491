"""Queries, writes, ingestion and maintenance on Apache Spark.

Public names are imported lazily, so that looking for Java does not import pyspark.
"""

from icefloe._internal.extras import SPARK
from icefloe._internal.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__, needs=SPARK)
