"""Small building blocks that do not depend on the format: ids, paths, concurrency, text, times."""
