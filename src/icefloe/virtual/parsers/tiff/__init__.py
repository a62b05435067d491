"""TIFF, BigTIFF, GeoTIFF and COG."""
