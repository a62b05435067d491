"""Derived arrays: arrays that are computed from other arrays and kept up to date chunk by chunk.

Each output chunk has a record with a digest of everything from which it was computed. A run compares digests,
keeps chunks with an unchanged digest, moves chunks whose digest occurs at other coordinates, and computes the
rest.
"""
