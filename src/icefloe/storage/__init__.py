"""Storage back ends for repositories, and the functions that create them.

As in the official package, this module also contains storage settings and the functions for virtual chunk
containers. Functions that create storages are imported on first use, because they load all back ends.
"""

from icefloe._internal.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
