"""Repositories of formats before version 1: read them, and upgrade them to version 2."""
