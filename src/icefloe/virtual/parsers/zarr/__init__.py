"""Parsers for Zarr version 2 and 3 in directories, buckets and zip files."""
