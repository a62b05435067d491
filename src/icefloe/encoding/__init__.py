"""General-purpose encodings, independent of Icechunk: FlatBuffers, FlexBuffers, MessagePack and byte
columns.
"""
