"""Icechunk's files as values: bytes in, values out. No I/O, clock, randomness or logging here."""
