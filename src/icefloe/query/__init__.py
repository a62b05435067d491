"""Arrays as tables, for any query engine: schema, SQL analysis, scans and writes. Does not import pyspark."""
