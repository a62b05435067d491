"""Select chunks of arrays, read them, and reduce them."""
