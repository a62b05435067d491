"""The package `icechunk` in the worker processes of a process that called `install_as_icechunk`.

The parent folder is on their PYTHONPATH. On import, this module replaces itself with icefloe.
"""

from icefloe.compatibility import install_as_icechunk

install_as_icechunk()
