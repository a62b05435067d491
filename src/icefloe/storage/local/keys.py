"""File names for object keys, encoded as in Rust's object_store and the official library.

Non-ASCII characters, control characters and some punctuation are percent-encoded. Keys in S3 are not encoded.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_ENCODED = re.compile(r"""[^\x20-\x7e]|["#%*<>?\[\\\]^`{|}~]""")


def encode_key(key: str) -> str:
    """Encode an object key as a local file name."""
    return _ENCODED.sub(_percent_encode, key)


def decode_key(name: str) -> str:
    """Decode a local file name to an object key."""
    return unquote(name) if "%" in name else name


def _percent_encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())
