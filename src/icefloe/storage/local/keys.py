"""How object names are spelt on disk: as Rust's object_store does it, and with it the official library.

Non-ASCII, control characters and some punctuation are encoded, nothing else. Native S3 keys are not encoded.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_ENCODED = re.compile(r"""[^\x20-\x7e]|["#%*<>?\[\\\]^`{|}~]""")


def encode_key(key: str) -> str:
    """The name on disk of an object."""
    return _ENCODED.sub(_percent, key)


def decode_key(name: str) -> str:
    """The object that has this name on disk."""
    return unquote(name) if "%" in name else name


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())
