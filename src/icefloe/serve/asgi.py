"""HTTP responses without a web framework, because the gateway handles thousands of requests per second."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from icefloe._internal.redaction import redact
from icefloe.errors import (
    ErrorKind,
    FormatError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

NO_STORE: Final = (b"cache-control", b"no-store")
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_SOURCE_KINDS: Final = {
    ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
    ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
    ErrorKind.INVALID_VIRTUAL_REF,
    ErrorKind.INVALID_CREDENTIALS,
}
_logger = logging.getLogger(__name__)


class RequestError(Exception):
    """An error that is sent to the client as an HTTP response.

    Parameters
    ----------
    status
        The HTTP status.
    text
        The message for the user.
    headers
        Additional response headers.
    """

    def __init__(self, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = list(headers)


def status_of(error: Exception) -> int:
    """Choose the HTTP status for a failed read.

    It is never 404, which clients interpret as "fill value".
    """
    if isinstance(error, TimeoutError):
        return 504
    if isinstance(error, StorageError) or getattr(error, "kind", None) in _SOURCE_KINDS:
        return 502
    if isinstance(error, NotFoundError):
        return 410
    if isinstance(error, FormatError):
        return 500
    return 400 if isinstance(error, InvalidInputError) else 500


def describe(error: Exception, explain: Callable[[Exception], str]) -> str:
    """Describe an error for an HTTP response, without secrets.

    The details of unexpected errors are only logged.
    """
    if isinstance(error, TimeoutError):
        return "reading took too long"
    if isinstance(error, IcechunkError):
        return redact(explain(error))
    _logger.error("unexpected error: %s", type(error).__name__, exc_info=error)
    return "internal error; the log of the server has the details"


def as_request_error(error: Exception, explain: Callable[[Exception], str]) -> RequestError:
    """Convert any error to a `RequestError`, which can be sent as an HTTP response."""
    if isinstance(error, RequestError):
        return error
    return RequestError(status_of(error), describe(error, explain))


async def respond(
    send: Send,
    status: int,
    body: bytes = b"",
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    head: bool = False,
) -> None:
    """Send a complete HTTP response. With `head`, send the headers, including the length, without the
    body.
    """
    listed = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": b"" if head else body})


async def respond_error(send: Send, error: RequestError, *, head: bool = False) -> None:
    """Send an error as a plain-text HTTP response."""
    body = f"{error.text}\n".encode("utf-8", "backslashreplace")
    await respond(send, error.status, body, [_TEXT, NO_STORE, *error.headers], head=head)


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first request header with this lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None
