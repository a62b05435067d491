"""Sixth stage: stage, audit and publish what was written."""
