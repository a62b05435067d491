"""The repository configuration and its parts, including virtual chunk containers.

These classes convert to and from plain dicts in the stored form (`to_plain`, `from_plain`): every key is
present, unset values are None, and enums are strings or maps with one key. `format` encodes the dicts as
bytes.
"""

from icefloe._internal.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
