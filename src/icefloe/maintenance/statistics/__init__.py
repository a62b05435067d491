"""Chunk statistics: smallest and largest value, missing values, sums and squared deviations."""
