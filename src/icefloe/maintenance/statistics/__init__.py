"""Chunk statistics: minimum, maximum, missing values, sums and squared deviations."""
