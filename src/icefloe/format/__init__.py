"""The Icechunk format: pure functions between bytes and values."""
