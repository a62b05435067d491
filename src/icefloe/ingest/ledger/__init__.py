"""The table of sources that were already ingested."""
