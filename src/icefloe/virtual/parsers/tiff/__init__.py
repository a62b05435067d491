"""TIFF, BigTIFF, GeoTIFF and COG."""

from __future__ import annotations

from typing import Final

OVERVIEW: Final = "overview_"
"""The prefix of the names of groups that contain smaller versions of an image."""
