"""Single-process queries without Spark: scans as Arrow streams, and a small SQL engine."""
