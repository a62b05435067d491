"""Operational feeds: many writers that append to the same arrays."""
