"""Tell users how to install the packages that optional features need.

The version bounds come from the metadata of the installed icefloe package, so that the commands work for
installations from a clone, a wheel or a package index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple

TABLES: Final = ("pyarrow", "pandas", "sqlglot")
SPARK: Final = ("pyspark", *TABLES)
TELEMETRY: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc")
SERVE: Final = ("starlette", "uvicorn", "Jinja2")
_NETCDF: Final = ("h5netcdf", "h5py", "netCDF4", "cftime")
_TIFF: Final = ("tifffile", "imagecodecs")
_FOREIGN: Final = ("astropy", "kerchunk", "fsspec")
_ALONE: Final = ("dask", "eccodes", "matplotlib", "pyiceberg", "shapely", "virtualizarr")
_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "cfgrib": ("cfgrib", "eccodes"),
        "pyspark": SPARK,
        "py4j": SPARK,
        "xarray": ("xarray", *_NETCDF),
        **{name: (name, *TABLES) for name in TABLES},
        **{name.lower(): (name, *SERVE) for name in SERVE},
        **{name: (name, *_TIFF) for name in _TIFF},
        **{
            name: (name,)
            for name in (*_NETCDF, "dask", "eccodes", "matplotlib", "pyiceberg", "shapely", "virtualizarr")
        },
        **{name: (name, *_FOREIGN) for name in _FOREIGN},
    }
)
"""The packages to install for each optional module. The first one provides the module itself."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def format_install_command(package: str, *others: str) -> str:
    """Return the command that installs a missing package, and those of the `others` that are also missing."""
    missing = dict.fromkeys((package, *(name for name in others if not _is_installed(name))))
    return f"pip install {' '.join(repr(_read_requirements().get(name.lower(), name)) for name in missing)}"


class Missing(NamedTuple):
    """A missing package of an extra (optional dependency), and the command that installs it."""

    module: str
    command: str

    def __str__(self) -> str:
        return f"this needs {self.module}: {self.command}"


def find_missing_package(error: ImportError, *others: str) -> Missing | None:
    """Return the missing package behind a failed import; None if it does not belong to an extra (optional
    dependency). The install command includes `others`, if they are missing.
    """
    module = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or module not in _PACKAGES:
        return None
    return Missing(module, format_install_command(*_PACKAGES[module], *others))


def _is_installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


@cache
def _read_requirements() -> Mapping[str, str]:
    """Return the requirement of each required or optional package, by lower-case name."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("icefloe") or []
    except PackageNotFoundError:  # imported from a source tree without metadata
        return {}
    found: dict[str, str] = {}
    for line in lines:
        requirement = line.partition(";")[0].strip()
        if name := _NAME.match(requirement):
            found.setdefault(name[0].lower(), requirement)
    return found
