"""Change the chunking of arrays in a repository."""
