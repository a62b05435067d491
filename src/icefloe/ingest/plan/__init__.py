"""The fourth stage of an ingest: design the arrays, and assign blocks of chunks to tasks."""
