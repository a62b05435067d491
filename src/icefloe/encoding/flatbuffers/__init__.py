"""A FlatBuffers reader and builder that convert vectors of tables to numpy columns and back."""
