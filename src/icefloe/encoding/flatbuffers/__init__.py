"""A FlatBuffers reader and builder that convert between vectors of tables and numpy columns."""
