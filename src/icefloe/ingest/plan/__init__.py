"""The fourth stage of an ingest: design arrays, and assign blocks of chunks to tasks."""
