"""What `import icechunk` finds in the worker processes of one that called `install_as_icechunk`.

The folder above is on their PYTHONPATH. This module replaces itself by the one that stands for icefloe.
"""

from icefloe.compatibility import install_as_icechunk

install_as_icechunk()
