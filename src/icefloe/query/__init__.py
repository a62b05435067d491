"""Query arrays as tables, from any engine: schemas, SQL analysis, scans and writes. Does not import
pyspark."""
