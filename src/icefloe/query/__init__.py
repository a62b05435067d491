"""Query arrays as tables, independently of the engine: schemas, SQL analysis, scans and writes. This package
does not import pyspark."""
