"""The parser for TIFF, BigTIFF, GeoTIFF and COG files."""

from __future__ import annotations

from typing import Final

OVERVIEW: Final = "overview_"
"""The name prefix of groups that contain overviews (reduced-resolution copies of an image)."""
