"""Export the rows of tables as Parquet files or as Iceberg tables."""
