"""The engine: the only place that sees format and storage together."""
