"""Zarr version 2 and 3, in folders, buckets and zip files."""
