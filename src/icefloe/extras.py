"""Say how to install the packages that only some features need.

The bounds come from the metadata of the installed icefloe, so that the commands work whether it was installed
from a clone, a wheel or an index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

SPARK: Final = ("pyspark", "pyarrow", "pandas", "sqlglot")
TELEMETRY: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc")
_NETCDF: Final = ("h5netcdf", "h5py", "netCDF4", "cftime")
_TIFF: Final = ("tifffile", "imagecodecs")
_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "cfgrib": ("cfgrib", "eccodes"),
        "py4j": SPARK,
        "xarray": ("xarray", *_NETCDF),
        **{name: (name, *SPARK) for name in SPARK},
        **{name: (name, *_TIFF) for name in _TIFF},
        **{name: (name,) for name in (*_NETCDF, "dask", "eccodes", "matplotlib", "virtualizarr")},
    }
)
"""Optional modules, and the packages that a feature needs if it needs the module; its own package first."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def pip_install(package: str, *others: str) -> str:
    """Return the command that installs a missing package, and those of the others that are missing too."""
    missing = dict.fromkeys((package, *(name for name in others if not _is_installed(name))))
    return f"pip install {' '.join(repr(_bounds().get(name.lower(), name)) for name in missing)}"


def missing_package(error: ImportError) -> str | None:
    """Say which package an import lacks and how to install it; None if it is not one of ours."""
    module = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or module not in _PACKAGES:
        return None
    return f"this needs {module}: {pip_install(*_PACKAGES[module])}"


def _is_installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


@cache
def _bounds() -> Mapping[str, str]:
    """Map the lower-case name of each package that icefloe or an extra needs to its requirement."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("icefloe") or []
    except PackageNotFoundError:  # on the path, but not installed
        return {}
    found: dict[str, str] = {}
    for line in lines:
        requirement = line.partition(";")[0].strip()
        if name := _NAME.match(requirement):
            found.setdefault(name[0].lower(), requirement)
    return found
