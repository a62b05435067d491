"""Branches, tags and the repo info file, changed by compare-and-swap."""
