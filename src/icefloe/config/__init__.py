"""The configuration of a repository, its parts, and virtual chunk containers.

These classes convert to plain dicts and back (`to_plain`, `from_plain`) in the form that is stored: every key
is present, None if it is not set, and enums are strings or maps with one key. `format` turns the dicts into
bytes.
"""

from icefloe._internal.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
