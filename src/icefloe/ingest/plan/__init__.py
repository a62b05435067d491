"""Fourth stage: decide on arrays, chunks and tasks."""
