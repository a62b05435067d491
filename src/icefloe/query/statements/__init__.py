"""SQL statements that change arrays, and statements that create, list or drop branches and tags."""
