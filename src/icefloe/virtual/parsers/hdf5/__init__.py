"""The parser for HDF5 and NetCDF-4 files."""
