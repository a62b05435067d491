"""Write rows into arrays."""
