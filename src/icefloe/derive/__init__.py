"""Derived arrays: arrays that a function computes from others, kept up to date chunk by chunk.

A record per output chunk holds a digest of everything the chunk was computed from. A run compares digests,
keeps chunks whose digest is the same, moves those whose digest is found elsewhere, and computes the rest.
"""
