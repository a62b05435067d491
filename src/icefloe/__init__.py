"""Transactional, version-controlled storage for Zarr arrays in the Icechunk format, in pure Python.

The public names are listed in `__init__.pyi`. Names are imported from their modules on first use, so that
`import icefloe` is fast.
"""

from icefloe._internal.lazy import attach_stub
from icefloe._internal.logs import initialize_logs

_OPTIONAL = (
    "icefloe.export.netcdf",
    "icefloe.feeds.append",
    "icefloe.ingest.rechunk_job",
    "icefloe.ingest.report",
    "icefloe.query.export.iceberg",
    "icefloe.query.export.parquet",
    "icefloe.query.local.scan",
)
"""Modules that need optional packages."""

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__, _OPTIONAL)

initialize_logs()
