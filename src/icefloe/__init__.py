"""Transactional, version-controlled storage for Zarr arrays in the Icechunk format, in pure Python.

The public names are listed in `__init__.pyi`. `import icefloe` is fast: a name is imported from its module
when it is first used.
"""

from icefloe._internal.lazy import attach_stub
from icefloe._internal.logs import initialize_logs

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

initialize_logs()
