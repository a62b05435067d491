"""Decode the formats before version 1 to the current data model (docs/how-to/legacy-formats.md).

One decoder handles all of these formats. It recognizes a structure by its fields (by their names in a map, by
their number in an array), never by the name or version of the writer.
"""
