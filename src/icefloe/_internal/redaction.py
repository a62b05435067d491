"""Hide secrets in text that contains URLs: passwords, keys, tokens and signatures.

Every error message, log line and repr that contains a location goes through `redact`.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

HIDDEN = "****"
_SECRET_WORDS = ("key", "token", "secret", "password", "sas", "credential", "authorization", "cookie")
_SIGNATURE = re.compile(r"sig$|signature|^x-amz-|^x-goog-", re.IGNORECASE)

_USER = re.compile(r"(?<![A-Za-z0-9+.\-])([A-Za-z][A-Za-z0-9+.\-]*)://([^\s/?#'\"<>]*)@")
_PASSWORD_WITH_SLASH = re.compile(r"://[^\s/@:?#'\"<>]+:(?!\d*(?:[/?#\s'\"<>,;)]|$))[^\s'\"<>]{0,999}@")
"""Matches `user:pass/word@host`, which is invalid but common, and not the port in `host:8080/a@b`."""
_USER_AND_PASSWORD = r"(?!mailto:)[\w.%+\-]+:[^\s/@'\"<>]{1,200}@"
_WITHOUT_SCHEME = re.compile(
    rf"(?<![^\s'\"(=,])(//|){_USER_AND_PASSWORD}(?=[\w\[])"
    rf"|(?<=/)(){_USER_AND_PASSWORD}(?=[\w\-]+(?:\.[\w\-]+)+(?::\d+)?/)"
)
"""Matches `user:password@host` without a scheme, even if it was interpreted as a relative path."""
_QUERY = re.compile(r"([?&;])([A-Za-z][\w.\-]*)=([^&;\s'\"<>)]+)")


def may_be_secret(name: str) -> bool:
    """Return True if an option or header with this name may be secret and must be redacted."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def is_signature(name: str) -> bool:
    """Return True if a query parameter of this name is part of a URL's signature, which must be redacted."""
    return _SIGNATURE.search(name) is not None


def redact(text: str) -> str:
    """Replace passwords, keys and signatures in all URLs of a text with `****`, even in URLs without a
    scheme.

    `abfs://container@account` keeps its container, which is not a secret.
    """
    if "@" in text:
        text = _WITHOUT_SCHEME.sub(rf"\1{HIDDEN}@", text)
    if "://" not in text:
        return text
    text = _PASSWORD_WITH_SLASH.sub(f"://{HIDDEN}@", _USER.sub(_hide_user, text))
    return _QUERY.sub(_hide_parameter, text) if "=" in text else text


def has_secret(url: str) -> bool:
    """Return True if a URL contains a password, a key or a signature, which must be redacted."""
    return redact(url) != url


def has_valid_port(url: str) -> bool:
    """Return True if the port of a URL is a number. Otherwise it may be part of a password, and the URL must
    be redacted.
    """
    try:
        _ = urlsplit(url).port
    except ValueError:
        return False
    return True


def _hide_user(found: re.Match[str]) -> str:
    scheme, user = found.groups()
    is_web = scheme.lower().startswith("http")
    return f"{scheme}://{HIDDEN}@" if is_web or ":" in user else found[0]


def _hide_parameter(found: re.Match[str]) -> str:
    before, name, value = found.groups()
    return f"{before}{name}={HIDDEN if may_be_secret(name) or is_signature(name) else value}"
