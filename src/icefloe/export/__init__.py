"""Export data from a repository to plain Zarr or NetCDF, which other tools can read without icefloe."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefloe.export.zarr import ExportReport, export_zarr

if TYPE_CHECKING:
    from icefloe.export.netcdf import export_netcdf

__all__ = ["ExportReport", "export_netcdf", "export_zarr"]


def __getattr__(name: str) -> Any:
    if name == "export_netcdf":  # requires h5netcdf, which may not be installed
        return import_module("icefloe.export.netcdf").export_netcdf
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
