"""External files, which contain virtual chunks: access, byte ranges and versions."""
