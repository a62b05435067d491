"""Say how to install the packages that only some features need.

The bounds come from the metadata of the installed icefloe, so that the commands work whether it was installed
from a clone, a wheel or an index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple

SPARK: Final = ("pyspark", "pyarrow", "pandas", "sqlglot")
TELEMETRY: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc")
SERVE: Final = ("starlette", "uvicorn", "Jinja2")
_NETCDF: Final = ("h5netcdf", "h5py", "netCDF4", "cftime")
_TIFF: Final = ("tifffile", "imagecodecs")
_FOREIGN: Final = ("astropy", "kerchunk", "fsspec")
_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "cfgrib": ("cfgrib", "eccodes"),
        "py4j": SPARK,
        "xarray": ("xarray", *_NETCDF),
        **{name: (name, *SPARK) for name in SPARK},
        **{name.lower(): (name, *SERVE) for name in SERVE},
        **{name: (name, *_TIFF) for name in _TIFF},
        **{name: (name,) for name in (*_NETCDF, "dask", "eccodes", "matplotlib", "virtualizarr")},
        **{name: (name, *_FOREIGN) for name in _FOREIGN},
    }
)
"""Optional modules, and the packages that a feature needs if it needs the module; its own package first."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def pip_install(package: str, *others: str) -> str:
    """Return the command that installs a missing package, and those of the others that are missing too."""
    missing = dict.fromkeys((package, *(name for name in others if not _is_installed(name))))
    return f"pip install {' '.join(repr(_bounds().get(name.lower(), name)) for name in missing)}"


class Missing(NamedTuple):
    """A module that is not installed, and the command that installs it."""

    module: str
    command: str

    def __str__(self) -> str:
        return f"this needs {self.module}: {self.command}"


def missing_package(error: ImportError) -> Missing | None:
    """Find out what an import lacks; None if that is none of the optional packages of icefloe."""
    module = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or module not in _PACKAGES:
        return None
    return Missing(module, pip_install(*_PACKAGES[module]))


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
