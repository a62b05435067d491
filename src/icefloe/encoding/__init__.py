"""Bytes to arrays and back; knows nothing of Icechunk."""
