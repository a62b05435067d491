"""FlatBuffers as columns: a schema as data, a reader, a builder and single look-ups."""
