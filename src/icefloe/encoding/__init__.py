"""Encodings that know nothing about Icechunk: FlatBuffers, FlexBuffers, MessagePack, columns of bytes."""
