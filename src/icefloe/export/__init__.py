"""Data taken out of a repository, as plain Zarr or NetCDF that needs no icefloe to be read."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefloe.export.reports import ExportReport
from icefloe.export.zarr import export_zarr

if TYPE_CHECKING:
    from icefloe.export.netcdf import export_netcdf

__all__ = ["ExportReport", "export_netcdf", "export_zarr"]


def __getattr__(name: str) -> Any:
    if name == "export_netcdf":  # needs h5netcdf, which few have
        return import_module("icefloe.export.netcdf").export_netcdf
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
