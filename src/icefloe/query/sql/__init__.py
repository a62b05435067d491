"""SQL query analysis: find the tables, columns, conditions and aggregates that a query uses."""
