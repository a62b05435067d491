"""The parser for GRIB editions 1 and 2."""
