"""Compare versions: find differing references, chunks and values, and the commits that changed them."""
