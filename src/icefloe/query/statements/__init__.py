"""SQL statements that modify arrays, and statements that create, list or drop branches and tags."""
