"""Queries, writes, ingests and maintenance on Apache Spark.

Names are loaded on first use. Finding Java therefore does not import pyspark.
"""

from icefloe._internal.extras import SPARK
from icefloe._internal.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__, needs=SPARK)
