"""The engine of a repository: the only layer that combines format and storage."""
