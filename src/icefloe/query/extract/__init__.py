"""Extract array values at points, and aggregate them over zones. Each chunk is fetched only once."""
