"""Which of xarray's engines are installed, and how to install the others."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import xarray as xr

from icefloe._internal.extras import pip_install

_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "cfgrib": ("cfgrib", "eccodes"),
        "h5netcdf": ("h5netcdf", "h5py"),
        "netcdf4": ("netCDF4",),
        "pydap": ("pydap",),
        "rasterio": ("rioxarray",),
        "scipy": ("scipy",),
    }
)
_NONE_FITS: Final = (
    "did not find a match in any of xarray's currently installed IO backends",
    "found the following matches with the input file in xarray's IO backends",  # but they are not installed
    "it has no currently installed IO backends",
)
"""How xarray says that no installed engine reads a file."""


class MissingEngineError(Exception):
    """An engine was named that is not installed, or does not exist."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


def refuse_missing(engine: str) -> None:
    """Raise MissingEngineError unless an engine is installed."""
    installed = sorted(xr.backends.list_engines())
    if engine in installed:
        return
    if engine in _PACKAGES:
        reason = f"the engine {engine} is not installed"
        raise MissingEngineError(reason, pip_install(*_PACKAGES[engine]))
    near = difflib.get_close_matches(engine.lower(), [*installed, *_PACKAGES], n=1)
    hint = f"did you mean {near[0]}?" if near else f"installed are {', '.join(installed)}"
    raise MissingEngineError(f"xarray has no engine {engine!r}", hint)


def none_fits(error: ValueError) -> bool:
    """Tell whether xarray could not open a file because no installed engine reads it."""
    return any(text in str(error) for text in _NONE_FITS)
