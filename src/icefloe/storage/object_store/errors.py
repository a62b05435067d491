"""Translate object store errors into messages that state the cause and the remedy."""

from __future__ import annotations

import re
from typing import Final

_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]*)")
_SECRET_IN_URL = re.compile(r"([?&](?:sig|[Xx]-[Aa]mz-[A-Za-z-]+|[Xx]-[Gg]oog-[A-Za-z-]+|token)=)[^&\s\"]+")

_NO_BUCKET: Final = "the bucket or container does not exist; create it, or correct its name"
_WRONG_CREDENTIALS: Final = "the server rejected the credentials; check them"
_EXPIRED: Final = "the credentials have expired; pass new ones, or a function as get_credentials"
_OTHER_REGION: Final = "the bucket is in another region; pass its region"
_FORBIDDEN: Final = "permission denied; the credentials are wrong or lack this permission"
_NO_CREDENTIALS: Final = "no credentials were found; pass some, or anonymous=True"

BUCKET_CODES: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_BY_CODE: Final = {
    **dict.fromkeys(BUCKET_CODES, _NO_BUCKET),
    "SignatureDoesNotMatch": _WRONG_CREDENTIALS,
    "InvalidAccessKeyId": _WRONG_CREDENTIALS,
    "InvalidToken": _WRONG_CREDENTIALS,
    "AuthorizationFailure": _WRONG_CREDENTIALS,
    "AuthenticationFailed": _WRONG_CREDENTIALS,
    "ExpiredToken": _EXPIRED,
    "AccessDenied": _FORBIDDEN,
    "PermanentRedirect": _OTHER_REGION,
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "IllegalLocationConstraintException": _OTHER_REGION,
}
_BY_TEXT: Final = {
    "169.254.": _NO_CREDENTIALS,  # the address that serves credentials to instances and containers
    "metadata.google.internal": _NO_CREDENTIALS,
    "credential provider": "the credentials have an invalid form",
    "PROPFIND": "this web server cannot list objects; give the branch, tag or snapshot",
    "builder error": "the request cannot be sent; an http endpoint needs allow_http=True",
    "error sending request": "the server cannot be reached; check the endpoint and the network",
    "301 Moved Permanently": _OTHER_REGION,
    "401 Unauthorized": _WRONG_CREDENTIALS,
    "403 Forbidden": _FORBIDDEN,
}


def find_server_code(text: str) -> str:
    """Find the error code in the error response of an S3 or Azure server; return an empty string if there is
    none.
    """
    found = _CODE.search(text)
    return found[1] if found else ""


def explain_failure(path: str, place: str, text: str) -> str:
    """Describe an object store error: the object, the cause and remedy, the server's message, and the
    location.
    """
    code = find_server_code(text)
    advice = _BY_CODE.get(code) or next((advice for sign, advice in _BY_TEXT.items() if sign in text), "")
    return ": ".join(part for part in (path, advice, f"{_extract_message(text, code)}, in {place}") if part)


def _extract_message(text: str, code: str) -> str:
    """Return the server's error message, without secrets."""
    said = _MESSAGE.search(text)
    if code:
        return f"{code}, {said[1].strip()}" if said and said[1].strip() else code
    return _SECRET_IN_URL.sub(r"\1****", text.partition("Debug source")[0].strip().rstrip(":"))
