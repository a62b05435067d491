"""Names of objects on disk, encoded like those of Rust's object_store and the official library.

Non-ASCII characters, control characters and some punctuation are percent-encoded. Keys in S3 are not encoded.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_ENCODED = re.compile(r"""[^\x20-\x7e]|["#%*<>?\[\\\]^`{|}~]""")


def encode_key(key: str) -> str:
    """Encode the key of an object as the name of a local file."""
    return _ENCODED.sub(_percent_encode, key)


def decode_key(name: str) -> str:
    """Decode the name of a local file to the key of an object."""
    return unquote(name) if "%" in name else name


def _percent_encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())
