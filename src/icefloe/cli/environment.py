"""What this machine has of all that icefloe can use."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, distribution, version

from icefloe._internal.extras import pip_install
from icefloe._version import __version__

_PACKAGES = (
    *("zarr", "obstore", "xarray", "h5netcdf", "netCDF4", "pyspark", "matplotlib", "dask", "virtualizarr"),
    *("tifffile", "eccodes", "cfgrib"),
)


def environment() -> dict[str, str]:
    """Versions of what is installed, and how to get what is not."""
    found = {"icefloe": __version__, "python": f"{platform.python_version()} on {platform.platform()}"}
    return {**found, **{name: _package(name) for name in _PACKAGES}, "java": _java()}


def _package(name: str) -> str:
    try:
        # The field alone: to parse all that a package says of itself takes longer than the command.
        found = re.search(r"^Version: *(\S+)", distribution(name).read_text("METADATA") or "", re.MULTILINE)
        return found[1] if found is not None else version(name)
    except PackageNotFoundError:
        return f"not installed: {pip_install(name)}"


def _java() -> str:
    from icefloe.spark.java import find_java_home

    try:
        return str(find_java_home())
    except RuntimeError as missing:
        return f"not found: {missing}"
