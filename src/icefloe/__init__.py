"""Transactional, version-controlled storage for Zarr arrays in the Icechunk format, in pure Python."""

from icefloe._version import __version__

__all__ = ["__version__"]
