"""What went wrong at an object store, and the way out, from what its server and its client say."""

from __future__ import annotations

import re
from typing import Final

_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]*)")
_SECRET_IN_URL = re.compile(r"([?&](?:sig|[Xx]-[Aa]mz-[A-Za-z-]+|[Xx]-[Gg]oog-[A-Za-z-]+|token)=)[^&\s\"]+")

_NO_BUCKET: Final = "the bucket or container does not exist: create it, or correct its name"
_WRONG_CREDENTIALS: Final = "the credentials are not accepted: check them"
_EXPIRED: Final = "the credentials have expired: give fresh ones, or a function as get_credentials"
_OTHER_REGION: Final = "the bucket is in another region: give its region"
_FORBIDDEN: Final = "permission denied: the credentials are wrong, or may not do this"
_NO_CREDENTIALS: Final = "no credentials were found: give some, or anonymous=True"

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
    "169.254.": _NO_CREDENTIALS,  # where instances and containers get theirs; nobody is there
    "metadata.google.internal": _NO_CREDENTIALS,
    "credential provider": "the credentials have not the form they should",
    "PROPFIND": "this web server cannot be listed: name the branch, tag or snapshot instead",
    "builder error": "the request cannot be made: an http endpoint needs allow_http=True",
    "error sending request": "the server cannot be reached: check the endpoint and the network",
    "301 Moved Permanently": _OTHER_REGION,
    "401 Unauthorized": _WRONG_CREDENTIALS,
    "403 Forbidden": _FORBIDDEN,
}


def server_code(text: str) -> str:
    """The code of an error that a server of S3 or Azure answered with; empty where there is none."""
    found = _CODE.search(text)
    return found[1] if found else ""


def explained(path: str, place: str, text: str) -> str:
    """One sentence on a failure: which object, what happened, what to do, the words of others, and where."""
    code = server_code(text)
    advice = _BY_CODE.get(code) or next((advice for sign, advice in _BY_TEXT.items() if sign in text), "")
    return ": ".join(part for part in (path, advice, f"{_words(text, code)}, in {place}") if part)


def _words(text: str, code: str) -> str:
    """What others say, without the secrets a URL or a debug text may hold."""
    said = _MESSAGE.search(text)
    if code:
        return f"{code}, {said[1].strip()}" if said and said[1].strip() else code
    return _SECRET_IN_URL.sub(r"\1****", text.partition("Debug source")[0].strip().rstrip(":"))
