"""Small building blocks without knowledge of the format: ids, paths, concurrency, text, times."""
