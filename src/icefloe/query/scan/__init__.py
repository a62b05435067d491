"""Select chunks, read them and reduce them."""
