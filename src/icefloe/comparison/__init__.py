"""Compare versions: references, chunks and values that differ, and the commits that changed them."""
