"""Rewrite arrays in a different arrangement."""
