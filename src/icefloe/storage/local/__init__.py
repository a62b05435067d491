"""A folder as storage."""
