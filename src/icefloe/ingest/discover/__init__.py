"""The first stage of an ingest: find the sources that the user specified."""
