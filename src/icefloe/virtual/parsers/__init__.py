"""One parser per file format. Each turns a file into a VirtualDataset."""
