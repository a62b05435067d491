"""Analyze a SQL query: which tables, columns, conditions and aggregates it needs."""
