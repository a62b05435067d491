"""Decoders for compressed bytes that neither zarr nor numcodecs can decode."""
