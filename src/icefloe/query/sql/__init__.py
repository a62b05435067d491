"""Analyze SQL queries: find the tables, columns, conditions and aggregates that they use."""
