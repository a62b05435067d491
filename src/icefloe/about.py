"""The versions of icefloe, of the Icechunk format, and of the packages that icefloe uses."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from icefloe._version import __version__
from icefloe.types import SpecVersion

_DEBUG_PACKAGES = ("zarr", "numcodecs", "xarray", "virtualizarr", "obstore", "numpy")


def spec_version() -> SpecVersion:
    """Return the Icechunk format version of new repositories.

    Returns
    -------
    SpecVersion
    """
    return SpecVersion.current()


def supported_spec_versions() -> list[SpecVersion]:
    """Return the Icechunk format versions that icefloe reads and writes, newest first.

    Returns
    -------
    list of SpecVersion
    """
    return sorted(SpecVersion, reverse=True)


def user_agent() -> str:
    """Return icefloe's name and version, as written to files and sent with requests.

    Returns
    -------
    str
    """
    return f"icefloe-{__version__}"


def print_debug_info() -> None:
    """Print the platform and the versions of Python and packages, for bug reports."""
    found = {"platform": platform.platform(), "python": platform.python_version(), "icefloe": __version__}
    for package in _DEBUG_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    sys.stdout.writelines(f"{name}:  {text}\n" for name, text in found.items())
