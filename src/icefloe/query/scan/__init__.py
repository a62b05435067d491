"""Table scans: select chunks of arrays, read them, and reduce them."""
