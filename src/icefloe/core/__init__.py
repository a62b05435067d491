"""The repository engine, the only layer that combines format and storage."""
