"""The third stage of an ingest: combine the schemas of all files with the existing arrays."""
