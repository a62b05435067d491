"""Write table rows into arrays, independently of the query engine that provides the rows."""
