"""Virtual chunks: their locations, their references and their bytes."""
