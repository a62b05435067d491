"""Server options, and resource limits per request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits on the server resources that one request may use: bytes, chunks and time.

    Chunks that are served unchanged are streamed without a limit.
    """

    decoded_bytes: int = 64 << 20
    """The maximum decoded size in bytes of all chunks of a request, checked before any chunk is decoded."""
    response_bytes: int = 16 << 20
    seconds: float = 30.0
    decoders: int = 2
    """The number of threads that decode chunks."""
    queued: int = 64
    """The number of requests that may wait for a decoder. Further requests are rejected."""
    request_seconds: float = 20.0
    """The timeout in seconds for a client to send a complete request."""
    stalled_seconds: float = 60.0
    """The timeout in seconds after which a response is aborted if the client does not read it."""
    kept_bytes: int = 128 << 20
    """The maximum size in bytes of the decoded chunk cache."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the web server, as given on the command line."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    """The token that requests must contain as a cookie or bearer token; None admits all requests."""
    cors: tuple[str, ...] = ()
    """The origins whose pages may read from the gateway (CORS)."""
    moving: bool = False
    """True to serve chunks even under versions that may select another snapshot later."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    explain: Callable[[Exception], str] = str
    """A function that describes an error to users, with the remedies that apply to them."""
    command: str = "icefloe"
    """The name of the command-line program in code snippets."""
    location: str = ""
    """The location of the repository in code snippets, without secrets."""

    @property
    def is_local(self) -> bool:
        """True if the server accepts connections only from this machine."""
        return self.host in LOOPBACK
