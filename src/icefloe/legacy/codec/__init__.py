"""The formats before version 1, read into the values of the present one (docs/how-to/legacy-formats.md).

One decoder serves all of them: a structure is told by its fields, in a map by their names and in an array by
their number, never by the name or version of a writer.
"""
