"""Storage in a local folder."""
