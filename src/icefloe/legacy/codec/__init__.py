"""Decode the formats before version 1 to current values (docs/how-to/legacy-formats.md).

One decoder handles all of them: it recognizes a structure by its fields (by their names in a map, by their
number in an array), never by the name or version of a writer.
"""
