"""Queries in one process, without Spark: scans as Arrow streams, and a small SQL engine."""
