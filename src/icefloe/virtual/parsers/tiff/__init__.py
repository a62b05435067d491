"""TIFF, BigTIFF, GeoTIFF and COG."""

from __future__ import annotations

from typing import Final

OVERVIEW: Final = "overview_"
"""The names of groups with smaller versions of an image begin with this."""
