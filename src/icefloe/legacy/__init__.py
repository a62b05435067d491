"""Formats before version 1: reading and upgrading."""
