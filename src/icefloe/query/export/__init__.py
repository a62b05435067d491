"""Export table rows as Parquet files or as Iceberg tables."""
