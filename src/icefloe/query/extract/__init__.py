"""Values of arrays at points and over zones. Each chunk is fetched once."""
