"""Second stage: open each source and describe it without reading its data."""
