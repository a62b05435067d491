"""Extract values of arrays at points, and aggregate them over zones. Each chunk is fetched once."""
