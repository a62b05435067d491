"""The second stage of an ingest: open each source and describe it without reading its data."""
