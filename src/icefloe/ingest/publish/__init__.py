"""The sixth stage of an ingest: check the staged data, and publish it."""
