"""Third stage: combine the schemas of all sources with the arrays that already exist."""
