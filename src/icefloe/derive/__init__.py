"""Derived arrays, which are computed from other arrays and kept up to date chunk by chunk.

Each output chunk has a record with a digest of everything from which it was computed. A run compares these
digests. It keeps chunks whose digest is unchanged, moves chunks whose digest now belongs to other chunk
coordinates, and computes the rest.
"""
