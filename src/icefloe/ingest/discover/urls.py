"""Process source URLs: remove secrets before they are printed or stored, and normalize them for
references.
"""

from __future__ import annotations

import base64
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from icefloe._internal.redaction import is_signature, may_be_secret
from icefloe.core.virtual_chunks.locations import decode_key
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.external.access import split_query

_SIGNATURE_PARAMETERS = frozenset(
    {
        *("expires", "awsaccesskeyid", "googleaccessid", "policy", "key-pair-id", "response-cache-control"),
        # Azure shared access signatures.
        *("sv", "ss", "srt", "sp", "se", "st", "spr", "sr", "sip", "sdd"),
        *("skoid", "sktid", "skt", "ske", "sks", "skv", "saoid", "suoid", "scid"),
    }
)
"""Query parameters that contain signatures. They vary between signed URLs of the same file."""


def is_web(url: str) -> bool:
    """Return True if a source URL refers to a web server."""
    return urlsplit(url).scheme.lower() in ("http", "https")


def redact(url: str) -> str:
    """Remove passwords, signatures and tokens from a source URL, so that it can be printed and stored."""
    whole, query = split_query(url)
    if not is_web(whole):
        return whole.replace(f"//{urlsplit(whole).netloc}", f"//{_strip_login(urlsplit(whole))}", 1) + (
            f"?{query}" if query else ""
        )
    whole = urlsplit(whole)._replace(netloc=_strip_login(urlsplit(whole))).geturl()
    pairs = parse_qsl(query, keep_blank_values=True)
    signed = any(is_signature(name) for name, _ in pairs)
    kept = [
        (name, value)
        for name, value in pairs
        if not (may_be_secret(name) or is_signature(name))
        and not (signed and name.lower() in _SIGNATURE_PARAMETERS)
    ]
    return f"{whole}?{urlencode(kept)}" if kept else whole


def _strip_login(parts: SplitResult) -> str:
    """Return the host or bucket of a URL without user name and password. Azure's `container@account` is
    unchanged.
    """
    who, _, host = parts.netloc.rpartition("@")
    return host if ":" in who or is_web(f"{parts.scheme}://") else parts.netloc


def split_password(url: str) -> tuple[str, dict[str, str]]:
    """Remove `user:password@` from a source URL.

    Return the URL, and the credentials as an HTTP header.
    """
    parts = urlsplit(url)
    who, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    name, _, password = who.partition(":")
    basic = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return parts._replace(netloc=host).geturl(), {"Authorization": f"Basic {basic}"}


def refuse_password(url: str) -> None:
    """Raise InvalidInputError if a bucket URL contains access keys, which belong in the storage options."""
    parts = urlsplit(url)
    if not is_web(url) and ":" in parts.netloc.rpartition("@")[0]:
        raise InvalidInputError(
            f"{redact(url)}: the URL of a bucket must not contain access keys; pass them as source options",
            ErrorKind.INVALID_CREDENTIALS,
        )


def get_origin(url: str) -> str:
    """Return the part of a URL that identifies the server or bucket, for grouping source files."""
    whole, query = split_query(url)
    parts = urlsplit(whole)
    return f"{parts.scheme}://{parts.netloc}" + (f"?{query}" if not is_web(whole) else "")


def make_reference_url(url: str) -> str:
    """Normalize a source URL for references: remove options, and use a standard scheme."""
    whole, query = split_query(url)
    parts = urlsplit(whole)
    if is_web(whole) and (query or "@" in parts.netloc):
        what = "the query" if query else "the password"
        raise InvalidInputError(
            f"{redact(url)}: references cannot contain {what} of a URL; copy the data instead",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    container, at, _ = parts.netloc.partition("@")
    if at:
        return f"az://{container}{parts.path}"
    return f"s3://{parts.netloc}{parts.path}" if parts.scheme == "r2" else whole


def get_bucket_key(url: str) -> str:
    """Return the object key from a bucket URL."""
    return decode_key(make_reference_url(url))


def quote_key(key: str) -> str:
    """Percent-encode an object key for use in a URL."""
    return quote(key, safe="/!$&'()*+,;=:@~")
