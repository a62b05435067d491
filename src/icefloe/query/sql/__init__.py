"""Analyze a SQL query: find the tables, columns, conditions and aggregates that it needs."""
