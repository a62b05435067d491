"""HDF5 and NetCDF-4."""
